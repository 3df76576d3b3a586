"""Runs of functions in the process that calls them: coroutines to their end, and `.local`, as on a pool's only node."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from typing import Any, ParamSpec, TypeVar, cast

from skyward.model.instance import only_node

P = ParamSpec("P")
R = TypeVar("R")
_JOB = "local"


def run_coroutine(coroutine: Coroutine[Any, Any, R]) -> R:
    """What a coroutine returns, in an event loop of its own."""
    import asyncio  # slow to import, and few need it

    return asyncio.run(coroutine)


def running(fn: Callable[P, R]) -> Callable[P, R]:
    """The function as an ordinary one that finds itself on the only node of a pool, where it has no place already."""

    @functools.wraps(fn)
    def local(*args: P.args, **kwargs: P.kwargs) -> R:
        with only_node(_JOB):
            result: Any = fn(*args, **kwargs)
            if inspect.iscoroutinefunction(fn):
                result = run_coroutine(result)
            if inspect.isgenerator(result):
                result = _steps(result, copy_context())
            return cast(R, result)

    return local


def _steps(body: Generator[Any, Any, Any], context: Context) -> Generator[Any, Any, Any]:
    """Iterate a generator whose own code, and only that, runs in the context."""
    sent = None
    try:
        while True:
            try:
                item = context.run(body.send, sent)
            except StopIteration as end:
                return end.value
            sent = yield item
    finally:
        context.run(body.close)
