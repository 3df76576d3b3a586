"""`@sky.stdout`, `@sky.stderr`, `@sky.silent`: which nodes of a pool may print. They go below `@sky.compute`.

Muting is per call. It covers what Python code prints while the call (or the generator's own body) runs, in its thread
and in threads it starts while it is the worker's only task. Subprocesses, C code and NCCL write past it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator
from types import GeneratorType
from typing import Any, Literal, ParamSpec, TypeVar

from skyward.errors import ConfigError
from skyward.model.instance import InstanceInfo
from skyward.runtime.output import StreamName, muted

P = ParamSpec("P")
R = TypeVar("R")
Only = Literal["head"] | Callable[[InstanceInfo], bool]


def stdout(*, only: Only) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let only some workers print to standard output; on the others what the function prints is dropped.

    Args:
        only: "head" for the head alone, or a predicate over `InstanceInfo`, asked at every call.

    Raises:
        ConfigError: `only` is neither.
    """
    return _only_on(_predicate(only, "stdout"), frozenset(("stdout",)))


def stderr(*, only: Only) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let only some workers print to standard error; see `stdout`."""
    return _only_on(_predicate(only, "stderr"), frozenset(("stderr",)))


def silent(fn: Callable[P, R]) -> Callable[P, R]:
    """Drop what the function prints to standard output and standard error, on every node. Used without parentheses."""
    if not callable(fn):
        raise ConfigError(f"@sky.silent decorates a function and takes no arguments; found {fn!r}.")
    return _mutable(fn, _nowhere, frozenset(("stdout", "stderr")))


def _predicate(only: object, name: str) -> Callable[[InstanceInfo], bool]:
    if only == "head":
        return _on_head
    if callable(only):
        return only
    raise ConfigError(
        f'@sky.{name}(only=...) takes "head" or a function of InstanceInfo that returns a bool; found {only!r}.'
    )


def _on_head(info: InstanceInfo) -> bool:
    return info.is_head


def _nowhere(_info: InstanceInfo) -> bool:
    return False


def _only_on(
    may_print: Callable[[InstanceInfo], bool], streams: frozenset[StreamName]
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    def decorate(fn: Callable[P, R]) -> Callable[P, R]:
        return _mutable(fn, may_print, streams)

    return decorate


def _mutable(
    fn: Callable[P, R], may_print: Callable[[InstanceInfo], bool], streams: frozenset[StreamName]
) -> Callable[P, R]:
    if hasattr(fn, "local") and hasattr(fn, "fn"):  # a compute function: calling it runs nothing, so nothing is muted
        raise ConfigError(f"Output decorators go below @sky.compute, next to the function; found one on {fn!r}.")
    # The wrappers travel to the workers by value: they may name functions of this module, but no state of it.
    if inspect.isgeneratorfunction(fn):

        @functools.wraps(fn)
        def generate(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            result = yield from call(fn, may_print, streams, args, kwargs)
            return result

        return generate  # type: ignore[return-value] # it is a generator function as fn is, which R cannot say

    @functools.wraps(fn)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        return call(fn, may_print, streams, args, kwargs)

    return run


def call(
    fn: Callable[..., R],
    may_print: Callable[[InstanceInfo], bool],
    streams: frozenset[StreamName],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> R:
    """Run `fn`, its output dropped where this worker may not print; off-pool, as if it were not decorated."""
    info = InstanceInfo.current()
    if info is None or may_print(info):
        return fn(*args, **kwargs)
    with muted(streams):
        result = fn(*args, **kwargs)
    if isinstance(result, GeneratorType):
        return muted_steps(result, streams)  # type: ignore[return-value] # a generator in the place of a generator
    return result


def muted_steps(body: Generator[Any, Any, Any], streams: frozenset[StreamName]) -> Generator[Any, Any, Any]:
    """Iterate a generator, muted while its own body runs and only then."""
    step: Callable[[], Any] = functools.partial(body.send, None)
    while True:
        with muted(streams):
            try:
                item = step()
            except StopIteration as end:
                return end.value
        try:
            sent = yield item
        except GeneratorExit:
            with muted(streams):
                body.close()
            raise
        except BaseException as error:  # whatever the iterating code throws in belongs to the body
            step = functools.partial(body.throw, error)
        else:
            step = functools.partial(body.send, sent)
