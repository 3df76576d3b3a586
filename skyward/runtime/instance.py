"""`sky.instance_info()`: where this process stands in its pool."""

from __future__ import annotations

from skyward.model.instance import InstanceInfo


def instance_info() -> InstanceInfo | None:
    """Tell this process's place in the pool: node, rank, head address, peers.

    Returns:
        The place, read from the environment that the pool gave this worker; None outside a pool.

    Raises:
        ConfigError: `COMPUTE_POOL` is set, but not to a document a pool has made.
    """
    return InstanceInfo.current()
