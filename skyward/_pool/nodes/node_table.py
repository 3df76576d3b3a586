"""The nodes of a pool: `NodeTable`, and by `ConnectivityMatrix` which of them reach which.

The table has one slot per index, with its node or the state of the attempts to start one.

Paths between nodes are tried while ranks wait for each other and none moves. A network that swallows packets in one
direction breaks no connection: senders repeat themselves for a quarter of an hour, receivers wait, and each framework's
own limit blames whoever noticed first. So agents try it, by datagrams (see `runner.diagnosis`), while the client
reaches both. A direction counts as lost only if it has worked before in this pool, or the other one does: networks that
let no datagrams through at all are not judged.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from skyward._pool.nodes.node_client import NodeClient
from skyward.errors import PoolError
from skyward.system import threading, time
from skyward.system.futures import Future
from skyward.system.futures import TimeoutError as FutureTimeout

WAITS_S = (0.0, 1.0, 2.0, 4.0, 8.0)  # before the first attempts to replace a node
SLOW_S = 15.0  # before each one after them, for as long as the pool is open
SETTLED_S = 60.0  # a node that is lost sooner is replaced as slowly as if an attempt had failed
Pair = tuple[int, int]  # sender and receiver, by index of the node
_ANSWER_S = 3.0  # for each step of a trial; the longest takes half a second
_AGAIN_S = 0.5  # between two trials while a partition lasts


@dataclass(slots=True)
class NodeSlot:
    """One index. It has a node, or a thread that gets it one, or both while the node is about to be taken away.

    Attributes:
        node: the last one it has had.
        is_starting: whether a thread gets it a node.
        attempts: how often its node was replaced, or tried to be, in quick succession.
        failures: attempts that failed since it had a node.
        error: why the last of them has failed.
        absent: why it has no node after many attempts, "" while it has not been given up.
        ready_at: monotonic time at which its node began to serve.
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
        """Seconds until the next attempt, which is counted."""
        self.attempts += 1
        return WAITS_S[self.attempts - 1] if self.attempts <= len(WAITS_S) else SLOW_S

    def failed(self, error: Exception) -> bool:
        """Note why an attempt has failed; whether it is the one after which a node is given up."""
        self.error, self.failures = error, self.failures + 1
        return self.failures >= len(WAITS_S) and not self.absent

    def give_up(self, error: str) -> None:
        """Note that it has no node after many attempts, the last of which failed with this error."""
        why = f" ({self.node.gone.text})" if self.node is not None and self.node.gone is not None else ""
        error = error if error.endswith(".") else f"{error}."
        self.absent = (
            f"node {self.index} is gone{why}, and could not be replaced in {self.failures} attempts: {error} "
            f"The pool goes on trying every {SLOW_S:g} s."
        )

    def start_again(self) -> None:
        """Its node is lost, or about to be."""
        self.is_starting = True
        if time.monotonic() - self.ready_at > SETTLED_S:
            self.attempts = 0


