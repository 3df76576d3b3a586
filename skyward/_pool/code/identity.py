"""Digests of a function's code and of its arguments that are the same in every process.

Pickles are unsuitable: they depend on the order of sets, on which strings are one object, on line numbers and on random
names in cloudpickle. Here a value is encoded by its contents. A function that is pickled by value is encoded as its
instructions, constants, defaults, closure and the globals it uses; one whose module is sent as a file or installed, as
its name. The same holds for classes. The digest of a local module covers its code without comments.
"""

from __future__ import annotations

import ast
import copyreg
import hashlib
import io
import pickle
import struct
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from skyward._pool.code.bundle import CodeBundle, bundle_modules, local_modules
from skyward._pool.code.functions import global_names
from skyward.errors import SerializationError
from skyward.runtime.environment import declared_env
from skyward.wire import payload, tensors

_SCALARS = frozenset({int, float, bool, str, bytes, types.NoneType})
_WHOLE = 64  # longest encoding in bytes; longer ones are replaced by their digest
_DIGEST = 16
# created by the class statement or by Python; none of it affects what methods do
_OF_CLASSES = frozenset(
    {"__dict__", "__weakref__", "__module__", "__doc__", "__annotations__", "__annotate__", "__annotate_func__"}
    | {"__annotations_cache__", "__static_attributes__", "__firstlineno__", "__abstractmethods__", "_abc_impl"}
    | {"__orig_bases__", "__parameters__", "__type_params__", "__slotnames__"}
)
_DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType, types.WrapperDescriptorType)


def code_digest(fn: Callable[..., Any]) -> str:
    """Return the digest (hex) of a function's code and of all values and local modules sent with it.

    Raises:
        SerializationError: it refers to something that has no stable encoding.
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
    """Computes digests of the arguments of one function's calls; caches those of modules."""

    def __init__(self) -> None:
        self._modules: dict[str, bytes] = {}

    def digest(self, args: tuple[Any, ...], *, of: str) -> str:
        """Return the digest (hex) of the arguments of the function named `of`.

        Raises:
            SerializationError: one of them has no stable encoding.
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
    """Encodes values as bytes, tagged by kind: small ones whole, large ones as digests.

    Attributes:
        modules: modules of objects that were encoded by name.
    """

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self._inside: dict[int, int] = {}  # depth of each object that is being encoded, by id
        self._known: dict[int, tuple[Any, bytes]] = {}  # encodings, with references that keep ids from being reused
        self._pickler = payload.Pickler(io.BytesIO(), 5, lambda _buffer: False)

    def encode(self, obj: Any) -> bytes:
        """Return the encoding of a value.

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
        except ValueError:  # it is empty, since its variable is not assigned yet
            return _tagged("cell", [])

    def _sequence(self, what: str, items: list[Any] | tuple[Any, ...]) -> bytes:
        if len(items) > _WHOLE and set(map(type, items)) <= _SCALARS:
            return _tagged(what, [_pickled(list(items))])  # equally exact, and a hundred times as fast
        return _tagged(what, [b"%d" % len(items), *map(self.encode, items)])

    def _function(self, fn: types.FunctionType) -> bytes:
        if payload.is_importable(fn):
            return self._named(fn, fn.__qualname__)
        names = {name: fn.__globals__[name] for name in global_names(fn.__code__) if name in fn.__globals__}
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
        """Encode a function's instructions, without its file, lines and qualified name."""
        numbers = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
        handlers = getattr(code, "co_exceptiontable", b"")
        return _tagged("code", [code.co_code, handlers, *map(self.encode, (numbers, names, code.co_consts))])

    def _class(self, cls: type) -> bytes:
        if payload.is_importable(cls):
            return self._named(cls, cls.__qualname__)
        members = {name: value for name, value in vars(cls).items() if name not in _OF_CLASSES}
        return _tagged("class", [cls.__qualname__, *map(self.encode, (type(cls), cls.__bases__, _in_order(members)))])

    def _named(self, obj: Any, name: str) -> bytes:
        module = getattr(obj, "__module__", None) or "builtins"
        self.modules.add(module)
        return _tagged("name", [module, name])

    def _reduced(self, obj: Any, kind: type) -> bytes:
        """Encode any other object by the way it would be pickled."""
        reduced: Any = self._pickler.reducer_override(obj)
        if reduced is NotImplemented:
            own = self._pickler.dispatch_table.get(kind) or copyreg.dispatch_table.get(kind)
            reduced = own(obj) if own is not None else obj.__reduce_ex__(5)
        if isinstance(reduced, str):
            own = self.encode(_in_order(getattr(obj, "__dict__", {})))  # such as the function wrapped by a cache
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
    """Encode parts unambiguously: other kinds, or other divisions of the same bytes, have other encodings."""
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
    pickler.fast = True  # without memoisation, which depends on which strings are one object
    pickler.dump(values)
    return file.getvalue()


def _in_order(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in sorted(values)}


def _modules_digest(bundle: CodeBundle) -> bytes:
    """Return the digest of local modules: of the syntax tree of Python files, of the bytes of others."""
    return _tagged("modules", [part for path, data in bundle.files for part in (path, _source(path, data))])


def _source(path: str, data: bytes) -> bytes:
    if path.endswith(".py"):
        try:
            return ast.dump(ast.parse(data)).encode("utf-8", "surrogatepass")
        except (SyntaxError, ValueError):
            pass  # importing it on a node fails with this error too
    return data


def _shown(args: tuple[Any, ...]) -> str:
    text = repr(args[0]) if len(args) == 1 else repr(args)
    return text if len(text) <= 80 else text[:77] + "..."
