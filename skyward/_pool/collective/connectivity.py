"""Network partitions: which nodes of a pool reach which, tried while ranks wait for each other and none moves.

A network that swallows packets in one direction breaks no connection: senders repeat themselves for a quarter of an
hour, receivers wait, and each framework's own limit blames whoever noticed first. So agents try it, by datagrams (see
`runner.diagnosis`), while the client reaches both. A direction counts as lost only if it has worked before in this
pool, or the other one does: networks that let no datagrams through at all are not judged.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from skyward._pool.nodes.node_client import NodeClient
from skyward._pool.nodes.node_table import NodeTable
from skyward.system import threading, time
from skyward.system.futures import Future
from skyward.system.futures import TimeoutError as FutureTimeout

Pair = tuple[int, int]  # sender and receiver, by index of the node
QUIET_S = 0.9  # how long no rank may have moved before the network is looked at
_ANSWER_S = 3.0  # for each step of a trial; the longest takes half a second
_AGAIN_S = 0.5  # between two trials while a partition lasts


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


class PartitionDetector:
    """The paths between the nodes of one call's ranks. They are tried while none of the ranks moves, and once before,
    to know which of them work at all.

    Attributes:
        on: whether there is a network between them.
    """

    def __init__(self, paths: ConnectivityMatrix) -> None:
        self._paths = paths
        self._trial: Future[frozenset[Pair]] | None = None
        self._suspected: frozenset[Pair] = frozenset()
        self.on = paths.spans_hosts

    def look(self, still_s: float) -> frozenset[Pair]:
        """To be called again and again, with how long no rank has moved.

        Returns the directions that failed in two trials, one after the other, while none moved.
        """
        if not self.on or (self._trial is not None and not self._trial.done()):
            return frozenset()
        quiet = still_s >= QUIET_S
        failing = self._trial.result() if self._trial is not None and quiet else frozenset()
        confirmed, self._suspected, self._trial = failing & self._suspected, failing, None
        if not confirmed and (quiet or not self._paths.is_tried):
            self._trial = self._paths.begin()
        return confirmed


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
