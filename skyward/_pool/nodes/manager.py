"""Management of a pool's nodes: start, replacement when they are lost, draining before their hosts are removed.

A replacement has the index of the lost node, and thereby its ranks; the other nodes are sent its address.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from skyward._pool.background import Callbacks
from skyward._pool.collective.worker_group import WorkerGroup
from skyward._pool.config import PoolConfig
from skyward._pool.console import Printer
from skyward._pool.dispatcher import Dispatcher
from skyward._pool.named import NamedPool, shape_of
from skyward._pool.nodes.node_client import BEAT_S, DISMISSED, NodeClient, PoolLink
from skyward._pool.nodes.node_table import NodeSlot, NodeTable
from skyward._pool.nodes.starting import Topology
from skyward._pool.signals import listen, uninterrupted
from skyward.errors import BudgetSpentError, PoolClosedError, PoolError, SkywardError
from skyward.nodes.node import Host, Launch, Node
from skyward.providers.base import PoolRequest, PreemptionNotice
from skyward.records.kept_pool import KeptNode
from skyward.records.pools import PoolRecord
from skyward.system import threading, time
from skyward.system.futures import ThreadPoolExecutor, wait

T = TypeVar("T")
DRAIN_GRACE_S = 10.0  # for the plugins of a drained node to exit
_STARTING = "Starting a replacement; calls that ran there run again only if they have retries=."
_AT_ONCE = 16  # nodes started, or ended, concurrently
_LOOK_S = 0.1
_SIGNALS_S = 0.2  # interval of checks for signals in a waiting thread
_LAST_ATTEMPT_S = 30.0  # how long the end of the pool waits for running attempts


class NodeManager:
    """Keeps the nodes of a pool running.

    Args:
        request, settings: the pool's parameters.
        table: its nodes, which this object changes.
        dispatcher, group, printer, callbacks: those of the pool.
        tell: prints a permanent line.
        record: the record of the pool.
        named: the pool's name and kept nodes; None for a pool without a name.

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
        self._named, self._kept = named, set[int]()
        self._pool, self._settings, self._table, self._tell = request.pool_id, settings, table, tell
        self._dispatcher, self._group, self._record = dispatcher, group, record
        self._link = PoolLink(
            dispatcher=dispatcher,
            printer=printer,
            callbacks=callbacks,
            record=record,
            worker_started=group.worker_started,
            worker_lost=group.worker_lost,
            node_gone=self.node_gone,
            dismissed=partial(self._end_by, DISMISSED),
            secrets=tuple(value for _, value in settings.secrets),
        )
        self._threads: list[threading.Thread] = []
        self._starting = threading.Semaphore(_AT_ONCE)
        self._released = threading.Event()
        self._closing: list[NodeClient] = []
        self._failure: PoolError | None = None  # why the pool was ended from elsewhere
        self.allocation = settings.provider.open(
            replace(request, on_preemption=self.preempted, on_budget_spent=self._budget_spent)
        )
        self._topology = Topology(self._pool, settings)

    def _beat(self) -> None:
        """Send heartbeats and detect lost nodes, in a thread that does nothing else and never blocks."""
        while not self._released.wait(BEAT_S):
            for node in self._table.all_nodes():
                node.beat()

    # the start -------------------------------------------------------------------------------------------------

    def start(self, hosts: Sequence[Host], image: str | None) -> None:
        """Start a node on each host, and wait until enough are connected; the others follow in the background.

        A group needs all of its ranks, any other pool `nodes.min` nodes.

        Raises:
            SkywardError: too many of them cannot be started; the message has the reasons of all.
        """
        table, nodes = self._table, self._settings.nodes
        needed = nodes.desired if self._group.collective else nodes.least
        threading.Thread(target=self._beat, name="skyward-heartbeat", daemon=True).start()
        self._match_kept(hosts, image)
        for slot in table.slots:
            has_host = slot.index < len(hosts)
            self._spawn(slot, hosts[slot.index] if has_host else None, image, begins=has_host)
        try:
            with table.changed:
                enough = partial(
                    table.changed.wait_for,
                    lambda: len(table.early) >= needed or table.is_hopeless(nodes.least, needed) or self._failure,
                )
                listen(enough)
                if self._failure is not None:
                    raise self._failure
                if len(table.early) < needed:
                    raise table.start_error()
        except BaseException:
            with uninterrupted:
                table.closed.set()
                self.release()  # so that threads stop waiting for absent nodes
            raise

    def open(self) -> list[NodeClient]:
        """Return the connected nodes, for the first set-up; nodes that connect later are set up individually."""
        with self._table.changed:
            self._table.is_open = True
            self._table.early.sort(key=lambda node: node.index)
            return list(self._table.early)

    def opened(self) -> None:
        """End the first set-up; from now on lost nodes are replaced."""
        with self._table.changed:
            early, self._table.early = self._table.early, []
            for node in early:
                slot = self._table.slots[node.index]
                slot.is_starting, slot.ready_at = node.gone is not None, time.monotonic()
        for node in early:
            self._record.event("node_ready", node=node.index, host=node.host.name)
            if node.gone is not None:
                self._replace(node, f"{node.gone.text.rstrip('.')}. {_STARTING}")

    # starting a node for an index ------------------------------------------------------------------------------

    def _spawn(self, slot: NodeSlot, host: Host | None, image: str | None, *, begins: bool) -> None:
        name, args = f"skyward-start-{slot.index}", (slot, host, image, begins)
        thread = threading.Thread(target=self._fill, args=args, name=name, daemon=True)
        with self._table.changed:
            if self._table.closed.is_set():
                return
            self._threads = [each for each in self._threads if each.is_alive() or each.ident is None] + [thread]
        thread.start()

    def _replace(self, node: NodeClient, why: str) -> None:
        """Start another node for an index; report `why` and the outcome."""
        self._tell(f"node {node.index} on {node.host.name} {why}")
        self._spawn(self._table.slots[node.index], node.host, None, begins=False)

    def _fill(self, slot: NodeSlot, host: Host | None, image: str | None, begins: bool) -> None:
        """Start a node for an index, in as many attempts as it takes (in a separate thread).

        If it `begins`, the first attempt is on this host with this image; otherwise `host` is that of the previous
        node, if any.
        """
        table = self._table
        while not table.closed.wait(0.0 if begins else slot.next_wait()):
            try:
                with self._starting:
                    if not begins or host is None:
                        host = self.allocation.replace(host)
                        image = self.allocation.prepare([host])
                    begins = False
                    node = self._start(slot, host, image)
                self._announce()
                if table.waits_for_first_set_up(node) or self._serves(slot, node):
                    return
            except PoolClosedError as error:
                self._end_by(f"cannot go on: {error}")
                return
            except Exception as error:  # any error, since callers may be waiting for this node
                if not self._note_failure(slot, error):
                    return

    def _match_kept(self, hosts: Sequence[Host], image: str | None) -> None:
        """Record the first hosts, and end kept nodes that do not match the pool's present parameters."""
        for index, host in enumerate(hosts):
            self._topology.put(index, host)
        if self._named is not None:
            for kept in self._named.sort({index: self._topology.launch(index, image) for index in range(len(hosts))}):
                self._discard_kept(kept)

    def _start(self, slot: NodeSlot, host: Host, image: str | None) -> NodeClient:
        """Start the node of an index on a host, or take over a kept one, and connect to it.

        Raises:
            SkywardError: it cannot be started.
        """
        with self._table.changed:
            self._topology.put(slot.index, host)
            launch = self._topology.launch(slot.index, image)
        if self._named is not None and (kept := self._named.take(slot.index)) is not None:
            try:
                taken = replace(launch, key=bytes.fromhex(kept.key))
                node, environment = self.allocation.adopt(taken, kept.about, kept.agent)
                return self._connect(slot, host, taken, node, environment)
            except PoolClosedError:
                raise
            except SkywardError as error:
                self._tell(f"node {slot.index} of pool {self._named.name} is restarted: {error}")
        return self._connect(slot, host, launch, host.start(launch))

    def _announce(self) -> None:
        """Send each node its COMPUTE_POOL document if that has changed because another node was replaced."""
        with self._table.changed:
            nodes = [slot.node for slot in self._table.slots if slot.node is not None and slot.node.is_connected]
            documents = [(node, self._topology.document(node.index)) for node in nodes]
        for node, document in documents:
            if node.document != document:
                node.move(document)

    def _discard_kept(self, kept: KeptNode) -> None:
        """End a kept node that this client cannot use."""
        launch = replace(self._topology.launch(0, None), node=kept.index, key=bytes.fromhex(kept.key))
        self.allocation.adopt(launch, kept.about, kept.agent)[0].remove()

    def _connect(
        self, slot: NodeSlot, host: Host, launch: Launch, started: Node, environment: Mapping[str, str] | None = None
    ) -> NodeClient:
        """Connect to a node, whose workers get this environment if it was kept."""
        order = {"compute_pool": launch.compute_pool, "lease_s": self._settings.lease_s, "environment": environment}
        node = NodeClient(
            slot.index,
            host,
            started,
            self._settings.worker,
            self._link,
            key=launch.key,
            document=launch.compute_pool,
            order=None if self._named is None else order,
        )
        try:
            with self._table.changed:
                if self._table.closed.is_set():
                    raise PoolClosedError(f"Pool {self._pool} was closed.")
                slot.node = node  # from here on, closing the pool ends it
            for opened in node.open(self._settings.provision_timeout_s):
                opened.buffer = self._settings.worker.buffer
        except BaseException:
            self._discard(node)
            raise
        if self._named is not None:
            self._named.note(
                KeptNode(
                    index=slot.index,
                    key=launch.key.hex(),
                    agent=node.agent,
                    shape=shape_of(launch),
                    about=self.allocation.about(slot.index),
                )
            )
        return node

    def _discard(self, node: NodeClient) -> None:
        """Remove a partly started node, or report that its lease will end it."""
        try:
            node.discard()
        except SkywardError as error:
            self._tell(f"what was begun of node {node.index} could not be removed, and ends by its lease: {error}")

    def _serves(self, slot: NodeSlot, node: NodeClient) -> bool:
        """Put a node into service; return False if it has been lost again."""
        with self._table.changed:
            was_absent, slot.absent = bool(slot.absent), ""
        if was_absent:
            self._dispatcher.restore(self._settings.worker.ranks_of_node(slot.index))
        try:
            self._group.node_started(node)
        except BaseException:
            self._discard(node)
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
        """Report a failed attempt; return False if the pool can no longer open (its error has all reasons)."""
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
        if give_up:  # slower attempts follow, for which no call waits
            with self._table.changed:
                slot.give_up(text)
                self._table.changed.notify_all()
            self._tell(" ".join(slot.absent.split()))
            self._dispatcher.give_up(self._settings.worker.ranks_of_node(slot.index), slot.absent)
        return True

    def _end(self, failure: PoolError) -> None:
        """Fail all calls and stop replacing nodes, since the pool has been ended from elsewhere."""
        if not self._table.closed.is_set():
            self._failure = failure
            self._dispatcher.close(failure)
            self.stop()

    def _end_by(self, how: str) -> None:
        self._end(PoolError(f"Pool {self._pool} {how.removesuffix('.')}. Open another one."))

    def _budget_spent(self, text: str) -> None:
        """End the pool, since the provider is about to end all machines."""
        self._tell(text)
        self._end(BudgetSpentError(text))

    # events of nodes and the provider --------------------------------------------------------------------------

    def node_gone(self, node: NodeClient) -> None:
        """Start the replacement of a lost node whose calls have been settled."""
        assert node.gone is not None
        gone = node.gone
        self._record.event("node_lost", node=node.index, host=node.host.name, reason=gone.text, code=gone.code)
        with self._table.changed:
            if node in self._table.draining:
                self._table.draining.remove(node)
                return
            self._table.changed.notify_all()
            slot = self._table.slots[node.index]
            if slot.node is not node or slot.is_starting or self._table.closed.is_set():
                return  # the thread that starts it detects the loss
            slot.start_again()
        self._replace(node, f"{node.gone.text.rstrip('.')}. {_STARTING}")

    def preempted(self, notice: PreemptionNotice) -> None:
        """Drain the node of a host that is about to be removed, and request another one immediately."""
        until = time.monotonic() + notice.left_s
        with self._table.changed:
            slot = next((each for each in self._table.slots if each.node and each.node.host is notice.host), None)
            node = slot.node if slot is not None else None
            if slot is None or node is None or slot.is_starting or node.gone or self._table.closed.is_set():
                return
            slot.start_again()
            self._table.draining.append(node)
        threading.Thread(target=self._drain, args=(node, until), name="skyward-drain", daemon=True).start()
        self._replace(node, f"{notice.text}: it gets no new calls. {_STARTING}")

    def _drain(self, node: NodeClient, until: float) -> None:
        """Wait until `until` at most for a node's calls to finish, then end it (in a separate thread)."""

        def left() -> float:
            return until - time.monotonic()

        self._group.drain_node(node, left)
        while any(map(self._dispatcher.held, node.workers)) and left() > 0 and node.gone is None:
            if self._table.closed.wait(_LOOK_S):
                return
        if node.gone is not None:
            return
        if any(map(self._dispatcher.held, node.workers)):
            node.declare_lost("its host was about to be reclaimed, and its time was up")
            return
        try:
            node.discard(min(DRAIN_GRACE_S, max(1.0, left())))
        except SkywardError:
            pass  # its host may be gone already; closing the pool tries again, and reports errors
        with self._table.changed:
            if node not in self._table.draining:
                return  # it was lost, or the pool was closed, in the meantime
            self._table.draining.remove(node)
        self._group.node_drained(node)

    # the end ---------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop replacing nodes."""
        with self._table.changed:
            self._table.closed.set()
            self._table.changed.notify_all()

    def close(self, grace_s: float) -> None:
        """Shut all nodes down, exiting their plugins first; remove those that are left after `grace_s`."""
        self._closing = self._taken_nodes()
        self._on_each(self._closing, lambda node: node.close(grace_s))

    def keep(self, grace_s: float) -> None:
        """Keep the nodes for the pool's next client, and end those that cannot be kept.

        Raises:
            SkywardError: one of the latter cannot be removed.
        """
        assert self._named is not None and self._named.keep_s is not None
        keep_s, draining = self._named.keep_s, tuple(self._table.draining)
        nodes = self._taken_nodes()
        answers = self._on_each(nodes, lambda node: node not in draining and node.keep(keep_s, grace_s))
        self._kept = {node.index for node, is_kept in zip(nodes, answers, strict=True) if is_kept}
        for node, is_kept in zip(nodes, answers, strict=True):
            if not is_kept:
                node.close(0.0)

    def _taken_nodes(self) -> list[NodeClient]:
        """Stop replacing nodes, and take all of them off the table."""
        self.stop()
        with self._table.changed:
            nodes = list(dict.fromkeys(self._table.all_nodes()))
            self._table.draining = []
            for slot in self._table.slots:
                slot.node = None
        return nodes

    def _on_each(self, nodes: Sequence[NodeClient], action: Callable[[NodeClient], T]) -> list[T]:
        """Call a function with several nodes at once; return the results in order, or raise the first error."""
        if not nodes:
            return []
        with ThreadPoolExecutor(min(_AT_ONCE, len(nodes)), thread_name_prefix="skyward-stop") as threads:
            try:
                ends = [threads.submit(action, node) for node in nodes]
            except RuntimeError:  # no more threads can be started; do it here
                return list(map(action, nodes))
            # Python handles a signal that arrives just before a wait for a lock only after that wait (8 of 24 times
            # on two busy cores), and its handler may call hurry
            while wait(ends, _SIGNALS_S).not_done:
                pass
        return [end.result() for end in ends]

    def hurry(self) -> None:
        """Remove the nodes that `close` waits for, which ends it."""
        for node in self._closing:
            threading.Thread(target=node.remove, name="skyward-hurry", daemon=True).start()

    def release(self) -> None:
        """Remove what is left of the pool, or keep it, and wait for running attempts, which then end."""
        if self._named is not None and self._kept:
            self.allocation.keep(self._named.keep_s or 0.0, self._kept)
        else:
            self.allocation.close()
            if self._named is not None and self._named.untaken():
                self._settings.provider.destroy(self._pool)
        with self._table.changed:
            under_way = [thread for thread in self._threads if thread.is_alive()]
        deadline = time.monotonic() + _LAST_ATTEMPT_S
        for thread in under_way:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._released.set()
        if self._named is not None:
            if self._kept:
                self._named.keep(self._kept)
            else:
                self._named.forget()
