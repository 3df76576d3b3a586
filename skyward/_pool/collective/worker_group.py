"""The ranks of a pool as one group: when one is lost or has to be stopped, all are restarted together.

A framework's process group does not survive the loss of a rank, and a single rank cannot be replaced. Calls therefore
wait at the client, running calls on single ranks may finish, all worker processes are replaced and enter the plugins
together again, and then the waiting calls are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from skyward._pool.background import Timers
from skyward._pool.collective.diagnosis import PROBE_S, is_noticed
from skyward._pool.collective.lone_calls import LoneCalls
from skyward._pool.config import PoolConfig
from skyward._pool.dispatcher import Dispatcher
from skyward._pool.nodes.node_client import NodeClient
from skyward._pool.nodes.node_table import NodeTable
from skyward._pool.nodes.starting import WorkerSetup
from skyward._pool.nodes.worker_client import WorkerClient
from skyward._pool.signals import LISTEN_S
from skyward.errors import PluginError, PoolClosedError, PoolError, WorkerLostError
from skyward.system import threading, time
from skyward.system.futures import Future, InvalidStateError

Abort = Callable[[str], None]  # see `CollectiveCall.abort`
OPEN_S = 2.0  # how long a call on all ranks waits for streams that its own thread reads; dropped ones end in time
HEED_S = 1.0  # between the interrupt of a part of a failed call and the end of its worker
_LOOK_S = 0.02
_ATTEMPTS = 3  # at a set-up during which a worker is lost


class WorkerGroup:
    """The ranks of a pool. Until the pool is collective, it only sets up replaced workers.

    Args:
        settings: the pool's parameters.
        table: its nodes.
        dispatcher, setup, clock: those of the pool.
        tell: prints a permanent line.
    """

    def __init__(
        self,
        settings: PoolConfig,
        table: NodeTable,
        dispatcher: Dispatcher,
        setup: WorkerSetup,
        clock: Timers,
        tell: Callable[[str], None],
    ) -> None:
        worker = settings.worker
        self._buffer, self._limit_s = worker.buffer, settings.provision_timeout_s
        self._one_at_a_time = worker.slots == 1
        self._size = worker.processes * settings.nodes.desired
        self._table, self._dispatcher, self._setup, self._clock = table, dispatcher, setup, clock
        self.collective = self._size > 1 and any(plugin.collective for plugin in settings.plugins)
        self._changed = table.changed  # guards the attributes below
        self._fresh: dict[int, tuple[NodeClient, WorkerClient]] = {}  # by rank: connected, but not set up
        self._lost_alone: set[int] = set()  # ranks lost before the pool was collective, replaced individually
        self._ended: set[WorkerClient] = set()  # workers that the group itself has ended
        self._under_way: dict[Abort, Callable[[], str]] = {}  # running calls on all ranks; see `wait_turn`
        self._broken = ""  # why the group has to be restarted
        self._restarting: threading.Thread | None = None
        self._suspended = False  # whether a restart waits for an absent node
        self._draining = 0  # nodes about to be removed; meanwhile no call on all ranks starts
        self._lone_calls = LoneCalls(dispatcher, tell)
        self._open = self._closed = False

    def open(self) -> None:
        """Start watching the group, after all ranks have been set up for the first time."""
        with self._changed:
            self._open = True
            early = self.collective and bool(self._fresh)
        if early:
            self.restart("one of them had ended")
        if self.collective:
            self._look()

    def _look(self) -> None:
        if not self._closed:
            self._lone_calls.look([task for worker in self._workers for task in self._dispatcher.running(worker)])
            self._clock.after(PROBE_S, self._look)

    @property
    def _workers(self) -> list[WorkerClient]:
        return [worker for node in self._table.alive for worker in node.workers]

    # events -----------------------------------------------------------------------------------------------------

    def worker_started(self, node: NodeClient, worker: WorkerClient) -> None:
        """Set up a restarted worker: immediately if the pool is not collective, otherwise together with all others.

        Raises:
            PluginError, WorkerLostError: it cannot be set up.
        """
        worker.buffer = self._buffer
        self._enter(node, [worker])

    def node_started(self, node: NodeClient) -> None:
        """Set up the workers of a node that is a replacement or late, in the same way.

        Raises:
            PluginError, WorkerLostError: it cannot be set up.
        """
        self._enter(node, node.workers)
        with self._changed:
            again, self._suspended = self._suspended, False
            self._changed.notify_all()
        if again:
            self._dispatcher.suspend(None)
            self.restart(f"node {node.index} was unreachable for a while")

    def _enter(self, node: NodeClient, workers: Sequence[WorkerClient]) -> None:
        with self._changed:
            ranks = {worker.rank for worker in workers}
            if self.collective and self._lost_alone.isdisjoint(ranks):
                self._fresh.update({worker.rank: (node, worker) for worker in workers})
                self._changed.notify_all()
                return
            self._lost_alone -= ranks
        self._setup.enter([(node, worker) for worker in workers], self._clock)
        for worker in workers:
            self._dispatcher.add(worker)

    def drain_node(self, node: NodeClient, left_s: Callable[[], float]) -> None:
        """Stop sending calls to a node that is about to be removed.

        In a group, first wait for running calls on all ranks, as long as time is left.
        """
        if self.collective:
            with self._changed:
                self._draining += 1
                while self._under_way and not self._closed and node.gone is None and left_s() > 0:
                    self._changed.wait(_LOOK_S)
            self._dispatcher.rest()
        self._dispatcher.drain(node.workers)

    def node_drained(self, node: NodeClient) -> None:
        """Restart a group, with the replacement of a drained node that has ended."""
        if self.collective:
            self.restart(f"node {node.index} was about to be reclaimed")

    def worker_lost(self, worker: WorkerClient) -> None:
        """Handle the end of a worker whose calls have been settled."""
        with self._changed:
            self._changed.notify_all()
            ours = worker in self._ended
            if not self.collective:
                self._lost_alone.add(worker.rank)
        if self.collective and self._open and not ours:
            self.restart(f"rank {worker.rank} (node {worker.node}) had ended")

    def register(self, abort: Abort, read_here: Callable[[], str]) -> bool:
        """Register a call on all ranks before it is sent; return False if it has to wait. Makes the pool collective.

        Otherwise a call would begin on ranks where its predecessor has ended or failed while that still runs on others.
        Calls on all ranks therefore run one after another, unless ranks have several slots.
        """
        with self._changed:
            self.collective = True
            if self._is_busy():
                return False
            self._under_way[abort] = read_here
            return True

    def wait_turn(self) -> None:
        """Wait until a call on all ranks can be sent, or will be refused; Ctrl-C interrupts the wait.

        Raises:
            PoolError: it waits for streams that the calling thread reads.
        """
        until = time.monotonic() + OPEN_S
        with self._changed:
            while self._is_busy():
                open_here = [name for read_here in self._under_way.values() if (name := read_here())]
                if open_here and time.monotonic() > until:
                    raise PoolError(
                        f"A call on all ranks waits for the streams of {open_here[0]}(), which this thread has opened. "
                        "Read them to their end or close them first: in a group such calls run one after another."
                    )
                self._changed.wait(LISTEN_S if self._under_way or self._draining else _LOOK_S)

    def _is_busy(self) -> bool:
        """Return whether another call on all ranks, or a stopped call, still runs.

        A stopped call may be in a collective operation of its framework, and would join the first one of the new call.
        """
        if self._closed:
            return False
        if not self._one_at_a_time:
            return bool(self._draining)
        held = (task for worker in self._workers if worker.alive for task in self._dispatcher.held(worker))
        return bool(self._draining or self._under_way) or any(
            task.stopping and not task.fails_together for task in held
        )

    def unregister(self, abort: Abort) -> None:
        """Unregister a call on all ranks that has ended."""
        with self._changed:
            self._under_way.pop(abort, None)
            self._changed.notify_all()

    def dump(self, rank: int) -> Future[str] | None:
        """Ask the agent of a rank that does not answer for its stack.

        Return None if its node is lost, or if its calls do not run in the main thread, the only one that can be dumped.
        """
        if not self._one_at_a_time:
            return None
        for node in self._table.alive:
            for worker in node.workers:
                if worker.rank == rank:
                    return node.dump(worker)
        return None

    def hold(self) -> None:
        """Send no calls until the ranks have been restarted; the caller must then call `restart`."""
        if not self._closed:
            self._dispatcher.rest()

    def restart(self, reason: str) -> None:
        """Restart all ranks in the background while calls wait. `reason` completes "because"."""
        with self._changed:
            self._broken = self._broken or reason
            self._lost_alone.clear()
            if self._restarting is not None or self._closed:
                return
            self._restarting = thread = threading.Thread(target=self._restart, name="skyward-restart", daemon=True)
        self._dispatcher.rest()
        thread.start()

    def close(self) -> bool:
        """Stop restarting ranks; return whether workers may be in the middle of their set-up."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for node in self._table.alive if self._restarting is not None else ():
            for setup in tuple(node.setups.values()):
                with suppress(InvalidStateError):  # it has ended
                    setup.set_exception(PoolClosedError("The pool was closed while its ranks were set up."))
        return self._restarting is not None

    # in a separate thread --------------------------------------------------------------------------------------

    def _restart(self) -> None:
        attempt = 0
        while True:
            with self._changed:
                if self._closed:
                    return  # `close` is told that workers may be in the middle of their set-up
                if not self._broken:
                    self._restarting = None
                    return
                reason, attempt = self._broken, attempt + 1
                calls = tuple(self._under_way)
            self._dispatcher.rest()
            for abort in calls:
                abort(reason)
            self._end_all()
            try:
                entering = self._await_all()
                self._setup.enter(entering, self._clock)
            except Exception as error:  # also of a plugin's hook: calls must not wait for ranks that do not come
                if self._table.absent:
                    self._suspend(reason)
                elif attempt == _ATTEMPTS or not _follows_a_loss(error):
                    self._give_up(reason, error)
                else:
                    self._broken = self._broken or str(error)
                continue
            if not self._broken:
                attempt = 0
                self._dispatcher.resume([worker for _, worker in entering])

    def _suspend(self, reason: str) -> None:
        """Make calls fail as long as a node is absent that could not be replaced so far."""
        with self._changed:
            text = self._table.absent
            if self._closed or not text:
                self._broken = self._broken or reason  # it has just arrived; try again
                return
            self._suspended, self._broken = True, ""
        refusal = f"The ranks of this pool must be restarted, because {reason}, but a restart needs all nodes: {text}"
        self._dispatcher.suspend(PoolError(refusal))

    def _give_up(self, reason: str, error: Exception) -> None:
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        text = f"The ranks of this pool had to be restarted, because {reason}, but that failed: {error}"
        refusal = PoolError(f"{text}\nClose the pool and open another one.")
        refusal.__cause__ = error
        self._dispatcher.close(refusal)

    def _end_all(self) -> None:
        """End all workers except fresh ones at the same time, since each would report the end of its peers.

        They are ended when all are idle, or after HEED_S if stopped calls hang in some. Workers that run calls on
        single ranks are ended when these have returned.
        """
        with self._changed:
            fresh = {worker for _, worker in self._fresh.values()}
        left = set(self._workers) - fresh
        give_up = time.monotonic() + HEED_S
        while left and not self._closed:
            left = {worker for worker in left if worker.alive}
            if time.monotonic() >= give_up or not any(map(self._dispatcher.held, left)):
                ready = {worker for worker in left if not self._works(worker)}
                self._ended |= ready
                for worker in ready:
                    worker.end(f"restarting all ranks, because {self._broken}")
                left -= ready
            time.sleep(_LOOK_S)

    def _works(self, worker: WorkerClient) -> bool:
        """Return whether it runs a call on a single rank that is not being stopped."""
        return any(not task.fails_together and task.stopping is None for task in self._dispatcher.running(worker))

    def _await_all(self) -> list[tuple[NodeClient, WorkerClient]]:
        """Wait until every rank has a new process and no old one, and return these.

        Raises:
            PoolError: the pool was closed, or a node was lost and could not be replaced.
            PluginError: a rank did not return in time.
        """
        with self._changed:
            while not self._all_here():
                in_time = self._changed.wait_for(
                    lambda: self._all_here() or self._closed or self._table.absent, self._limit_s
                )
                if self._closed or (absent := self._table.absent):
                    raise PoolError("The pool was closed." if self._closed else absent)
                if not in_time and not self._table.is_starting:
                    missing = ", ".join(map(str, sorted(set(range(self._size)) - self._fresh.keys())))
                    raise PluginError(f"Rank {missing} did not come back within {self._limit_s:g} s.")
            entering = [self._fresh[rank] for rank in sorted(self._fresh)]
            self._draining, self._broken = 0, ""
            self._fresh.clear()
            self._ended.clear()
            self._changed.notify_all()
            return entering

    def _all_here(self) -> bool:
        here = [worker for _, worker in self._fresh.values() if worker.alive and not worker.hung_up]
        return len(here) == self._size and not any(worker.alive for worker in self._ended)


def _follows_a_loss(error: Exception) -> bool:
    """Return whether a set-up failed because a rank ended: by the loss itself, or by an error that it caused."""
    return isinstance(error, WorkerLostError) or is_noticed(error)
