"""The ranks of a pool as one group: when one is lost or has to be stopped, all are started afresh, together.

A process group of a framework does not survive one of its members, and a member cannot be replaced alone. So calls wait
at the client, those that run and are none of the group's business end, all worker processes are replaced, enter the
plugins together again, and then the calls that wait begin.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Protocol

from skyward.errors import PluginError, PoolClosedError, PoolError, SkywardError, WorkerLostError
from skyward.pool.clock import Clock
from skyward.pool.dispatch import Dispatcher
from skyward.pool.node import NodeLink
from skyward.pool.settings import PoolSettings
from skyward.pool.setup import WorkerSetup
from skyward.pool.worker import WorkerLink

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
        dispatcher, setup, clock: the pool's.
    """

    def __init__(
        self,
        settings: PoolSettings,
        nodes: Callable[[], Sequence[NodeLink]],
        dispatcher: Dispatcher,
        setup: WorkerSetup,
        clock: Clock,
    ) -> None:
        worker = settings.worker
        self._buffer, self._limit_s = worker.buffer, settings.provision_timeout_s
        self._one_at_a_time = worker.slots == 1
        self._per_node = worker.processes
        self._size = worker.processes * settings.nodes.desired
        self._nodes, self._dispatcher, self._setup, self._clock = nodes, dispatcher, setup, clock
        self.collective = self._size > 1 and any(plugin.collective for plugin in settings.plugins)
        self._changed = threading.Condition()
        self._fresh: dict[int, tuple[NodeLink, WorkerLink]] = {}  # by rank: connected, not set up
        self._entering: dict[int, tuple[NodeLink, WorkerLink]] = {}  # those that are being set up
        self._ended: set[WorkerLink] = set()  # whose end was ordered here
        self._under_way: set[Member] = set()
        self._broken = ""  # why the group has to be made again
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
        if not self.collective:
            self._setup.enter([(node, worker)], self._clock)
            self._dispatcher.add(worker)
            return
        with self._changed:
            self._fresh[worker.rank] = node, worker
            self._changed.notify_all()

    def lost(self, worker: WorkerLink) -> None:
        """A worker has ended, and its calls are settled."""
        with self._changed:
            self._changed.notify_all()
            node_is_there = any(node.index == worker.node and node.gone is None for node in self._nodes())
            ours = worker in self._ended
        if self.collective and self._open and not ours and (node_is_there or self._remaking):
            self.break_up(f"rank {worker.rank} (node {worker.node}) had ended")

    def enroll(self, member: Member) -> bool:
        """A call on all ranks is to be sent; False while it is not its turn. From the first one the pool is collective.

        One would begin where the one before has ended or failed, while that still runs on other ranks. So they follow
        each other, unless ranks have several slots.
        """
        with self._changed:
            self.collective = True
            if self._under_way and self._one_at_a_time and not self._closed:
                return False
            self._under_way.add(member)
            return True

    def wait_turn(self) -> None:
        """Wait until a call on all ranks can be sent, or will be refused; Ctrl-C gets through."""
        with self._changed:
            self._changed.wait_for(lambda: not self._under_way or self._closed)

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
                if not self._await_all():
                    return
                try:
                    self._setup.enter(list(self._entering.values()), self._clock)
                except WorkerLostError as error:
                    if attempt == _ATTEMPTS:
                        raise
                    self._broken = self._broken or str(error)
                if not self._broken:
                    self._dispatcher.resume([worker for _, worker in self._entering.values()])
        except SkywardError as error:
            self._give_up(reason, error)
        finally:
            self._finish()

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
                    self._dispatcher.end(worker)
                left -= ready
            time.sleep(_LOOK_S)

    def _works(self, worker: WorkerLink) -> bool:
        """Whether it runs a call that is no part of a call on all ranks, and is wanted."""
        running = self._dispatcher.held(worker)[: worker.slots]
        return any(task.gang is None and task.stopping is None for task in running)

    def _await_all(self) -> bool:
        """Wait until every rank has a fresh process and no old one; False when the pool is closed before.

        Raises:
            PoolError: a node is gone, or a rank did not come back in time.
        """
        with self._changed:
            if not self._changed.wait_for(self._all_here, self._limit_s):
                missing = ", ".join(map(str, sorted(set(range(self._size)) - self._fresh.keys())))
                raise PluginError(f"Rank {missing} did not come back within {self._limit_s:g} s.")
            if self._closed:
                return False
            gone = next((node for node in self._nodes() if node.gone is not None), None)
            if gone is not None and gone.gone is not None:
                raise PoolError(f"Node {gone.index} is gone ({gone.gone.text}), and its ranks with it.")
            self._entering, self._fresh = dict(sorted(self._fresh.items())), {}
            self._ended.clear()
            self._broken = ""
            return True

    def _all_here(self) -> bool:
        if self._closed or any(node.gone is not None for node in self._nodes()):
            return True
        here = [worker for _, worker in self._fresh.values() if worker.alive and not worker.hung_up]
        return len(here) == self._size and not any(worker.alive for worker in self._ended)
