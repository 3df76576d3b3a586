"""`sky.instance_info()`, the place of this process in its pool, and `gather`: a value of every rank for all of them.

`gather` works inside hooks and inside calls made with `@`. It is for what ranks must agree on before a framework
connects them (an address, a port, who can reach whom), not for data. It needs no network between the nodes: values
travel over the connections that the pool has anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from skyward.errors import ConfigError, PluginError
from skyward.model.instance import InstanceInfo

GatherClient = Callable[[Any, str, "float | None"], list[Any]]
_client: GatherClient | None = None  # the worker's; None in processes that are no workers


def instance_info() -> InstanceInfo | None:
    """Tell this process's place in the pool: node, rank, head address, peers.

    Returns:
        The place, read from the environment that the pool gave this worker; None outside a pool.
        In a run by `.local` it is that of the only node of a pool.

    Raises:
        ConfigError: `COMPUTE_POOL` is set, but not to a document a pool has made.
    """
    return InstanceInfo.current()


def gather(value: Any, *, name: str, timeout_s: float | None = None) -> list[Any]:
    """Give `value` to all ranks and take theirs. Every rank calls it, in the same order, with the same `name`.

    Args:
        value: anything that can be pickled; small, since every rank gets all of them by way of the client.
        name: what errors call this gather, such as "torch: address".
        timeout_s: how long the first rank to come waits for the last. None for what is left of the pool's
            `provision_timeout` while plugins are set up, 60 s in a call.

    Returns:
        The values in the order of the ranks. With one rank, and outside a pool, `[value]`, at once.

    Raises:
        PluginError: a rank did not come in time, ended or failed meanwhile, or gathers something else: it is named.
            At once where not all ranks take part: in a call that runs on one rank only, in a process or at a time
            that belongs to no call.
        SerializationError: `value` cannot be pickled.
        ConfigError: `name` or `timeout_s` is not what it should be.
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


def install(client: GatherClient) -> None:
    """Let `gather` use this worker's connection; called by the runner."""
    global _client
    _client = client
