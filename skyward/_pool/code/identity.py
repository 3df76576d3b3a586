"""Digests of calls that are the same in every process: of a function's code and of its arguments.

A pickle will not do for that: it depends on the order of sets, on which strings are one object, on line numbers and on
names that cloudpickle draws. Here a value is what it consists of. A function is its instructions, constants, defaults,
the values it closes over and the globals it uses, where it travels by value; its name, where its module's file travels
or its package is installed. Classes likewise. Of a local module its code counts, and not its comments.
"""

from __future__ import annotations

import ast
import copyreg
import dis
import hashlib
import io
import pickle
import struct
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from cloudpickle.cloudpickle import _should_pickle_by_reference

from skyward._pool.code.bundle import CodeBundle, bundle_modules, local_modules
from skyward.errors import SerializationError
from skyward.runtime.environment import declared_env
from skyward.wire import payload, tensors

_SCALARS = frozenset({int, float, bool, str, bytes, types.NoneType})
_WHOLE = 64  # bytes of an encoding that stands for itself; longer ones by their digest
_DIGEST = 16
# made by the class statement, or by Python for its own use; none of it decides what a method does
_OF_CLASSES = frozenset(
    {"__dict__", "__weakref__", "__module__", "__doc__", "__annotations__", "__annotate__", "__annotate_func__"}
    | {"__annotations_cache__", "__static_attributes__", "__firstlineno__", "__abstractmethods__", "_abc_impl"}
    | {"__orig_bases__", "__parameters__", "__type_params__", "__slotnames__"}
)
_DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType, types.WrapperDescriptorType)


def code_digest(fn: Callable[..., Any]) -> str:
    """The digest (hex) of a function's code, of all values that travel with it, and of the local modules that do.

    Raises:
        SerializationError: it refers to something that has no lasting identity.
    """
    name = getattr(fn, "__qualname__", type(fn).__name__)
    try:
        code, env = _Encoder().encode(fn), repr(sorted(declared_env(fn).items()))
    except (TypeError, pickle.PicklingError, RecursionError) as error:
        raise SerializationError(
            f"The code of {name}() cannot be told from other versions of it, which a journal needs: {error}. Create "
            "what cannot be pickled inside the function."
        ) from error
    return _hashed([code, _modules_digest(local_modules(fn)), env])


class Arguments:
    """Digests of the arguments of one function's calls; remembers the modules that it has looked at."""

    def __init__(self) -> None:
        self._modules: dict[str, bytes] = {}

    def digest(self, args: tuple[Any, ...], *, of: str) -> str:
        """The digest (hex) of the arguments of the function named `of`.

        Raises:
            SerializationError: one of them has no lasting identity.
        """
        encoder = _Encoder()
        try:
            whole = encoder.encode(args)
        except (TypeError, pickle.PicklingError, RecursionError) as error:
            raise SerializationError(
                f"The argument {_shown(args)} of {of}() cannot be told from others, which a journal needs: {error}."
            ) from error
        return _hashed([whole, *(self._module(name) for name in sorted(encoder.modules))])

    def _module(self, name: str) -> bytes:
        if name not in self._modules:
            self._modules[name] = _modules_digest(bundle_modules([name]))
        return self._modules[name]


class _Encoder:
    """Encodes values as bytes: small ones whole, large ones by digest, each after the kind of what it is.

    Attributes:
        modules: those of what was named instead of encoded.
    """

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self._inside: dict[int, int] = {}  # depth at which each object stands that is being encoded
        self._known: dict[int, tuple[Any, bytes]] = {}  # encodings of objects, which are kept so that their id is
        self._pickler = payload.Pickler(io.BytesIO(), 5, lambda _buffer: False)

    def encode(self, obj: Any) -> bytes:
        """The encoding of a value.

        Raises:
            TypeError, PicklingError: it cannot be pickled.
        """
        kind = type(obj)
        if kind in _SCALARS:
            return _scalar(obj)
        known = self._known.get(id(obj))
        if known is not None:
            return known[1]
        if (depth := self._inside.get(id(obj))) is not None:
            return b"up%d" % depth
        self._inside[id(obj)] = len(self._inside)
        try:
            encoded = self._object(obj, kind)
        finally:
            del self._inside[id(obj)]
        self._known[id(obj)] = obj, encoded
        return encoded

    def _object(self, obj: Any, kind: type) -> bytes:
        if known := _CASES.get(kind):
            return known(self, obj)
        if issubclass(kind, type):
            return self._class(obj)
        if issubclass(kind, types.ModuleType):
            self.modules.add(obj.__name__)
            return _tagged("module", [obj.__name__])
        if isinstance(obj, _DESCRIPTORS):
            return _tagged("descriptor", [obj.__name__])
        if tensors.is_storage(kind):
            return _tagged("storage", [str(getattr(obj, "dtype", "")), tensors.content(obj)])
        return self._reduced(obj, kind)

    def _mapping(self, pairs: Mapping[Any, Any]) -> bytes:
        return _tagged("dict", [self._sequence("keys", list(pairs)), self._sequence("values", list(pairs.values()))])

    def _set(self, items: Collection[Any]) -> bytes:
        return _tagged(type(items).__name__, sorted(map(self.encode, items)))

    def _cell(self, cell: types.CellType) -> bytes:
        try:
            return _tagged("cell", [self.encode(cell.cell_contents)])
        except ValueError:  # it is empty: what it is to hold is not defined yet
            return _tagged("cell", [])

    def _sequence(self, what: str, items: list[Any] | tuple[Any, ...]) -> bytes:
        if len(items) > _WHOLE and set(map(type, items)) <= _SCALARS:
            return _tagged(what, [_pickled(list(items))])  # as exact, and a hundred times as fast
        return _tagged(what, [b"%d" % len(items), *map(self.encode, items)])

    def _function(self, fn: types.FunctionType) -> bytes:
        if payload.decorated(fn) or _should_pickle_by_reference(fn):
            return self._named(fn, fn.__qualname__)
        names = {name: fn.__globals__[name] for name in _global_names(fn.__code__) if name in fn.__globals__}
        values = (
            fn.__code__,
            fn.__defaults__,
            fn.__kwdefaults__,
            fn.__closure__,
            _in_order(fn.__dict__),
            _in_order(names),
        )
        return _tagged("function", [fn.__name__, *map(self.encode, values)])

    def _code(self, code: types.CodeType) -> bytes:
        """A function's instructions; its file, lines and the name of what it stands in are no part of it."""
        numbers = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        handlers = getattr(code, "co_exceptiontable", b"")
        return _tagged("code", [code.co_code, handlers, *map(self.encode, (numbers, names, code.co_consts))])

    def _class(self, cls: type) -> bytes:
        if _should_pickle_by_reference(cls):
            return self._named(cls, cls.__qualname__)
        members = {name: value for name, value in vars(cls).items() if name not in _OF_CLASSES}
        return _tagged("class", [cls.__qualname__, *map(self.encode, (type(cls), cls.__bases__, _in_order(members)))])

    def _named(self, obj: Any, name: str) -> bytes:
        module = getattr(obj, "__module__", None) or "builtins"
        self.modules.add(module)
        return _tagged("name", [module, name])

    def _reduced(self, obj: Any, kind: type) -> bytes:
        """Any other object, as it would be pickled."""
        reduced: Any = self._pickler.reducer_override(obj)
        if reduced is NotImplemented:
            own = self._pickler.dispatch_table.get(kind) or copyreg.dispatch_table.get(kind)
            reduced = own(obj) if own is not None else obj.__reduce_ex__(5)
        if isinstance(reduced, str):
            own = self.encode(_in_order(getattr(obj, "__dict__", {})))  # such as the function that a cache wraps
            return _tagged("global", [self._named(obj, reduced), own])
        make, args, state, items, pairs = (*reduced, None, None, None)[:5]
        contents = (make, args, state, list(items or ()), [tuple(pair) for pair in pairs or ()])
        return _tagged("object", map(self.encode, contents))


