"""Gets the nodes of a pool, replaces them when they are lost, drains them when their hosts are taken away.

A node in the place of a lost one has its index, and with it its ranks; the others are told where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from skyward._pool.background import Callbacks
from skyward._pool.collective.worker_group import WorkerGroup
from skyward._pool.config import PoolConfig
from skyward._pool.console import Printer
from skyward._pool.dispatcher import Dispatcher
from skyward._pool.named import NamedPool
from skyward._pool.nodes.node_client import BEAT_S, DISMISSED, NodeClient, PoolLink
from skyward._pool.nodes.node_table import NodeSlot, NodeTable
from skyward._pool.nodes.starting import NodeStarter, discard
from skyward._pool.signals import uninterrupted
from skyward.errors import BudgetSpentError, PoolClosedError, PoolError
from skyward.model.instance import EXIT_DISMISSED
from skyward.nodes.node import Host
from skyward.providers.base import PoolRequest, PreemptionNotice
from skyward.records.pools import PoolRecord
from skyward.system import threading, time
from skyward.system.futures import ThreadPoolExecutor, wait

DRAIN_GRACE_S = 10.0  # for the plugins of a node that is drained
_AT_ONCE = 16  # nodes started, or ended, at the same time
_LOOK_S = 0.1
_SIGNALS_S = 0.2  # how often a thread that waits looks for signals
_LAST_ATTEMPT_S = 30.0  # how long the end of the pool waits for attempts that are under way


class NodeManager:
    """Keeps the nodes of a pool running.

    Args:
        request, settings: what the pool is asked to be.
        table: its nodes, which this object changes.
        dispatcher, group, printer, callbacks: the pool's.
        tell: prints a line that stays.
        record: the pool's.
        named: the pool's name and what is there of it; None for a pool without one.

    Attributes:
        allocation: the machines of the pool.
    """

    def __init__(
        self,
        request: PoolRequest,
        settings: PoolConfig,
        table: NodeTable,
        dispatcher: Dispatcher,
        group: WorkerGroup,
        printer: Printer,
        callbacks: Callbacks,
        tell: Callable[[str], None],
        record: PoolRecord,
        named: NamedPool | None = None,
    ) -> None:
        self._named, self._kept, self._has_begun = named, set[int](), False
        self._pool, self._settings, self._table, self._tell = request.pool_id, settings, table, tell
        self._record = record
        self._dispatcher, self._group = dispatcher, group
        link = PoolLink(
            dispatcher=dispatcher,
            printer=printer,
            callbacks=callbacks,
            record=record,
            worker_started=group.worker_started,
            worker_lost=group.worker_lost,
            node_gone=self.node_gone,
            dismissed=partial(self._end, DISMISSED),
            secrets=tuple(value for _, value in settings.secrets),
            only_data=settings.results == "data",
        )
        self._threads: list[threading.Thread] = []
        self._starting = threading.Semaphore(_AT_ONCE)
        self._released = threading.Event()
        self._closing: list[NodeClient] = []
        self._spent: BudgetSpentError | None = None  # why no node can come any more
        self.allocation = settings.provider.open(
            replace(request, on_preemption=self.preempted, on_budget_spent=self._budget_spent)
        )
        self._starter = NodeStarter(self._pool, settings, table, self.allocation, link, tell, named)

    def _beat(self) -> None:
        """Keep the nodes alive, and notice those that are not (a thread that does nothing else, and never blocks)."""
        while not self._released.wait(BEAT_S):
            for node in self._table.all_nodes():
                node.beat()

    # the start -------------------------------------------------------------------------------------------------

    def start(self, hosts: Sequence[Host], image: str | None) -> None:
        """Start a node on each host, and block until enough are connected; the others follow in the background.

        A group needs all of its ranks, any other pool `nodes.min`.

        Raises:
            SkywardError: too many of them cannot be started: why the first one cannot, with the others' reasons.
        """
        table, nodes = self._table, self._settings.nodes
        needed = nodes.desired if self._group.collective else nodes.least
        threading.Thread(target=self._beat, name="skyward-heartbeat", daemon=True).start()
        self._has_begun = True
        self._starter.prepare(hosts, image)
        for slot in table.slots:
            has_host = slot.index < len(hosts)
            self._spawn(slot, hosts[slot.index] if has_host else None, image, begins=has_host)
        try:
            with table.changed:
                table.changed.wait_for(
                    lambda: len(table.early) >= needed or table.is_hopeless(nodes.least, needed) or self._spent
                )
                if self._spent is not None:
                    raise self._spent
                if len(table.early) < needed:
                    raise table.start_error()
        except BaseException:
            with uninterrupted:
                table.closed.set()
                self.release()  # no thread waits any more for what is not there
            raise

    def open(self) -> list[NodeClient]:
        """The nodes that are connected by now, for the first set-up; from now on each one is set up by itself."""
        with self._table.changed:
            self._table.is_open = True
            self._table.early.sort(key=lambda node: node.index)
            return list(self._table.early)

    def opened(self) -> None:
        """The first set-up is over: from now on lost nodes are replaced."""
        with self._table.changed:
            early, self._table.early = self._table.early, []
            for node in early:
                slot = self._table.slots[node.index]
                slot.is_starting, slot.ready_at = node.gone is not None, time.monotonic()
        for node in early:
            self._record.event("node_ready", node=node.index, host=node.host.name)
            if node.gone is not None:
                self._replace(node, f"is gone ({node.gone.text}); it is being replaced")

    # getting a node for an index -------------------------------------------------------------------------------

    def _spawn(self, slot: NodeSlot, host: Host | None, image: str | None, *, begins: bool) -> None:
        name, args = f"skyward-start-{slot.index}", (slot, host, image, begins)
        thread = threading.Thread(target=self._fill, args=args, name=name, daemon=True)
        with self._table.changed:
            if self._table.closed.is_set():
                return
            self._threads = [each for each in self._threads if each.is_alive() or each.ident is None] + [thread]
        thread.start()

    def _replace(self, node: NodeClient, why: str) -> None:
        """Get another node for an index; `why` and what comes of it are told."""
        self._tell(f"node {node.index} on {node.host.name} {why}")
        self._spawn(self._table.slots[node.index], node.host, None, begins=False)

    def _fill(self, slot: NodeSlot, host: Host | None, image: str | None, begins: bool) -> None:
        """Get a node for an index, however many attempts it takes (a thread of its own).

        It `begins` on this host, with this image; otherwise the host is that of the node before, if there was one.
        """
        table = self._table
        while not table.closed.wait(0.0 if begins else slot.next_wait()):
            try:
                with self._starting:
                    if not begins or host is None:
                        host = self.allocation.replace(host)
                        image = self.allocation.prepare([host])
                    begins = False
                    node = self._starter.start(slot, host, image)
                self._starter.announce()
                if table.waits_for_first_set_up(node) or self._serves(slot, node):
                    return
            except PoolClosedError as error:
                self._end(f"cannot go on: {error}")
                return
            except Exception as error:  # whatever it is: callers may be waiting for this node
                if not self._note_failure(slot, error):
                    return

    def _serves(self, slot: NodeSlot, node: NodeClient) -> bool:
        """Let a node serve the pool; False if it is gone again."""
        with self._table.changed:
            was_absent, slot.absent = bool(slot.absent), ""
        if was_absent:
            self._dispatcher.restore(self._settings.worker.ranks_of_node(slot.index))
        try:
            self._group.node_started(node)
        except BaseException:
            discard(node, self._tell)
            raise
        with self._table.changed:
            if node.gone is None:
                slot.failures, slot.is_starting, slot.ready_at = 0, False, time.monotonic()
                self._table.changed.notify_all()
        if node.gone is not None:
            node.removed.wait(_LAST_ATTEMPT_S)
            return False
        self._record.event("node_ready", node=node.index, host=node.host.name)
        self._tell(f"node {node.index} is ready on {node.host.name}")
        return True

    def _note_failure(self, slot: NodeSlot, error: Exception) -> bool:
        """Tell why an attempt has failed; False if the pool cannot be opened any more, whose error tells all."""
        text = " ".join(str(error).split()) or repr(error)
        least = self._settings.nodes.least
        with self._table.changed:
            is_news = not slot.absent or str(slot.error) != str(error)
            give_up = slot.failed(error)
            self._table.changed.notify_all()
            if not self._table.is_open and self._table.is_hopeless(least, least):
                return False
        if self._table.closed.is_set():
            return True
        if is_news:
            self._tell(f"node {slot.index} could not be started: {text}")
        if give_up:  # slower attempts follow, for which nothing waits
            with self._table.changed:
                slot.give_up(text)
                self._table.changed.notify_all()
            self._tell(" ".join(slot.absent.split()))
            self._dispatcher.give_up(self._settings.worker.ranks_of_node(slot.index), slot.absent)
            self._group.node_given_up()
        return True

    def _end(self, how: str) -> None:
        """The pool was ended by somebody else: its calls fail, and nothing is replaced any more."""
        if not self._table.closed.is_set():
            self._dispatcher.close(PoolError(f"Pool {self._pool} {how.removesuffix('.')}. Open another one."))
            self.stop()

    def _budget_spent(self, text: str) -> None:
        """The provider is about to end all machines: calls fail, and nothing is replaced any more."""
        if not self._table.closed.is_set():
            self._tell(text)
            self._spent = BudgetSpentError(text)
            self._dispatcher.close(self._spent)
            self.stop()

    # what nodes and the provider tell --------------------------------------------------------------------------

    def node_gone(self, node: NodeClient) -> None:
        """A node is gone, and its calls are settled: have it replaced."""
        assert node.gone is not None
        gone = node.gone
        self._record.event("node_lost", node=node.index, host=node.host.name, reason=gone.text, code=gone.code)
        if node.gone.code == EXIT_DISMISSED:
            self._end(DISMISSED)
            return
        with self._table.changed:
            if node in self._table.draining:
                self._table.draining.remove(node)
                return
            self._table.changed.notify_all()
            slot = self._table.slots[node.index]
            if slot.node is not node or slot.is_starting or self._table.closed.is_set():
                return  # the thread that gets it looks for itself
            slot.start_again()
        self._replace(node, f"is gone ({node.gone.text}); it is being replaced")

    def preempted(self, notice: PreemptionNotice) -> None:
        """A host is about to be taken away: its node gets no more calls, and another one is asked for at once."""
        until = time.monotonic() + notice.left_s
        with self._table.changed:
            slot = next((each for each in self._table.slots if each.node and each.node.host is notice.host), None)
            node = slot.node if slot is not None else None
            if slot is None or node is None or slot.is_starting or node.gone or self._table.closed.is_set():
                return
            slot.start_again()
            self._table.draining.append(node)
        threading.Thread(target=self._drain, args=(node, until), name="skyward-drain", daemon=True).start()
        what = "is being replaced" if notice.is_replaced else "the pool ends with it"
        self._replace(node, f"{notice.text}: it gets no new calls, and {what}")

    def _drain(self, node: NodeClient, until: float) -> None:
        """Let a node finish what it runs, until then, and end it (a thread of its own)."""

        def left() -> float:
            return until - time.monotonic()

        self._group.drain_node(node, left)
        while any(map(self._dispatcher.load.held, node.workers)) and left() > 0 and node.gone is None:
            if self._table.closed.wait(_LOOK_S):
                return
        if node.gone is not None:
            return
        if any(map(self._dispatcher.load.held, node.workers)):
            node.declare_lost("its host was about to be taken away, and its time was up")
            return
        node.leave(min(DRAIN_GRACE_S, max(1.0, left())))
        with self._table.changed:
            if node not in self._table.draining:
                return  # it was lost, or the pool was closed, while it left
            self._table.draining.remove(node)
        self._group.node_drained(node)

    # the end ---------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Replace nothing any more."""
        with self._table.changed:
            self._table.closed.set()
            self._table.changed.notify_all()

    def close(self, grace_s: float) -> None:
        """Let all nodes leave their plugins and end; whatever is not gone after `grace_s` is removed."""
        self.stop()
        with self._table.changed:
            nodes = list(dict.fromkeys(self._table.all_nodes()))
            self._table.draining, self._closing = [], nodes
            for slot in self._table.slots:
                slot.node = None
        if nodes:
            with ThreadPoolExecutor(min(_AT_ONCE, len(nodes)), thread_name_prefix="skyward-stop") as threads:
                ends = []
                for node in nodes:
                    try:
                        ends.append(threads.submit(node.close, grace_s))
                    except RuntimeError:  # no more threads can be started: this one does it
                        node.close(grace_s)
                # Python handles a signal that comes just before it waits for a lock when that wait ends (8 of 24 times
                # on two busy cores), and this one may ask to hurry
                while wait(ends, _SIGNALS_S).not_done:
                    pass
            for end in ends:
                end.result()

    def keep(self, grace_s: float) -> None:
        """Leave the nodes to the pool's next client; those that cannot be left to it are ended.

        Raises:
            SkywardError: one of these cannot be removed.
        """
        assert self._named is not None and self._named.keep_s is not None
        keep_s = self._named.keep_s
        self.stop()
        with self._table.changed:
            nodes = [slot.node for slot in self._table.slots if slot.node is not None]
            others, self._table.draining = self._table.draining, []
            for slot in self._table.slots:
                slot.node = None
        with ThreadPoolExecutor(min(_AT_ONCE, len(nodes) or 1), thread_name_prefix="skyward-stop") as threads:
            answers = list(threads.map(lambda node: node.keep(keep_s, grace_s), nodes))
        self._kept = {node.index for node, is_kept in zip(nodes, answers, strict=True) if is_kept}
        for node in [*others, *(node for node in nodes if node.index not in self._kept)]:
            node.close(0.0)

    def hurry(self) -> None:
        """Remove the nodes that `close` waits for; that ends it."""
        for node in self._closing:
            threading.Thread(target=node.remove, name="skyward-hurry", daemon=True).start()

    def release(self) -> None:
        """Remove what is left of the pool, and wait for attempts that are under way, which end by that."""
        untouched = self._named is not None and not self._has_begun
        if self._named is not None and (self._kept or untouched):
            keeps = self._kept or {kept.index for kept in self._named.untaken()}
            self.allocation.keep(self._named.left_s() if untouched else self._named.keep_s or 0.0, keeps)
        else:
            for kept in self._named.untaken() if self._named is not None else ():
                self._starter.discard_kept(kept)
            self.allocation.close()
        with self._table.changed:
            under_way = [thread for thread in self._threads if thread.is_alive()]
        deadline = time.monotonic() + _LAST_ATTEMPT_S
        for thread in under_way:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._released.set()
        if self._named is not None:
            if untouched:
                self._named.restore()
            elif self._kept:
                self._named.keep(self._kept)
            else:
                self._named.forget()
