"""The place of this process among the ranks of its pool: `sky.instance_info()`, `gather`, `.local`.

`gather` works inside hooks and inside calls made with `@`. It is for values that ranks must agree on before a framework
connects them (an address, a port, who can reach whom), not for data. It needs no network between the nodes: values are
sent over the pool's own connections. `.local` runs a function in the calling process, as if on the only node of a pool.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from typing import Any, ParamSpec, TypeVar, cast

from skyward.errors import ConfigError, PluginError
from skyward.model.instance import InstanceInfo, only_node

P = ParamSpec("P")
R = TypeVar("R")
_JOB = "local"
GatherClient = Callable[[Any, str, "float | None"], list[Any]]
_client: GatherClient | None = None  # the worker's; None in processes other than workers


def instance_info() -> InstanceInfo | None:
    """Return this process's place in the pool: node, rank, head address, peers.

    Returns:
        The place, read from the environment that the pool has set for this worker; None outside a pool.
        In a run by `.local` it is that of the only node of a pool.

    Raises:
        ConfigError: `COMPUTE_POOL` is set, but not to a document created by a pool.
    """
    return InstanceInfo.current()


def gather(value: Any, *, name: str, timeout_s: float | None = None) -> list[Any]:
    """Send `value` to all ranks and return theirs. Every rank must call it, in the same order, with the same `name`.

    Args:
        value: anything that can be pickled; small, since every rank receives all of them through the client.
        name: name of this gather in errors, such as "torch: address".
        timeout_s: how long the first rank waits for the last. None for the rest of the pool's `provision_timeout` while
            plugins are set up, 60 s in a call.

    Returns:
        The values in the order of the ranks. With one rank, and outside a pool, `[value]`, at once.

    Raises:
        PluginError: a rank did not call it in time, ended or failed meanwhile, or gathers something else; the error
            names it. Raised at once if not all ranks take part: in a call that runs on one rank only, in a process or
            at a time that belongs to no call.
        SerializationError: `value` cannot be pickled.
        ConfigError: `name` or `timeout_s` is invalid.
    """
    called: object = name
    if not isinstance(called, str) or not called:
        raise ConfigError(f"gather() needs a name that errors can call it by; found {called!r}.")
    if timeout_s is not None and not timeout_s > 0:
        raise ConfigError(f"gather({name!r}): timeout_s must be a number above 0; found {timeout_s!r}.")
    place = InstanceInfo.current()
    if place is None or place.total_workers == 1:
        return [value]
    if _client is None:
        raise PluginError(
            f"gather({name!r}) was called in a process that a worker has started; only the worker itself can gather. "
            "Call it before the process is started, and hand over what it returns."
        )
    return _client(value, name, timeout_s)


def install_gather(client: GatherClient) -> None:
    """Make `gather` use this worker's connection; called by the runner."""
    global _client
    _client = client


def locally(fn: Callable[P, R]) -> Callable[P, R]:
    """Return a function that runs `fn` here as on the only node of a pool, unless this process already has a place."""

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


def _steps(body: Generator[Any, Any, R], context: Context) -> Generator[Any, None, R]:
    """Iterate over a generator, running only its own code in the context."""
    try:
        while True:
            try:
                item = context.run(next, body)
            except StopIteration as end:
                return cast(R, end.value)
            yield item
    finally:
        context.run(body.close)


def run_coroutine(coroutine: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine in a new event loop and return its result."""
    import asyncio  # slow to import, and rarely needed

    return asyncio.run(coroutine)
