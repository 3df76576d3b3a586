"""The functions of a pool: each is pickled once, with the local modules it needs, and sent to each worker once.

At each call, the dependencies sent with a function (`dependencies.py`) are compared with their previous state, name by
name and entry by entry, by identity. If they have changed, the function is pickled again and sent under a new number.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from skyward._pool.code.bundle import MAIN, CodeBundle, bundle_modules, imported_by_main, local_modules
from skyward._pool.code.dependencies import LoadedModules, Watch
from skyward.runtime.environment import declared_env, is_collective
from skyward.system import threading
from skyward.wire import payload
from skyward.wire.messages import encode


@dataclass(frozen=True, slots=True)
class Function:
    """A user's function as it is sent: once per worker, identified by its number.

    Attributes:
        latest: current content of the bundle's files, by path; files that are not in it are as in the bundle.
        replaces: number of the same function before its dependencies changed; 0 for none.
    """

    number: int
    name: str
    data: bytes = field(repr=False)
    bundle: CodeBundle | None = field(repr=False)
    env: Mapping[str, str] = field(default_factory=dict)  # set in the worker before it loads the function
    collective: bool = False  # whether its ranks form one group when it is called on every node
    latest: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    replaces: int = 0

    def wishes(self) -> tuple[bytes, ...]:
        """Return the encoded options sent beside its pickle, if any: environment, `collective`, `replaces`."""
        asked: dict[str, Any] = {"replaces": self.replaces} if self.replaces else {}
        if self.env or self.collective:
            asked |= {"env": dict(self.env), "collective": self.collective}
        return (encode(asked),) if asked else ()

    def files(self) -> list[tuple[str, bytes]]:
        """Return paths and current contents of the local modules that it needs."""
        latest = self.latest
        return [] if self.bundle is None else [(path, latest.get(path, data)) for path, data in self.bundle.files]


class Functions:
    """The functions that a pool has been called with.

    Equal content is sent once, even if it belongs to several objects.

    Args:
        tell: prints warnings, once per function, about globals whose changes are not detected.
    """

    def __init__(self, *, tell: Callable[[str], object] = lambda _line: None) -> None:
        self._tell = tell
        self._lock = threading.RLock()
        self._modules = LoadedModules()
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

    def of_series(self, fn: Callable[..., Any], name: str, modules: frozenset[str]) -> Function:
        """Return a function of skyward that runs user code, under that code's name and with the modules it needs."""
        key = (fn, name, modules)
        known, generation = self._of_series.get(key), self._modules.generation()
        if known is not None and known.is_current(generation):
            return known.function
        with self._lock:
            bundle = bundle_modules(modules, self._modules.get)
            _, data = payload.dumps_function(fn)
            replaces = known.function.number if known is not None else 0
            latest = self._modules.latest
            function = Function(next(self._numbers), name, data, bundle, latest=latest, replaces=replaces)
            self._of_series[key] = _Snapshot(fn, function, None, generation)
        return function

    def _taken(self, fn: Callable[..., Any], known: _Snapshot | None) -> Function:
        """Return the function in its present state, and record that."""
        generation, watch = self._modules.generation(), Watch(fn)  # first, so that the next call detects later changes
        bundle: CodeBundle = local_modules(fn, self._modules.get)
        digest, data = payload.dumps_function(fn)
        same = self._by_digest.get(digest)
        function = _with_files(same, bundle) if same is not None else None
        if function is None:
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
                old.number if old is not None else 0,
            )
        self._by_digest[digest] = function
        self._by_object[id(fn)] = _Snapshot(fn, function, watch, generation)
        if watch.beyond and known is None:
            self._say(function.name, watch.beyond)
        return function

    def _forget(self, old: Function) -> None:
        for digest, function in self._by_digest.items():
            if function.number == old.number:
                del self._by_digest[digest]
                return

    def _say(self, function: str, beyond: Mapping[str, str]) -> None:
        names = ", ".join(f"{name} (a {kind})" if name else f"a {kind}" for name, kind in beyond.items())
        self._tell(
            f"{function}() is sent with {names}: changes inside of it are not noticed, since it is too large to be "
            "compared at each call, or of a kind that cannot be. After a change assign it anew, or pass it as an "
            "argument."
        )


class _Snapshot:
    """A function as it was last sent, with the state needed to detect changes."""

    __slots__ = ("_fn", "_generation", "_imported", "_main", "_size", "_watch", "function")

    def __init__(self, fn: Callable[..., Any], function: Function, watch: Watch | None, generation: int) -> None:
        self._fn = fn  # the reference keeps its id from being reused
        self.function, self._generation = function, generation
        self._watch = None if watch is None or watch.is_empty else watch
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
        return generation == self._generation and (self._watch is None or self._watch.unchanged())


def _with_files(function: Function, bundle: CodeBundle) -> Function | None:
    """Return a known function, extended by new files of the bundle; None if one of its files has changed."""
    known = dict(function.bundle.files) if function.bundle is not None else {}
    files = dict(bundle.files)
    if any(path in known and known[path] != data for path, data in files.items()):
        return None
    if files.keys() <= known.keys():
        return function
    return replace(function, bundle=CodeBundle.of(known | files))
