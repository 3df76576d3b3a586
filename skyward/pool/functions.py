"""Calls made ready to be sent: each function is pickled once, each call's arguments once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from skyward.pool.code import CodeBundle, bundle_modules, local_modules
from skyward.runtime.environment import declared_env, is_collective
from skyward.system import threading
from skyward.wire import payload


@dataclass(frozen=True, slots=True)
class Function:
    """A user's function as nodes get it: once per worker, addressed by its number."""

    number: int
    name: str
    data: bytes = field(repr=False)
    bundle: CodeBundle | None = field(repr=False)
    env: Mapping[str, str] = field(default_factory=dict)  # set in the worker before it loads the function
    collective: bool = False  # its ranks form one group when it is called on every node
    only_data: bool = False  # whether its results are read as data only, and its exceptions as text


class Functions:
    """The functions a pool has seen, and whether their results are read as data only.

    A function is a snapshot of the moment it is first sent: what it closes over, and the globals it uses, stay as they
    were then. Equal content is sent once, whichever object holds it.
    """

    def __init__(self, *, only_data: bool = False) -> None:
        self._only_data = only_data
        self._lock = threading.Lock()
        self._by_object: dict[int, tuple[Callable[..., Any], Function]] = {}  # the object is kept, so that its id is
        self._by_digest: dict[bytes, Function] = {}
        self._of_series: dict[tuple[Callable[..., Any], str, frozenset[str]], Function] = {}
        self._numbers = itertools.count(1)

    def get(self, fn: Callable[..., Any]) -> Function:
        """The function as nodes get it.

        Raises:
            SerializationError: it cannot be pickled; the message says what in it cannot.
        """
        known = self._by_object.get(id(fn))
        if known is not None:
            return known[1]
        bundle: CodeBundle = local_modules(fn)
        digest, data = payload.dumps_function(fn)
        with self._lock:
            function = self._by_digest.get(digest)
            if function is None:
                name = getattr(fn, "__qualname__", type(fn).__name__).rpartition("<locals>.")[2]
                env, collective = declared_env(fn), is_collective(fn)
                function = Function(next(self._numbers), name, data, bundle, env, collective, self._only_data)
                self._by_digest[digest] = function
            self._by_object[id(fn)] = (fn, function)
        return function

    def of_series(self, fn: Callable[..., Any], name: str, modules: frozenset[str]) -> Function:
        """A function of ours that runs what it is given: under the name of that, and with the modules that needs."""
        key = (fn, name, modules)
        function = self._of_series.get(key)
        if function is None:
            _, data = payload.dumps_function(fn)
            function = Function(next(self._numbers), name, data, bundle_modules(modules), only_data=self._only_data)
            self._of_series[key] = function
        return function
