"""Properties of a pool (size, state, times), and statistics of its nodes and calls.

`skyward ps` touches the file `watched` in the run's directory. The pool checks its modification time once a second;
while that is recent, it collects statistics every second and writes `stats-POOL.json` beside it. Otherwise nothing is
measured.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skyward._pool.background import Timers
from skyward._pool.dispatcher import Dispatcher
from skyward._pool.nodes.node_client import NodeClient
from skyward._pool.nodes.node_table import NodeTable
from skyward.errors import PoolError
from skyward.model.resource import GpuStats, NodeStats, PoolStats
from skyward.records.run import run_of_process, write_json
from skyward.system import threading, time
from skyward.system.futures import Future

if TYPE_CHECKING:
    from distributed import Client

    from skyward._pool.config import PoolConfig
    from skyward._pool.progress import Progress
ANSWER_S = 2.0  # how long to wait for agents
WATCHED = "watched"  # file in a run's directory, touched by watchers
WATCHED_S = 5.0  # how long a touch counts as watching
EVERY_S = 1.0


class Facts:
    """The properties of `ComputePool`."""

    _running: bool
    _settings: PoolConfig
    _table: NodeTable
    _progress: Progress
    _dask: Client | None = None  # set while the plugin "dask" is connected

    @property
    def is_active(self) -> bool:
        """True while the pool is open."""
        return self._running

    @property
    def concurrency(self) -> int:
        """Number of calls that run at once on each node, or on each rank if a node has several."""
        return self._settings.worker.concurrency

    @property
    def instance_count(self) -> int:
        """Number of nodes that the pool has now; the requested number while it is not open."""
        return self._table.count if self._running else self._settings.nodes.desired

    @property
    def workers_per_instance(self) -> int:
        """Number of ranks on each node."""
        return self._settings.worker.ranks

    @property
    def total_slots(self) -> int:
        """Number of calls that run at once in the whole pool, on its current nodes."""
        return self.concurrency * self.workers_per_instance * self.instance_count

    @property
    def stages(self) -> dict[str, float]:
        """Seconds spent so far in each stage of this pool: "image", "start", and after its end "stop"."""
        return dict(self._progress.stages)

    @property
    def dask(self) -> Client:
        """Dask's client, connected to the cluster on this pool's nodes; requires `plugins=[sky.plugins.dask()]`.

        Raises:
            PoolError: the pool lacks that plugin or is not open.
        """
        if self._dask is None:
            raise PoolError("pool.dask takes an open pool with plugins=[sky.plugins.dask()].")
        return self._dask

    def _head(self) -> NodeClient:
        """Return the current node 0, waiting while it is being started or replaced.

        Raises:
            PoolError: it could not be started or replaced.
        """
        return self._table.wait_for(0)

    def current_nodes(self) -> int:
        """Return the number of nodes that take calls now, without those being started or replaced."""
        # also called while the pool closes, by plugins on the client, which end before the nodes
        return self._table.count


def stats_file(folder: Path, pool: str) -> Path:
    """Return the path of a pool's statistics file in its run's directory."""
    return folder / f"stats-{pool}.json"


def measure(pool: str, table: NodeTable, dispatcher: Dispatcher) -> PoolStats:
    """Ask all connected nodes at once. The figures of a node that does not answer within 2 s are None."""
    nodes_here = [node for node in table.all_nodes() if node.is_connected and node.gone is None]
    asked = [(node, node.usage()) for node in nodes_here]
    deadline = time.monotonic() + ANSWER_S
    for _, answer in asked:
        try:
            answer.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            pass  # its figures remain None
    nodes = {node.index: _of_node(node, answer, dispatcher) for node, answer in asked}
    return PoolStats(
        pool=pool, at=time.time(), nodes=tuple(nodes[index] for index in sorted(nodes)), **dispatcher.counts()
    )


def _of_node(node: NodeClient, answer: Future[dict[str, Any]], dispatcher: Dispatcher) -> NodeStats:
    usage = dict(answer.result()) if answer.done() else {}
    gpus = tuple(GpuStats(**gpu) for gpu in usage.pop("gpus", ()))
    return NodeStats(node=node.index, host=node.address, **dispatcher.counts(node.index), **usage, gpus=gpus)


def show_to_watchers(pool: str, table: NodeTable, dispatcher: Dispatcher, clock: Timers) -> Callable[[], None]:
    """Start writing the pool's statistics while its run is watched; return a function that stops it."""
    try:
        folder = run_of_process()
    except OSError:
        return lambda: None  # this process has no run directory, which the pools' records report
    return StatsWriter(pool, folder, table, dispatcher, clock).close


class StatsWriter:
    """Writes a pool's statistics while its run is watched.

    Args:
        folder: the directory of the run.
    """

    def __init__(self, pool: str, folder: Path, table: NodeTable, dispatcher: Dispatcher, clock: Timers) -> None:
        self._pool, self._folder, self._table, self._dispatcher, self._clock = pool, folder, table, dispatcher, clock
        self._file = stats_file(folder, pool)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        clock.after(EVERY_S, self._look)

    def close(self) -> None:
        """Stop writing and remove the file."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(ANSWER_S + EVERY_S)
        self._file.unlink(missing_ok=True)

    def _look(self) -> None:
        """Write the figures if somebody watches; called every second."""
        if self._ended.is_set():
            return
        if self._is_watched():
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._write, name="skyward-stats", daemon=True)
                self._thread.start()
        elif self._thread is not None:
            self._thread = None
            self._file.unlink(missing_ok=True)
        self._clock.after(EVERY_S, self._look)

    def _is_watched(self) -> bool:
        try:
            return time.time() - (self._folder / WATCHED).stat().st_mtime < WATCHED_S
        except OSError:
            return False

    def _write(self) -> None:
        with suppress(OSError):  # the disk is full, say; watchers report that there are no figures
            write_json(self._file, measure(self._pool, self._table, self._dispatcher).to_dict())
