"""`.local` of a compute function: a run in the program's own process, as on the only node of a pool."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator
from contextvars import Context, copy_context
from typing import Any, ParamSpec, TypeVar

from skyward.model.instance import only_node
from skyward.runtime import coroutines

P = ParamSpec("P")
R = TypeVar("R")
_JOB = "local"


def running(fn: Callable[P, R]) -> Callable[P, R]:
    """The function as an ordinary one that finds itself on the only node of a pool, where it has no place already."""
    run: Callable[P, R] = coroutines.running(fn) if inspect.iscoroutinefunction(fn) else fn

    @functools.wraps(run)
    def local(*args: P.args, **kwargs: P.kwargs) -> R:
        with only_node(_JOB):
            result = run(*args, **kwargs)
            if inspect.isgenerator(result):
                return _steps(result, copy_context())  # type: ignore[return-value] # a generator in a generator's place
            return result

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