class NodeTable:
    """The nodes of a pool. `NodeManager` changes it, under the lock of `changed`.

    Args:
        count: how many there should be.

    Attributes:
        changed: notified when something has.
        draining: nodes that finish their calls, with their successors in the slots or on the way.
        early: nodes that were connected before the pool was open, to be set up together.
        is_open: whether the first set-up has begun.
        closed: set when nothing is started any more.
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
        """The last node of each index that has ever had one, in order; also those that are gone."""
        with self.changed:
            return tuple(slot.node for slot in self.slots if slot.node is not None)

    @property
    def alive(self) -> list[NodeClient]:
        """Those that are not gone."""
        return [node for node in self.nodes if node.gone is None]

    def all_nodes(self) -> list[NodeClient]:
        """The draining ones included; takes no lock, which may be held for ever in a forked process."""
        return [*(slot.node for slot in self.slots if slot.node is not None), *self.draining]

    @property
    def count(self) -> int:
        """How many nodes take calls."""
        with self.changed:
            return sum(slot.node is not None and slot.node.gone is None and not slot.is_starting for slot in self.slots)

    @property
    def is_starting(self) -> bool:
        """Whether a node is being started or replaced."""
        with self.changed:
            return any(slot.is_starting for slot in self.slots)

    @property
    def absent(self) -> str:
        """Why a node could not be had in many attempts, "" while none was given up."""
        with self.changed:
            return next((slot.absent for slot in self.slots if slot.absent), "")

    def waits_for_first_set_up(self, node: NodeClient) -> bool:
        """Note a node that is connected before the pool is open; False if the first set-up has begun."""
        with self.changed:
            if not self.is_open:
                self.early.append(node)
                self.changed.notify_all()
            return not self.is_open

    def wait_whole(self) -> None:
        """Block while nodes are being started or replaced; Ctrl-C gets through.

        Raises:
            PoolError: one was given up.
        """
        with self.changed:
            self.changed.wait_for(lambda: self.absent or self._is_whole() or self.closed.is_set())
            absent = self.absent
        if absent:
            raise PoolError(f"A call for every node cannot be run: {absent}")

    def wait_for(self, index: int) -> NodeClient:
        """The node of an index; blocks while it is being started or replaced.

        Raises:
            PoolError: it was given up, or the pool has ended.
        """
        slot = self.slots[index]
        with self.changed:
            self.changed.wait_for(lambda: slot.absent or self._is_there(slot) or self.closed.is_set())
            if slot.node is None or slot.node.gone is not None:
                raise PoolError(f"Node {index} is not there: {slot.absent or 'the pool has ended'}.")
            return slot.node

    def _is_there(self, slot: NodeSlot) -> bool:
        return slot.node is not None and slot.node.gone is None and not slot.is_starting

    def _is_whole(self) -> bool:
        """Whether every node is there; one that is gone may not be among those that are replaced yet."""
        return not any(slot.is_starting or (slot.node and slot.node.gone is not None) for slot in self.slots)

    def is_hopeless(self, least: int, needed: int) -> bool:
        """Whether the pool cannot open any more: too many nodes have failed, or were given up; under the lock."""
        failed = sum(slot.error is not None for slot in self._not_early())
        absent = sum(bool(slot.absent) for slot in self.slots)
        return failed > len(self.slots) - least or len(self.slots) - absent < needed

    def start_error(self) -> Exception:
        """Why nodes could not be started, as one error; under the lock."""
        errors = [slot.error for slot in self._not_early() if slot.error is not None]
        if len(errors) == 1:
            return errors[0]
        kinds = {type(error) for error in errors}
        text = "\n".join(dict.fromkeys(map(str, errors)))
        try:
            return kinds.pop()(text) if len(kinds) == 1 else PoolError(text)
        except TypeError:  # a class that needs more than a message
            return PoolError(text)

    def _not_early(self) -> list[NodeSlot]:
        here = {node.index for node in self.early}
        return [slot for slot in self.slots if slot.index not in here]


# which of them reach which -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Trial:
    """What one trial has found.

    Attributes:
        answered: the nodes that answered all steps, which the client therefore reaches.
        heard: pairs of them of which the second has heard the first.
    """

    answered: frozenset[int] = frozenset()
    heard: frozenset[Pair] = frozenset()

    def lost(self, known: Iterable[Pair]) -> frozenset[Pair]:
        """The directions that fail, of those that have worked before (`known`) or whose opposite works."""
        proven = {*known, *((to, sender) for sender, to in self.heard)}
        return frozenset(
            (sender, to) for sender, to in proven - self.heard if sender in self.answered and to in self.answered
        )


class ConnectivityMatrix:
    """The paths between the nodes of a pool.

    Args:
        table: the nodes.
    """

    def __init__(self, table: NodeTable) -> None:
        self._table = table
        self._trying = threading.Lock()
        self._known: set[tuple[NodeClient, NodeClient]] = set()  # directions that have worked
        self._asked: set[NodeClient] = set()  # nodes that were there at the last trial
        self.lost: frozenset[Pair] = frozenset()  # as the last failure report says, until they work again

    @property
    def spans_hosts(self) -> bool:
        """Whether the nodes lie at more than one address, so that there is a network between them."""
        return len({node.address for node in self._table.alive}) > 1

    @property
    def is_tried(self) -> bool:
        """Whether there was a trial since the last node has come."""
        return self._asked.issuperset(self._table.alive)

    def begin(self) -> Future[frozenset[Pair]]:
        """Try them, in a thread of its own; the directions that fail."""
        found: Future[frozenset[Pair]] = Future()

        def run() -> None:
            try:
                found.set_result(self.failing())
            except Exception as bug:  # it must not leave the call waiting
                found.set_exception(bug)

        threading.Thread(target=run, name="skyward-paths", daemon=True).start()
        return found

    def failing(self) -> frozenset[Pair]:
        """Try them, which takes half a second; the directions that fail."""
        with self._trying:
            nodes = {node.index: node for node in self._table.alive}
            self._asked = here = set(nodes.values())
            self._known = {pair for pair in self._known if here.issuperset(pair)}  # those replaced have to work anew
            known = [(sender.index, to.index) for sender, to in self._known]
            trial = tried(tuple(here))
            self._known.update((nodes[sender], nodes[to]) for sender, to in trial.heard)
        return trial.lost(known)

    def await_whole(self, limit_s: float, closed: Callable[[], bool]) -> bool:
        """Wait until the directions of the last failure report work again; whether they do within the limit."""
        deadline = time.monotonic() + limit_s
        while self.lost and not closed():
            self.lost &= self.failing()
            if self.lost:
                if time.monotonic() > deadline:
                    return False
                time.sleep(_AGAIN_S)
        return True

    def describe(self, lost: frozenset[Pair]) -> str:
        """Sentences that name directions that fail, with nodes and addresses."""
        names = {node.index: f"node {node.index} ({node.address})" for node in self._table.alive}
        return " ".join(
            f"Neither of {names[sender]} and {names[to]} gets what the other sends."
            if (to, sender) in lost
            else f"Nothing that {names[sender]} sends reaches {names[to]}; the other way it works."
            for sender, to in sorted(lost)
            if names.keys() >= {sender, to} and not ((to, sender) in lost and to < sender)
        )


def tried(nodes: Sequence[NodeClient]) -> Trial:
    """Let nodes send to each other; what has arrived. Those that do not answer take no part."""
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
    """One step on all nodes at once; the answers that come in time."""
    asked = {node: node.probe(order(node)) for node in nodes}
    deadline = time.monotonic() + _ANSWER_S
    answers = {}
    for node, answer in asked.items():
        try:
            answers[node] = answer.result(max(0.0, deadline - time.monotonic()))
        except FutureTimeout:
            continue  # the heartbeat decides what becomes of it
    return answers
