"""The functions of a pool: each is pickled once, with the local modules it needs, and sent to each worker once.

Each operator sends a function as it is at that moment: if its pickle has changed, it is sent again under a new number.
Pickling is skipped where comparing objects by identity shows that nothing can have changed.
"""

from __future__ import annotations

import dis
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from operator import is_
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    EllipsisType,
    FunctionType,
    GenericAlias,
    ModuleType,
    NoneType,
    NotImplementedType,
)
from typing import Any

from skyward._pool.code.bundle import MAIN, CodeBundle, bundle_modules, imported_by_main, local_modules
from skyward._pool.code.reloads import LoadedModules
from skyward.runtime.environment import declared_env, is_collective
from skyward.system import threading
from skyward.wire import payload
from skyward.wire.messages import encode

_MISSING = object()
_FIXED = frozenset(
    {int, float, complex, bool, str, bytes, range, slice, NoneType, EllipsisType, NotImplementedType, object}
    | {ModuleType, BuiltinFunctionType, GenericAlias, re.Pattern}
)


@dataclass(frozen=True, slots=True)
class Function:
    """A user's function as it is sent: once per worker, identified by its number.

    Attributes:
        latest: current content of the bundle's files, by path; files that are not in it are as in the bundle.
    """

    number: int
    name: str
    data: bytes = field(repr=False)
    bundle: CodeBundle | None = field(repr=False)
    env: Mapping[str, str] = field(default_factory=dict)  # set in the worker before it loads the function
    collective: bool = False  # whether its ranks form one group when it is called on every node
    latest: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    def wishes(self) -> tuple[bytes, ...]:
        """Return the encoded requirements sent beside its pickle, if any: `env` and `collective`."""
        wishes = {"env": dict(self.env), "collective": self.collective}
        return (encode(wishes),) if any(wishes.values()) else ()

    def files(self) -> list[tuple[str, bytes]]:
        """Return paths and current contents of the local modules that it needs."""
        latest = self.latest
        return [] if self.bundle is None else [(path, latest.get(path, data)) for path, data in self.bundle.files]


class Functions:
    """The functions that a pool has been called with.

    Equal content is sent once, even if it belongs to several objects.

    Args:
        tell: prints warnings about modules whose file was edited.

    """

    def __init__(self, *, tell: Callable[[str], object] = lambda _line: None) -> None:
        self._lock = threading.RLock()
        self._modules = LoadedModules(tell, Path.cwd())
        self._by_object: dict[int, _Snapshot] = {}
        self._by_digest: dict[bytes, Function] = {}
        self._of_series: dict[tuple[Callable[..., Any], str, frozenset[str]], _Snapshot] = {}
        self._numbers = itertools.count(1)

    def get(self, fn: Callable[..., Any]) -> Function:
        """Return the function as it is sent to nodes.

        Raises:
            SerializationError: it cannot be pickled; the message says what in it cannot.
        """
        known = self._by_object.get(id(fn))
        if known is not None and known.is_current(self._modules.generation()):
            return known.function
        with self._lock:
            return self._taken(fn, known)

    def once(self) -> Callable[[Callable[..., Any]], Function]:
        """Return `get` for the calls of one operator, which compares each function once."""
        found: dict[int, Function] = {}

        def get(fn: Callable[..., Any]) -> Function:
            known = found.get(id(fn))
            if known is None:
                known = found[id(fn)] = self.get(fn)
            return known

        return get

    def of_series(self, fn: Callable[..., Any], name: str, modules: frozenset[str]) -> Function:
        """Return a function of skyward that runs user code, under that code's name and with the modules it needs."""
        key = (fn, name, modules)
        known, generation = self._of_series.get(key), self._modules.generation()
        if known is not None and known.is_current(generation):
            return known.function
        with self._lock:
            bundle = bundle_modules(modules, self._modules)
            _, data = payload.dumps_function(fn)
            function = Function(next(self._numbers), name, data, bundle, latest=self._modules.latest)
            self._of_series[key] = _Snapshot(fn, function, None, generation)
        return function

    def _taken(self, fn: Callable[..., Any], known: _Snapshot | None) -> Function:
        """Return the function in its present state, and record that."""
        generation, watch = self._modules.generation(), Watch(fn)  # first, so that the next call detects later changes
        bundle: CodeBundle = local_modules(fn, self._modules)
        digest, data = payload.dumps_function(fn)
        function = same = self._by_digest.get(digest)
        if function is None or function.bundle != bundle:
            old = same or (known.function if known is not None else None)
            if old is not None:
                self._forget(old)
            function = Function(
                next(self._numbers),
                getattr(fn, "__qualname__", type(fn).__name__).rpartition("<locals>.")[2],
                data,
                bundle,
                declared_env(fn),
                is_collective(fn),
                self._modules.latest,
            )
        self._by_digest[digest] = function
        self._by_object[id(fn)] = _Snapshot(fn, function, watch, generation)
        return function

    def _forget(self, old: Function) -> None:
        for digest, function in self._by_digest.items():
            if function.number == old.number:
                del self._by_digest[digest]
                return


