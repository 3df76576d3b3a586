"""Contexts that outlive the call that entered them: once per process, left in reverse order when the worker ends.

What a decorator sets up at the first call of a function (a process group, say) is still there at the next one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, ExitStack
from typing import TypeVar, cast

T = TypeVar("T")

_lock = threading.RLock()  # a context may enter another one
_contexts = ExitStack()
_values: dict[Hashable, object] = {}


def enter(key: Hashable, make: Callable[[], AbstractContextManager[T]]) -> T:
    """Enter a context unless that has been done in this process; other threads wait until it has.

    Args:
        key: what the context is known by.
        make: makes the context manager; not called when the context is open already.

    Returns:
        What the context manager gave when it was entered.

    Raises:
        Whatever entering it raises: it is then not open, and the next call tries again.
    """
    with _lock:
        if key not in _values:
            _values[key] = _contexts.enter_context(make())
        return cast(T, _values[key])


def leave() -> None:
    """Leave all contexts, the last entered first; called by the runner when the worker ends.

    Raises:
        The first error of a context that failed to leave; all have been left.
    """
    with _lock:
        _values.clear()
        _contexts.close()
