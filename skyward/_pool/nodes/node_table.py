"""The nodes of a pool (`NodeTable`), and the network between them (`ConnectivityMatrix`).

The table has one slot per index, with its node or the state of the attempts to start one.

Paths between nodes are tried while ranks wait for each other without progress. A network that drops packets in one
direction breaks no connection: senders retransmit for a quarter of an hour, receivers wait, and each framework's own
time limit blames the rank that noticed first. Agents therefore test it with datagrams (see `runner.diagnosis`), while
the client can reach both. A direction counts as lost only if it has worked before in this pool or the opposite one
works, so that networks without any datagrams are not reported.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from skyward._pool.nodes.node_client import NodeClient
from skyward._pool.signals import listen
from skyward.errors import PoolError
from skyward.system import threading, time
from skyward.system.futures import Future
from skyward.system.futures import TimeoutError as FutureTimeout

WAITS_S = (0.0, 1.0, 2.0, 4.0, 8.0)  # before the first attempts to replace a node
SLOW_S = 15.0  # before each later one, as long as the pool is open
SETTLED_S = 60.0  # the loss of a younger node counts as a failed attempt
Pair = tuple[int, int]  # node indexes of sender and receiver
_ANSWER_S = 3.0  # limit for each step of a trial; the longest takes 0.5 s
_AGAIN_S = 0.5  # between trials during a partition


@dataclass(slots=True)
class NodeSlot:
    """Slot of one index. It has a node, or a thread that starts one, or both while the node is drained.

    Attributes:
        node: the latest node.
        is_starting: whether a thread is starting a node for it.
        attempts: number of attempts to replace its node in quick succession.
        failures: number of failed attempts since it had a node.
        error: error of the last failed attempt.
        absent: why it has no node after many attempts; "" if it has not been given up.
        ready_at: monotonic time at which its node entered service.
    """

    index: int
    node: NodeClient | None = None
    is_starting: bool = True
    attempts: int = 0
    failures: int = 0
    error: Exception | None = None
    absent: str = ""
    ready_at: float = 0.0

    def next_wait(self) -> float:
        """Count the next attempt, and return the seconds to wait before it."""
        self.attempts += 1
        return WAITS_S[self.attempts - 1] if self.attempts <= len(WAITS_S) else SLOW_S

    def failed(self, error: Exception) -> bool:
        """Record a failed attempt; return whether it is the one after which the node is given up."""
        self.error, self.failures = error, self.failures + 1
        return self.failures >= len(WAITS_S) and not self.absent

    def give_up(self, error: str) -> None:
        """Mark the slot as without a node after many attempts, the last of which failed with this error."""
        why = f" ({self.node.gone.text})" if self.node is not None and self.node.gone is not None else ""
        error = error if error.endswith(".") else f"{error}."
        self.absent = (
            f"node {self.index} is gone{why}, and could not be replaced in {self.failures} attempts: {error} "
            f"The pool goes on trying every {SLOW_S:g} s."
        )

    def start_again(self) -> None:
        """Prepare for a replacement, since its node is lost or about to be."""
        self.is_starting = True
        if time.monotonic() - self.ready_at > SETTLED_S:
            self.attempts = 0


class NodeTable:
    """The nodes of a pool. `NodeManager` changes it, under the lock of `changed`.

    Args:
        count: the desired number of nodes.

    Attributes:
        changed: notified of changes.
        draining: nodes that finish their calls, whose successors are in the slots or being started.
        early: nodes connected before the pool was open, to be set up together.
        is_open: whether the first set-up has begun.
        closed: set when no more nodes are started.
    """

    def __init__(self, count: int) -> None:
        self.changed = threading.Condition()
        self.slots = [NodeSlot(index) for index in range(count)]
        self.draining: list[NodeClient] = []
        self.early: list[NodeClient] = []
        self.is_open = False
        self.closed = threading.Event()

    @property
    def nodes(self) -> tuple[NodeClient, ...]:
        """The latest node of each index that has had one, in order, including lost ones."""
        with self.changed:
            return tuple(slot.node for slot in self.slots if slot.node is not None)

    @property
    def alive(self) -> list[NodeClient]:
        """The nodes that are not lost."""
        return [node for node in self.nodes if node.gone is None]

    def all_nodes(self) -> list[NodeClient]:
        """Return all nodes, including draining ones, without the lock, which a forked process may never get."""
        return [*(slot.node for slot in self.slots if slot.node is not None), *self.draining]

    @property
    def count(self) -> int:
        """Number of nodes that take calls."""
        with self.changed:
            return sum(slot.node is not None and slot.node.gone is None and not slot.is_starting for slot in self.slots)

    @property
    def is_starting(self) -> bool:
        """Whether a node is being started or replaced."""
        with self.changed:
            return any(slot.is_starting for slot in self.slots)

    @property
    def absent(self) -> str:
        """Why a node could not be started in many attempts; "" if none was given up."""
        with self.changed:
            return next((slot.absent for slot in self.slots if slot.absent), "")

    def waits_for_first_set_up(self, node: NodeClient) -> bool:
        """Add a node that is connected before the pool is open; return False if the first set-up has begun."""
        with self.changed:
            if not self.is_open:
                self.early.append(node)
                self.changed.notify_all()
            return not self.is_open

    def wait_whole(self) -> None:
        """Wait while nodes are being started or replaced; Ctrl-C interrupts the wait.

        Raises:
            PoolError: a node was given up.
        """
        with self.changed:
            whole = partial(self.changed.wait_for, lambda: self.absent or self._is_whole() or self.closed.is_set())
            listen(whole)
            absent = self.absent
        if absent:
            raise PoolError(f"A call for every node cannot be run: {absent}")

    def wait_for(self, index: int) -> NodeClient:
        """Return the node of an index, waiting while it is being started or replaced.

        Raises:
            PoolError: it was given up, or the pool is closed.
        """
        slot = self.slots[index]
        with self.changed:
            there = partial(self.changed.wait_for, lambda: slot.absent or self._is_there(slot) or self.closed.is_set())
            listen(there)
            if slot.node is None or slot.node.gone is not None:
                raise PoolError(f"Node {index} is not there: {slot.absent or 'the pool has ended'}.")
            return slot.node

    def _is_there(self, slot: NodeSlot) -> bool:
        return slot.node is not None and slot.node.gone is None and not slot.is_starting

    def _is_whole(self) -> bool:
        """Return whether every node is in service; a lost one may not be marked as being replaced yet."""
        return not any(slot.is_starting or (slot.node and slot.node.gone is not None) for slot in self.slots)

    def is_hopeless(self, least: int, needed: int) -> bool:
        """Return whether too many nodes failed or were given up for the pool to open; called under the lock."""
        failed = sum(slot.error is not None for slot in self._not_early())
        absent = sum(bool(slot.absent) for slot in self.slots)
        return failed > len(self.slots) - least or len(self.slots) - absent < needed

    def start_error(self) -> Exception:
        """Combine the errors of nodes that could not be started into one; called under the lock."""
        errors = [slot.error for slot in self._not_early() if slot.error is not None]
        if len(errors) == 1:
            return errors[0]
        kinds = {type(error) for error in errors}
        text = "\n".join(dict.fromkeys(map(str, errors)))
        try:
            return kinds.pop()(text) if len(kinds) == 1 else PoolError(text)
        except TypeError:  # the class requires more than a message
            return PoolError(text)

    def _not_early(self) -> list[NodeSlot]:
        here = {node.index for node in self.early}
        return [slot for slot in self.slots if slot.index not in here]


# connectivity ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Trial:
    """Result of one trial.

    Attributes:
        answered: the nodes that answered all steps, and which the client therefore reaches.
        heard: pairs of these in which the second node received datagrams from the first.
    """

    answered: frozenset[int] = frozenset()
    heard: frozenset[Pair] = frozenset()

    def lost(self, known: Iterable[Pair]) -> frozenset[Pair]:
        """Return the failing directions, of those that have worked before (`known`) or whose opposite works."""
        proven = {*known, *((to, sender) for sender, to in self.heard)}
        return frozenset(
            (sender, to) for sender, to in proven - self.heard if sender in self.answered and to in self.answered
        )


class ConnectivityMatrix:
    """State of the paths between the nodes of a pool.

    Args:
        table: the nodes.
    """

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._trying = threading.Lock()
        self._known: set[tuple[NodeClient, NodeClient]] = set()  # directions that have worked
        self._asked: set[NodeClient] = set()  # nodes that were alive at the last trial
        self.lost: frozenset[Pair] = frozenset()  # directions in the last failure report that do not work yet

    @property
    def spans_hosts(self) -> bool:
        """Whether the nodes have several addresses, so that there is a network between them."""
        return len({node.address for node in self._table.alive}) > 1

    @property
    def is_tried(self) -> bool:
        """Whether there was a trial with all present nodes."""
        return self._asked.issuperset(self._table.alive)

    def begin(self) -> Future[frozenset[Pair]]:
        """Start a trial in a separate thread; the future has the failing directions."""
        found: Future[frozenset[Pair]] = Future()

        def run() -> None:
            try:
                found.set_result(self.failing())
            except Exception as bug:  # must not leave the call waiting
                found.set_exception(bug)

        threading.Thread(target=run, name="skyward-paths", daemon=True).start()
        return found

    def failing(self) -> frozenset[Pair]:
        """Run a trial, which takes half a second, and return the failing directions."""
        with self._trying:
            nodes = {node.index: node for node in self._table.alive}
            self._asked = here = set(nodes.values())
            self._known = {pair for pair in self._known if here.issuperset(pair)}  # forget replaced nodes
            known = [(sender.index, to.index) for sender, to in self._known]
            trial = tried(tuple(here))
            self._known.update((nodes[sender], nodes[to]) for sender, to in trial.heard)
        return trial.lost(known)

    def await_whole(self, limit_s: float, closed: Callable[[], bool]) -> bool:
        """Wait until the directions of the last failure report work again; return False if they do not in time."""
        deadline = time.monotonic() + limit_s
        while self.lost and not closed():
            self.lost &= self.failing()
            if self.lost:
                if time.monotonic() > deadline:
                    return False
                time.sleep(_AGAIN_S)
        return True

    def describe(self, lost: frozenset[Pair]) -> str:
        """Return sentences that name failing directions with nodes and addresses."""
        names = {node.index: f"node {node.index} ({node.address})" for node in self._table.alive}
        return " ".join(
            f"Neither of {names[sender]} and {names[to]} gets what the other sends."
            if (to, sender) in lost
            else f"Nothing that {names[sender]} sends reaches {names[to]}; the other way it works."
            for sender, to in sorted(lost)
            if names.keys() >= {sender, to} and not ((to, sender) in lost and to < sender)
        )


def tried(nodes: Sequence[NodeClient]) -> Trial:
    """Make nodes send datagrams to each other, and return what arrived. Nodes that do not answer are left out."""
    secret = secrets.token_hex(16)
    opened = _ask(nodes, lambda node: {"step": "open", "address": node.address, "secret": secret})
    ports = {node: answer["port"] for node, answer in opened.items() if answer["port"]}
    peers = [(node.index, node.address, port) for node, port in ports.items()]
    sent = _ask(ports, lambda node: {"step": "send", "peers": [peer for peer in peers if peer[0] != node.index]})
    closed = _ask(ports, lambda _node: {"step": "close"})
    answered = {node.index for node in sent if node in closed}
    heard = {(sender, node.index) for node, answer in closed.items() for sender in answer["heard"]}
    return Trial(frozenset(answered), frozenset(pair for pair in heard if answered.issuperset(pair)))


def _ask(
    nodes: Iterable[NodeClient], order: Callable[[NodeClient], dict[str, Any]]
) -> dict[NodeClient, dict[str, Any]]:
    """Run one step on all nodes at once; return the answers that arrive in time."""
    asked = {node: node.probe(order(node)) for node in nodes}
    deadline = time.monotonic() + _ANSWER_S
    answers = {}
    for node, answer in asked.items():
        try:
            answers[node] = answer.result(max(0.0, deadline - time.monotonic()))
        except FutureTimeout:
            continue  # the heartbeat decides whether it is lost
    return answers