class _Snapshot:
    """A function as it was last sent, with the state needed to detect changes."""

    __slots__ = ("_fn", "_generation", "_imported", "_main", "_size", "_watch", "function")

    def __init__(self, fn: Callable[..., Any], function: Function, watch: Watch | None, generation: int) -> None:
        self._fn = fn  # the reference keeps its id from being reused
        self.function, self._generation = function, generation
        self._watch = watch
        self._main: dict[str, Any] | None = None
        if getattr(fn, "__module__", None) in MAIN and hasattr(fn, "__globals__"):
            self._main = fn.__globals__
            self._size, self._imported = len(fn.__globals__), set(imported_by_main(fn.__globals__))

    def is_current(self, generation: int) -> bool:
        """Return whether nothing sent with the function has changed."""
        main = self._main
        if main is not None and len(main) != self._size:
            if set(imported_by_main(main)) != self._imported:
                return False
            self._size = len(main)
        if generation != self._generation:
            return False
        return self._watch is None or self._watch.unchanged(self._fn, self.function.data)


class Watch:
    """Detects changes of what is sent with one function.

    If that is functions and values that cannot change, objects are compared by identity, which takes 20 ns each. In any
    other case the function is pickled and its pickle compared, which runs what pickling runs and nothing else.

    Args:
        fn: the function, which is about to be pickled.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._states: list[tuple[FunctionType, tuple[str, ...], list[Any]]] = []
        self._is_fixed = self._walk(fn)

    def unchanged(self, fn: Callable[..., Any], data: bytes) -> bool:
        """Return whether the function would still be pickled as `data`."""
        if not self._is_fixed:
            return payload.pickles_as(fn, data)
        return all(all(map(is_, _state(each, names), state)) for each, names, state in self._states)

    def _walk(self, fn: Any) -> bool:
        """Register all functions sent with this one; return whether there is nothing else that can change."""
        seen: dict[int, Any] = {}  # by id; references keep ids from being reused
        todo: list[Any] = [fn]
        while todo:
            obj = todo.pop()
            kind = type(obj)
            if kind in _FIXED or id(obj) in seen:
                continue
            seen[id(obj)] = obj
            if kind is FunctionType:
                if not payload.is_importable(obj):
                    if obj.__dict__:
                        return False
                    names = tuple(dict.fromkeys(global_names(obj.__code__)))
                    state = _state(obj, names)
                    self._states.append((obj, names, state))
                    todo += [*state[_VALUES:], *(obj.__kwdefaults__ or {}).values()]
            elif issubclass(kind, type):
                if not payload.is_importable(obj):
                    return False
            elif kind is tuple or kind is frozenset:
                todo += obj
            elif kind.__module__.partition(".")[0] == "skyward":  # frozen, such as a compute function
                todo.append(getattr(obj, "fn", None))
            else:
                return False
        return True


_VALUES = 3  # index in a state of the first value that is sent as well


def _state(fn: FunctionType, names: Sequence[str]) -> list[Any]:
    """Return the objects that make up a function of `__main__`, whose code uses these globals."""
    return [
        fn.__code__,
        bool(fn.__dict__),
        fn.__kwdefaults__,
        fn.__defaults__,
        *map(_content, fn.__closure__ or ()),
        *map(fn.__globals__.get, names, repeat(_MISSING)),
    ]


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return _MISSING


def global_names(code: CodeType) -> Iterator[str]:
    """Yield the globals that code uses, including nested functions."""
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield step.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from global_names(constant)
