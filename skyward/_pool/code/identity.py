"""Digests of a function's code and of its arguments that are the same in every process.

Ordinary pickles are unsuitable: they depend on the order of sets, on which strings are one object, on line numbers and
on random names in cloudpickle. Here a value is pickled without these and hashed. A function that is sent by value is
represented by its instructions, constants, defaults, closure and the globals it uses; one whose module is sent as a
file or installed, by its name. The same holds for classes. The digest of a local module covers its code without
comments.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import pickle
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from skyward._pool.code.bundle import CodeBundle, bundle_modules, local_modules
from skyward._pool.code.functions import global_names
from skyward.errors import SerializationError
from skyward.runtime.environment import declared_env
from skyward.wire import payload, tensors

_ATOMS = frozenset({int, float, complex, bool, str, bytes, types.NoneType})
_CONTAINERS = frozenset({list, tuple, dict, bytearray, pickle.PickleBuffer})
_DIGEST = 16
_PYTHON_CLASS = 1 << 9  # Py_TPFLAGS_HEAPTYPE; others, such as the type of mapping proxies, are Python's own
# created by the class statement or by Python; none of it affects what methods do
_OF_CLASSES = frozenset(
    {"__dict__", "__weakref__", "__module__", "__doc__", "__annotations__", "__annotate__", "__annotate_func__"}
    | {"__annotations_cache__", "__static_attributes__", "__firstlineno__", "__abstractmethods__", "_abc_impl"}
    | {"__orig_bases__", "__parameters__", "__type_params__", "__slotnames__"}
)
_FAILURES = (TypeError, ValueError, pickle.PicklingError, RecursionError)


def code_digest(fn: Callable[..., Any]) -> str:
    """Return the digest (hex) of a function's code and of all values and local modules sent with it.

    Raises:
        SerializationError: it refers to something that has no stable form.
    """
    name = getattr(fn, "__qualname__", type(fn).__name__)
    try:
        code, env = _digest(fn, set()), repr(sorted(declared_env(fn).items()))
    except _FAILURES as error:
        raise SerializationError(
            f"The code of {name}() cannot be distinguished from other versions of it, which a journal needs: {error}. "
            "Create what cannot be pickled inside the function."
        ) from error
    return _hashed([code, _modules_digest(local_modules(fn)), env.encode()])


class Arguments:
    """Computes digests of the arguments of one function's calls; caches those of modules."""

    def __init__(self) -> None:
        self._modules: dict[str, bytes] = {}

    def digest(self, args: tuple[Any, ...], *, of: str) -> str:
        """Return the digest (hex) of the arguments of the function named `of`.

        Raises:
            SerializationError: one of them has no stable form.
        """
        modules = set[str]()
        try:
            whole = _digest(args, modules)
        except _FAILURES as error:
            raise SerializationError(
                f"The argument {_shown(args)} of {of}() cannot be distinguished from others, which a journal "
                f"needs: {error}."
            ) from error
        return _hashed([whole, *(self._module(name) for name in sorted(modules))])

    def _module(self, name: str) -> bytes:
        if name not in self._modules:
            self._modules[name] = _modules_digest(bundle_modules([name]))
        return self._modules[name]


def _digest(value: Any, modules: set[str], seen: Mapping[int, tuple[int, Any]] = types.MappingProxyType({})) -> bytes:
    """Return the digest of a value; the modules of what it refers to by name are added to `modules`."""
    hashed = hashlib.blake2b(digest_size=_DIGEST)
    pickler = _Pickler(types.SimpleNamespace(write=hashed.update), 5)
    pickler.fast = True  # without memoisation, which depends on which strings are one object
    pickler.modules, pickler.seen = modules, dict(seen)
    pickler.dump(value)
    return hashed.digest()


class _Pickler(payload.Pickler):
    """Pickles values in a form that is the same in every process.

    Attributes:
        modules: modules of objects that were pickled by name.
        seen: a number for each object so far, by id, with a reference that keeps the id from being reused.
    """

    modules: set[str]
    seen: dict[int, tuple[int, Any]]

    def persistent_id(self, obj: Any) -> Any:  # called for each object, before it is pickled in any other way
        kind = type(obj)
        if kind in _ATOMS or kind in _CONTAINERS:
            return None
        if kind is set or kind is frozenset:
            return kind.__name__, sorted(_digest(each, self.modules, self._outside(each)) for each in obj)
        if (known := self.seen.get(id(obj))) is not None:
            return known[0]
        self.seen[id(obj)] = len(self.seen), obj
        if issubclass(kind, types.ModuleType):
            self.modules.add(obj.__name__)
            return "module", obj.__name__
        if isinstance(obj, types.FunctionType | type):
            return self._named_or_whole(obj)
        if form := _FORMS.get(kind):
            return form(obj)
        if tensors.is_storage(kind):
            return "storage", str(getattr(obj, "dtype", "")), tensors.content(obj)
        return None

    def _named_or_whole(self, obj: types.FunctionType | type) -> Any:
        if payload.is_importable(obj):
            self.modules.add(obj.__module__)
            return None
        if isinstance(obj, types.FunctionType):
            return _function(obj)
        return _class(obj) if obj.__flags__ & _PYTHON_CLASS else ("class", obj.__qualname__)

    def _outside(self, item: Any) -> Mapping[int, tuple[int, Any]]:
        """Return what an item of a set may refer to; each item is pickled as if it were the only one."""
        return {} if type(item) in _ATOMS else self.seen


def _function(fn: types.FunctionType) -> tuple[Any, ...]:
    names = {name: fn.__globals__[name] for name in global_names(fn.__code__) if name in fn.__globals__}
    values = fn.__defaults__, fn.__kwdefaults__, fn.__closure__, _in_order(fn.__dict__), _in_order(names)
    return "function", fn.__name__, fn.__code__, *values


def _code(code: types.CodeType) -> tuple[Any, ...]:
    """Return a function's instructions, without its file, lines and qualified name."""
    numbers = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    return "code", code.co_code, getattr(code, "co_exceptiontable", b""), numbers, names, code.co_consts


def _class(cls: type) -> tuple[Any, ...]:
    members = {name: value for name, value in vars(cls).items() if name not in _OF_CLASSES}
    return "class", cls.__qualname__, type(cls), cls.__bases__, _in_order(members)


def _cell(cell: types.CellType) -> tuple[Any, ...]:
    try:
        return "cell", cell.cell_contents
    except ValueError:  # it is empty, since its variable is not assigned yet
        return ("cell",)


def _descriptor(obj: Any) -> tuple[str, str]:
    return "descriptor", obj.__name__


_FORMS: Mapping[type, Callable[[Any], tuple[Any, ...]]] = {
    types.CodeType: _code,
    types.CellType: _cell,
    types.MemberDescriptorType: _descriptor,
    types.GetSetDescriptorType: _descriptor,
    types.WrapperDescriptorType: _descriptor,
    functools._lru_cache_wrapper: lambda cached: ("cached", cached.__wrapped__),
}


def _hashed(parts: Iterable[bytes]) -> str:
    return hashlib.blake2b(pickle.dumps(list(parts), 5), digest_size=_DIGEST).hexdigest()


def _in_order(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in sorted(values)}


def _modules_digest(bundle: CodeBundle) -> bytes:
    """Return the digest of local modules: of the syntax tree of Python files, of the bytes of others."""
    return _digest([(path, _source(path, data)) for path, data in bundle.code()], set())


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
