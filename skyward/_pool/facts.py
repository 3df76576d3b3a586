"""Facts about an open pool: its size, its state, its times."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skyward._pool.config import PoolConfig
from skyward._pool.nodes.node_client import NodeClient
from skyward._pool.nodes.node_table import NodeTable
from skyward._pool.progress import Progress
from skyward.errors import PoolError

if TYPE_CHECKING:
    from distributed import Client


class Facts:
    """The properties of `ComputePool`."""

    _running: bool
    _settings: PoolConfig
    _table: NodeTable
    _progress: Progress
    _dask: Client | None = None  # while the plugin of that name has it connected

    @property
    def is_active(self) -> bool:
        """Whether the pool is open."""
        return self._running

    @property
    def concurrency(self) -> int:
        """Calls at once on each node; on each rank, where a node has several."""
        return self._settings.worker.concurrency

    @property
    def instance_count(self) -> int:
        """How many nodes the pool has now; before it is open, how many it was asked for."""
        return self._table.count if self._running else self._settings.nodes.desired

    @property
    def workers_per_instance(self) -> int:
        """Ranks on each node."""
        return self._settings.worker.ranks

    @property
    def total_slots(self) -> int:
        """Calls at once in the whole pool, on the nodes that it has now."""
        return self.concurrency * self.workers_per_instance * self.instance_count

    @property
    def stages(self) -> dict[str, float]:
        """Seconds spent in the stages of this pool so far: "image", "start", and after its end "stop"."""
        return dict(self._progress.stages)

    @property
    def dask(self) -> Client:
        """Dask's client, connected to the cluster on this pool's nodes; takes `plugins=[sky.plugins.dask()]`.

        Raises:
            PoolError: the pool has not that plugin, or is not open.
        """
        if self._dask is None:
            raise PoolError("pool.dask takes an open pool with plugins=[sky.plugins.dask()].")
        return self._dask

    def _head(self) -> NodeClient:
        """Node 0 as it is now; waits while it is being started or replaced.

        Raises:
            PoolError: it could not be had.
        """
        return self._table.wait_for(0)

    def current_nodes(self) -> int:
        """How many nodes take calls now; one that is being started or replaced does not."""
        # at the pool's end as well, when the plugins on the client leave before the nodes do
        return self._table.count
