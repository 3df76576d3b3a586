"""`sky.instance_info()`: the place of this process in its pool."""

from __future__ import annotations

from skyward.model.instance import InstanceInfo


def instance_info() -> InstanceInfo | None:
    """Tell this process's place in the pool: node, rank, head address, peers.

    Returns:
        The place, read from the environment that the pool gave this worker; None outside a pool.
        In a run by `.local` it is that of the only node of a pool.

    Raises:
        ConfigError: `COMPUTE_POOL` is set, but not to a document a pool has made.
    """
    return InstanceInfo.current()