_CASES: Mapping[type, Callable[[_Encoder, Any], bytes]] = {
    list: lambda own, obj: own._sequence("list", obj),
    tuple: lambda own, obj: own._sequence("tuple", obj),
    dict: _Encoder._mapping,
    types.MappingProxyType: _Encoder._mapping,
    set: _Encoder._set,
    frozenset: _Encoder._set,
    bytearray: lambda _, obj: _tagged("bytearray", [obj]),
    pickle.PickleBuffer: lambda _, obj: _tagged("buffer", [obj.raw()]),
    types.FunctionType: _Encoder._function,
    types.CodeType: _Encoder._code,
    types.CellType: _Encoder._cell,
    property: lambda own, obj: _tagged("property", map(own.encode, (obj.fget, obj.fset, obj.fdel))),
    classmethod: lambda own, obj: _tagged("classmethod", [own.encode(obj.__func__)]),
    staticmethod: lambda own, obj: _tagged("staticmethod", [own.encode(obj.__func__)]),
}


def _scalar(value: Any) -> bytes:
    kind = type(value)
    if kind is str:
        return _tagged("str", [value])
    if kind is bytes:
        return _tagged("bytes", [value])
    return _tagged("float", [struct.pack("<d", value)]) if kind is float else b"=" + repr(value).encode()


def _tagged(kind: str, parts: Iterable[bytes | bytearray | memoryview | str]) -> bytes:
    """An encoding that no other kind, and no other division of the same bytes, can have."""
    texts = [part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part for part in parts]
    lengths = b"%s %s:" % (kind.encode(), b",".join(b"%d" % memoryview(part).nbytes for part in texts))
    if sum(map(len, texts)) + len(lengths) <= _WHOLE:
        return lengths + b"".join(texts)
    hashed = hashlib.blake2b(lengths, digest_size=_DIGEST)
    for part in texts:
        hashed.update(part)
    return b"#" + hashed.digest()


def _hashed(parts: Iterable[bytes | str]) -> str:
    return hashlib.blake2b(_tagged("parts", parts), digest_size=_DIGEST).hexdigest()


def _pickled(values: list[Any]) -> bytes:
    file = io.BytesIO()
    pickler = pickle.Pickler(file, 5)
    pickler.fast = True  # without memory of which strings are one object
    pickler.dump(values)
    return file.getvalue()


def _in_order(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in sorted(values)}


def _global_names(code: types.CodeType) -> Iterator[str]:
    """The globals that instructions name, those of functions inside the function included."""
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield step.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


def _modules_digest(bundle: CodeBundle) -> bytes:
    """The digest of local modules: of the code of Python's files, of the bytes of others."""
    return _tagged("modules", [part for path, data in bundle.files for part in (path, _source(path, data))])


def _source(path: str, data: bytes) -> bytes:
    if path.endswith(".py"):
        try:
            return ast.dump(ast.parse(data)).encode("utf-8", "surrogatepass")
        except (SyntaxError, ValueError):
            pass  # it cannot be imported there either, and says so if that is tried
    return data


def _shown(args: tuple[Any, ...]) -> str:
    text = repr(args[0]) if len(args) == 1 else repr(args)
    return text if len(text) <= 80 else text[:77] + "..."
