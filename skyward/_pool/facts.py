"""What an open pool tells of itself: its size, its state, its times; and what its nodes use and run now.

`skyward top` touches the file `watched` in the run's directory. The pool looks at its time once a second; while it is
young the pool measures itself every second and writes `stats-POOL.json` beside it. Nothing is measured else.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skyward._pool.background import Timers
from skyward._pool.dispatcher import Dispatcher
from skyward._pool.nodes.node_client import NodeClient
from skyward._pool.nodes.node_table import NodeTable
from skyward.errors import PoolError
from skyward.model.resource import GpuStats, NodeStats, PoolStats
from skyward.nodes.process_id import ProcessId
from skyward.records.run import run_of_process, write_json
from skyward.system import threading, time
from skyward.system.futures import Future

if TYPE_CHECKING:
    from distributed import Client

    from skyward._pool.config import PoolConfig
    from skyward._pool.progress import Progress
ANSWER_S = 2.0  # how long agents are waited for
WATCHED = "watched"  # in a run's directory, touched by whoever watches
WATCHED_S = 5.0  # for how long after that somebody does
EVERY_S = 1.0


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


def stats_file(folder: Path, pool: str) -> Path:
    """Where a pool writes its figures, in its run's directory."""
    return folder / f"stats-{pool}.json"


def measure(pool: str, table: NodeTable, dispatcher: Dispatcher) -> PoolStats:
    """Ask all nodes at once that are connected. The figures of one that does not answer in two seconds are None."""
    nodes_here = [node for node in table.all_nodes() if node.is_connected and node.gone is None]
    asked = [(node, node.probe({"step": "usage"})) for node in nodes_here]
    deadline = time.monotonic() + ANSWER_S
    for _, answer in asked:
        try:
            answer.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            pass  # its figures stay unknown
    nodes = {node.index: _of_node(node, answer, dispatcher) for node, answer in asked}
    return PoolStats(
        pool=pool, at=time.time(), nodes=tuple(nodes[index] for index in sorted(nodes)), **dispatcher.load.counts()
    )


def _of_node(node: NodeClient, answer: Future[dict[str, Any]], dispatcher: Dispatcher) -> NodeStats:
    usage = dict(answer.result()) if answer.done() else {}
    gpus = tuple(GpuStats(**gpu) for gpu in usage.pop("gpus", ()))
    return NodeStats(node=node.index, host=node.address, **dispatcher.load.counts_of(node.index), **usage, gpus=gpus)


def show_to_watchers(pool: str, table: NodeTable, dispatcher: Dispatcher, clock: Timers) -> Callable[[], None]:
    """Write the pool's figures whenever somebody watches its run; what is returned ends that."""
    try:
        folder = run_of_process(ProcessId.of(os.getpid()).text)
    except OSError:
        return lambda: None  # nothing is recorded of this process: its pools' records say so
    return StatsWriter(pool, folder, table, dispatcher, clock).close


class StatsWriter:
    """Writes a pool's figures while somebody watches.

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
        """Write nothing any more, and leave no figures."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(ANSWER_S + EVERY_S)
        self._file.unlink(missing_ok=True)

    def _look(self) -> None:
        if self._ended.is_set():
            return
        if self._thread is None and self._is_watched():
            self._thread = threading.Thread(target=self._run, name="skyward-stats", daemon=True)
            self._thread.start()
        self._clock.after(EVERY_S, self._look)

    def _is_watched(self) -> bool:
        try:
            return time.time() - (self._folder / WATCHED).stat().st_mtime < WATCHED_S
        except OSError:
            return False

    def _run(self) -> None:
        try:
            while self._is_watched() and not self._ended.is_set():
                figures = measure(self._pool, self._table, self._dispatcher).to_dict()
                write_json(self._file, figures)
                self._ended.wait(EVERY_S)
            self._file.unlink(missing_ok=True)
        except OSError:
            pass  # the disk takes nothing; who watches says that there are no figures
        finally:
            self._thread = None
