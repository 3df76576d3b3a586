"""The ranks of a pool as one group: when one is lost or has to be stopped, all are started afresh, together.

A process group of a framework does not survive one of its members, and a member cannot be replaced alone. So calls wait
at the client, those that run and are none of the group's business end, all worker processes are replaced, enter the
plugins together again, and then the calls that wait begin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from skyward.errors import PluginError, PoolClosedError, PoolError, SkywardError, WorkerLostError
from skyward.pool.clock import Clock
from skyward.pool.culprit import is_noticed
from skyward.pool.dispatch import Dispatcher
from skyward.pool.node import NodeLink
from skyward.pool.partition import Paths
from skyward.pool.settings import PoolSettings
from skyward.pool.setup import WorkerSetup
from skyward.pool.worker import WorkerLink
from skyward.system import threading, time
from skyward.system.futures import Future, InvalidStateError

HEED_S = 1.0  # between the interrupt of a call that is part of a failed one and the end of its worker
_LOOK_S = 0.02
_ATTEMPTS = 3  # at a set-up in which a worker is lost


class Member(Protocol):
    """A call on all ranks that is under way (see `gang`)."""

    def disband(self, reason: str) -> None:
        """Fail, unless no rank has begun it; returns when nothing more is asked of the ranks."""
        ...


class Group:
    """The ranks of a pool. It does nothing but set up replaced workers until the pool is collective.

    Args:
        settings: what the pool is asked to be.
        nodes: the pool's nodes as they are now.
        replacing: whether a node is being started or replaced now.
        dispatcher, setup, clock: the pool's.
    """

    def __init__(
        self,
        settings: PoolSettings,
        nodes: Callable[[], Sequence[NodeLink]],
        replacing: Callable[[], bool],
        dispatcher: Dispatcher,
        setup: WorkerSetup,
        clock: Clock,
    ) -> None:
        worker = settings.worker
        self._buffer, self._limit_s = worker.buffer, settings.provision_timeout_s
        self._one_at_a_time = worker.slots == 1
        self._per_node = worker.processes
        self._size = worker.processes * settings.nodes.desired
        self._nodes, self._replacing = nodes, replacing
        self._dispatcher, self._setup, self._clock = dispatcher, setup, clock
        self.collective = self._size > 1 and any(plugin.collective for plugin in settings.plugins)
        self.paths = Paths(lambda: [node for node in nodes() if node.gone is None])
        self._changed = threading.Condition()
        self._fresh: dict[int, tuple[NodeLink, WorkerLink]] = {}  # by rank: connected, not set up
        self._alone: set[int] = set()  # ranks lost before the pool was collective: nothing but that is made good
        self._entering: dict[int, tuple[NodeLink, WorkerLink]] = {}  # those that are being set up
        self._ended: set[WorkerLink] = set()  # whose end was ordered here
        self._under_way: set[Member] = set()
        self._broken = ""  # why the group has to be made again
        self._absent: dict[int, str] = {}  # nodes without which it cannot be, and why they are not there
        self._suspended = False  # whether it is made again when they are
        self._seeing_off = 0  # nodes that are about to be taken away, until when no call on all ranks begins
        self._open = self._remaking = self._given_up = self._closed = False

    def open(self) -> None:
        """All ranks have been set up for the first time."""
        with self._changed:
            self._open = True
            early = "one of them had ended" if self.collective and self._fresh else ""
        if early:
            self.break_up(early)

    # what others tell ------------------------------------------------------------------------------------------

    def arrived(self, node: NodeLink, worker: WorkerLink) -> None:
        """A worker was started again: set it up at once where it can be alone, else when all others are there.

        Raises:
            PluginError, WorkerLostError: it cannot be set up.
        """
        worker.buffer = self._buffer
        self._enter(node, [worker])

    def joined(self, node: NodeLink) -> None:
        """A node has come, in the place of another or late: the same for all its workers.

        Raises:
            PluginError, WorkerLostError: it cannot be set up.
        """
        self._enter(node, node.workers)
        with self._changed:
            self._absent.pop(node.index, None)
            again, self._suspended = self._suspended, False
            self._changed.notify_all()
        if again:
            self._dispatcher.suspend(None)
            self.break_up(f"node {node.index} had been away")

    def _enter(self, node: NodeLink, workers: Sequence[WorkerLink]) -> None:
        with self._changed:
            ranks = {worker.rank for worker in workers}
            if self.collective and self._alone.isdisjoint(ranks):
                self._fresh.update({worker.rank: (node, worker) for worker in workers})
                self._changed.notify_all()
                return
            self._alone -= ranks
        self._setup.enter([(node, worker) for worker in workers], self._clock)
        for worker in workers:
            self._dispatcher.add(worker)

    def abandoned(self, node: int, text: str) -> None:
        """A node could not be had in many attempts; the text says why."""
        with self._changed:
            self._absent[node] = text
            self._changed.notify_all()

    def see_off(self, node: NodeLink, left_s: Callable[[], float]) -> None:
        """A node is about to be taken away: returns when it is to get no more calls.

        In a group that is when the calls on all ranks are over that are under way, or when no time is left.
        """
        if self.collective:
            with self._changed:
                self._seeing_off += 1
                while self._under_way and not self._closed and node.gone is None and left_s() > 0:
                    self._changed.wait(_LOOK_S)
            self._dispatcher.rest()
        self._dispatcher.drain(node.workers)

    def seen_off(self, node: NodeLink) -> None:
        """It has ended: a group is made again, with the node in its place."""
        if self.collective:
            self.break_up(f"node {node.index} was about to be taken away")

    def lost(self, worker: WorkerLink) -> None:
        """A worker has ended, and its calls are settled."""
        with self._changed:
            self._changed.notify_all()
            ours = worker in self._ended
            if not self.collective:
                self._alone.add(worker.rank)
        if self.collective and self._open and not ours:
            self.break_up(f"rank {worker.rank} (node {worker.node}) had ended")

    def enroll(self, member: Member) -> bool:
        """A call on all ranks is to be sent; False while it is not its turn. From the first one the pool is collective.

        One would begin where the one before has ended or failed, while that still runs on other ranks. So they follow
        each other, unless ranks have several slots.
        """
        with self._changed:
            self.collective = True
            if self._is_taken():
                return False
            self._under_way.add(member)
            return True

    def wait_turn(self) -> None:
        """Wait until a call on all ranks can be sent, or will be refused; Ctrl-C gets through."""
        with self._changed:
            while self._is_taken():
                self._changed.wait(None if self._under_way or self._seeing_off else _LOOK_S)

    def _is_taken(self) -> bool:
        """Whether a call on all ranks would meet another one there: one like it, or one that has not heeded its stop
        yet and may be in a collective, which would take the first of the others for its own.
        """
        if self._closed:
            return False
        if not self._one_at_a_time:
            return bool(self._seeing_off)
        workers = [worker for node in self._nodes() if node.gone is None for worker in node.workers if worker.alive]
        held = (task for worker in workers for task in self._dispatcher.held(worker))
        return bool(self._seeing_off or self._under_way) or any(task.stopping and task.gang is None for task in held)

    def dismiss(self, member: Member) -> None:
        """A call on all ranks is over."""
        with self._changed:
            self._under_way.discard(member)
            self._changed.notify_all()

    def node_of(self, rank: int) -> int:
        """The node of a rank."""
        return rank // self._per_node

    def dump(self, rank: int) -> Future[str] | None:
        """Ask a rank's agent where it is, for one that does not answer itself.

        None if its node is gone, or if its calls do not run in the main thread, which is the one that can be told.
        """
        if not self._one_at_a_time:
            return None
        for node in self._nodes():
            for worker in node.workers:
                if worker.rank == rank and node.gone is None:
                    return node.dump(worker)
        return None

    def hold(self) -> None:
        """Begin no call until the ranks have been started afresh; `break_up` is to follow."""
        if not self._closed:
            self._dispatcher.rest()

    def break_up(self, reason: str) -> None:
        """Start all ranks afresh, in the background; calls wait meanwhile. `reason` follows "because"."""
        with self._changed:
            self._broken = self._broken or reason
            self._alone.clear()
            if self._remaking or self._closed:
                return
            self._remaking = True
        self._dispatcher.rest()
        threading.Thread(target=self._remake, name="skyward-regroup", daemon=True).start()

    def close(self) -> bool:
        """Start nothing afresh any more; returns whether workers may be in the middle of their set-up."""
        with self._changed:
            self._closed = True
            waiting = [node.setups[worker.rank] for node, worker in self._entering.values()]
            self._changed.notify_all()
        for setup in waiting:
            try:
                setup.set_exception(PoolClosedError("The pool was closed while its ranks were set up."))
            except InvalidStateError:
                pass  # it has just ended by itself
        return self._remaking or self._given_up

    # a thread of its own ---------------------------------------------------------------------------------------

    def _remake(self) -> None:
        reason, attempt = "", 0
        try:
            while self._broken and not self._closed:
                reason, attempt = self._broken, attempt + 1
                self._dispatcher.rest()
                self._disband(reason)
                self._end_all()
                if not (self._await_all() and self._await_network()):
                    return
                try:
                    self._setup.enter(list(self._entering.values()), self._clock)
                except (WorkerLostError, PluginError) as error:
                    if attempt == _ATTEMPTS or not _follows_a_loss(error):
                        raise
                    self._broken = self._broken or str(error)
                if not self._broken:
                    self._dispatcher.resume([worker for _, worker in self._entering.values()])
        except SkywardError as error:
            if self._absent:
                self._suspend(reason)
            else:
                self._give_up(reason, error)
        finally:
            self._finish()

    def _suspend(self, reason: str) -> None:
        """Let calls fail for as long as a node is away that could not be replaced so far."""
        with self._changed:
            text = next(iter(self._absent.values()), "")
            if self._closed or not text:
                return  # it has just come
            self._suspended, self._broken = True, ""
        refusal = f"The ranks of this pool are to be started afresh, because {reason}, but that needs all nodes: {text}"
        self._dispatcher.suspend(PoolError(refusal))

    def _finish(self) -> None:
        with self._changed:
            again = bool(self._broken) and not self._closed
            self._remaking = False
            self._entering = {}
        if again:
            self.break_up(self._broken)

    def _give_up(self, reason: str, error: SkywardError) -> None:
        with self._changed:
            if self._closed:
                return
            self._closed = self._given_up = True
            self._changed.notify_all()
        text = f"The ranks of this pool were to be started afresh, because {reason}, but that failed: {error}"
        refusal = PoolError(f"{text}\nClose the pool and open another one.")
        refusal.__cause__ = error
        self._dispatcher.close(refusal)

    def _disband(self, reason: str) -> None:
        with self._changed:
            members = tuple(self._under_way)
        for member in members:
            member.disband(reason)

    def _end_all(self) -> None:
        """End all workers but those that are fresh: when all are idle, or a little later if stopped calls hang in some,
        and those that run calls of their own when these have ended. Together, since each complains of peers that go.
        """
        with self._changed:
            fresh = {worker for _, worker in self._fresh.values()}
        left = {worker for node in self._nodes() if node.gone is None for worker in node.workers} - fresh
        give_up = time.monotonic() + HEED_S
        while left and not self._closed:
            left = {worker for worker in left if worker.alive}
            if time.monotonic() >= give_up or not any(map(self._dispatcher.held, left)):
                ready = {worker for worker in left if not self._works(worker)}
                self._ended |= ready
                for worker in ready:
                    self._dispatcher.end(worker, f"all ranks are started afresh, since {self._broken}")
                left -= ready
            time.sleep(_LOOK_S)

    def _works(self, worker: WorkerLink) -> bool:
        """Whether it runs a call that is no part of a call on all ranks, and is wanted."""
        running = self._dispatcher.held(worker)[: worker.slots]
        return any(task.gang is None and task.stopping is None for task in running)

    def _await_all(self) -> bool:
        """Wait until every rank has a fresh process and no old one; False when the pool is closed before.

        Raises:
            PoolError: a node is gone and could not be replaced.
            PluginError: a rank did not come back in time.
        """
        with self._changed:
            while not self._all_here():
                if self._absent:
                    raise PoolError(next(iter(self._absent.values())))
                in_time = self._changed.wait_for(lambda: self._all_here() or self._absent, self._limit_s)
                if not in_time and not self._replacing():
                    missing = ", ".join(map(str, sorted(set(range(self._size)) - self._fresh.keys())))
                    raise PluginError(f"Rank {missing} did not come back within {self._limit_s:g} s.")
            if self._closed:
                return False
            self._seeing_off = 0
            self._changed.notify_all()
            self._entering, self._fresh = dict(sorted(self._fresh.items())), {}
            self._ended.clear()
            self._broken = ""
            return True

    def _await_network(self) -> bool:
        """Wait until nodes that were found not to reach each other do again; False when the pool is closed before.

        Raises:
            PoolError: they do not in time.
        """
        if not self.paths.await_whole(self._limit_s, lambda: self._closed):
            raise PoolError(f"{self.paths.told(self.paths.lost)} That has not changed within {self._limit_s:g} s.")
        return not self._closed

    def _all_here(self) -> bool:
        if self._closed:
            return True
        here = [worker for _, worker in self._fresh.values() if worker.alive and not worker.hung_up]
        return len(here) == self._size and not any(worker.alive for worker in self._ended)


def _follows_a_loss(error: SkywardError) -> bool:
    """Whether a set-up failed since a rank ended in it: told by its loss, or by what a hook there or a peer noticed."""
    return isinstance(error, WorkerLostError) or is_noticed(error)
