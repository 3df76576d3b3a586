"""`async def` functions on nodes: each call runs to its end in an event loop of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def run(coroutine: Coroutine[Any, Any, R]) -> R:
    """What a coroutine returns."""
    import asyncio  # slow to import, and few need it

    return asyncio.run(coroutine)


def running(fn: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, R]:
    """The same as an ordinary function."""

    @functools.wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return run(fn(*args, **kwargs))

    return call
