"""Which directions between nodes count as lost, when they are tried, and what is said of them."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any, cast

import pytest

from skyward._pool.collective.diagnosis import QUIET_S, PartitionDetector
from skyward._pool.nodes import node_table
from skyward._pool.nodes.node_client import NodeClient
from skyward._pool.nodes.node_table import ConnectivityMatrix, NodeTable, Pair, Trial, tried

ALL = {(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)}


class Network:
    """Nodes that hear each other, except in the directions that fail."""

    def __init__(self, nodes: int = 2) -> None:
        self.nodes = [Node(self, index) for index in range(nodes)]
        self.fails: set[Pair] = set()
        self.silent: set[int] = set()
        self.steps: list[str] = []

    @property
    def alive(self) -> list[Node]:
        return self.nodes


class Node:
    """One of them, with an agent that does the steps."""

    def __init__(self, network: Network, index: int) -> None:
        self.network, self.index, self.address = network, index, f"10.0.0.{index}"
        self.sent_to: list[int] = []
        self.secret = ""

    def probe(self, order: dict[str, Any]) -> Future[dict[str, Any]]:
        answer: Future[dict[str, Any]] = Future()
        self.network.steps.append(order["step"])
        if self.index not in self.network.silent:
            answer.set_result(getattr(self, order["step"])(order))
        return answer

    def open(self, order: dict[str, Any]) -> dict[str, Any]:
        assert order["address"] == self.address
        self.secret = order["secret"]
        return {"port": 0 if self.address == "nowhere" else 9000 + self.index}

    def send(self, order: dict[str, Any]) -> dict[str, Any]:
        assert all((a, p) == (f"10.0.0.{n}", 9000 + n) and n != self.index for n, a, p in order["peers"])
        self.sent_to = [node for node, _, _ in order["peers"]]
        return {}

    def close(self, _order: dict[str, Any]) -> dict[str, Any]:
        nodes = self.network.nodes
        assert len({node.secret for node in nodes if node.sent_to}) <= 1
        senders = [node.index for node in nodes if self.index in node.sent_to]
        return {"heard": [sender for sender in senders if (sender, self.index) not in self.network.fails]}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_table, "_ANSWER_S", 0.05)
    monkeypatch.setattr(node_table, "_AGAIN_S", 0.0)


def paths_of(network: Network) -> ConnectivityMatrix:
    return ConnectivityMatrix(cast(NodeTable, network))


def try_all(network: Network) -> Trial:
    return tried(cast(list[NodeClient], network.nodes))


# what a trial finds --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("heard", "known", "lost"),
    [
        ({(0, 1), (1, 0)}, ALL, set()),
        ({(1, 0)}, set(), {(0, 1)}),  # datagrams get through, so the other direction fails
        (set(), {(0, 1), (1, 0)}, {(0, 1), (1, 0)}),
        (set(), set(), set()),  # a network that lets no datagrams through
        (set(), {(0, 1)}, {(0, 1)}),  # and one that never did in one direction
        ({(0, 1)}, {(0, 1)}, {(1, 0)}),
        ({(0, 1), (1, 0)}, {(1, 2), (2, 1)}, set()),  # node 2 took no part: its own link is the matter
    ],
)
def test_a_direction_is_lost_if_it_worked_or_the_other_does(
    heard: set[Pair], known: Iterable[Pair], lost: set[Pair]
) -> None:
    """Only between nodes whose agents both answered the client."""
    assert Trial(frozenset({0, 1}), frozenset(heard)).lost(known) == lost


def test_a_trial_asks_all_nodes_step_by_step() -> None:
    """All have sent before one of them counts."""
    network = Network(3)
    network.fails = {(2, 0)}
    assert try_all(network) == Trial(frozenset({0, 1, 2}), frozenset(ALL - {(2, 0)}))
    assert network.steps == ["open"] * 3 + ["send"] * 3 + ["close"] * 3


def test_a_node_that_does_not_answer_takes_no_part() -> None:
    """Nor does one whose address is not its own."""
    network = Network(3)
    network.silent = {1}
    assert try_all(network) == Trial(frozenset({0, 2}), frozenset({(0, 2), (2, 0)}))
    network.nodes[2].address = "nowhere"
    assert try_all(network) == Trial(frozenset({0}), frozenset())


def test_a_node_that_was_replaced_has_to_work_anew() -> None:
    """What its predecessor could proves nothing."""
    network = Network()
    paths = paths_of(network)
    known = [paths.is_tried]
    assert paths.failing() == set()
    known.append(paths.is_tried)
    network.nodes[1] = Node(network, 1)
    known.append(paths.is_tried)
    assert known == [False, True, False]
    network.fails = {(0, 1), (1, 0)}
    assert paths.failing() == set()


def test_a_network_that_lets_nothing_through_is_tried_once() -> None:
    """Nothing was learnt of it, and nothing will be."""
    network = Network()
    network.fails = {(0, 1), (1, 0)}
    paths = paths_of(network)
    assert paths.begin().result(60) == set()
    assert paths.is_tried


def test_it_waits_until_the_network_works_again() -> None:
    """And only for the directions that were lost; not longer than it may, and not for a pool that is closed."""
    network = Network()
    paths = paths_of(network)
    assert paths.await_whole(0.0, lambda: False)
    assert network.steps == []  # nothing was lost
    network.fails = {(0, 1)}
    paths.lost = frozenset({(0, 1)})
    assert not paths.await_whole(0.01, lambda: False)
    assert paths.await_whole(60.0, lambda: len(network.steps) > 30)
    network.fails = set()
    assert paths.await_whole(60.0, lambda: False)
    assert paths.lost == set()


def test_both_nodes_and_the_direction_are_named() -> None:
    """With the addresses at which they should reach each other."""
    paths = paths_of(Network(3))
    assert paths.describe(frozenset({(1, 0)})) == (
        "Nothing that node 1 (10.0.0.1) sends reaches node 0 (10.0.0.0); the other way it works."
    )
    assert paths.describe(frozenset({(0, 1), (1, 0), (2, 1)})) == (
        "Neither of node 0 (10.0.0.0) and node 1 (10.0.0.1) gets what the other sends. "
        "Nothing that node 2 (10.0.0.2) sends reaches node 1 (10.0.0.1); the other way it works."
    )
    assert paths.describe(frozenset({(0, 7)})) == ""  # a node that has gone meanwhile


# when it is tried ----------------------------------------------------------------------------------------------------


class Told:
    """Paths whose trials end as a test says, at once."""

    def __init__(self, *found: Iterable[Pair] | None, known: bool = True) -> None:
        self.spans_hosts, self.is_tried = True, known
        self.found, self.tried = list(found), 0

    def begin(self) -> Future[frozenset[Pair]]:
        self.tried += 1
        self.is_tried = True
        trial: Future[frozenset[Pair]] = Future()
        outcome = self.found.pop(0)
        if outcome is not None:
            trial.set_result(frozenset(outcome))
        return trial


def looks(paths: Told, *still_s: float) -> list[set[Pair]]:
    """What each look gives, with how long no rank has moved then."""
    watch = PartitionDetector(cast(ConnectivityMatrix, paths))
    return [set(watch.look(seconds)) for seconds in still_s]


def test_two_trials_must_agree() -> None:
    """The second begins when the first has ended; a loss that heals between them is none."""
    assert looks(Told({(0, 1)}, {(0, 1), (1, 0)}), 1, 2, 3) == [set(), set(), {(0, 1)}]
    assert looks(Told({(0, 1)}, {(1, 0)}, set(), set()), 1, 2, 3, 4) == [set()] * 4


def test_nothing_is_tried_while_ranks_move() -> None:
    """But once, at the first look, to know what works; and what failed before a rank moved is forgotten."""
    paths = Told(set(), known=False)
    looks(paths, 0, 0, 0, 0.5 * QUIET_S)
    assert paths.tried == 1
    paths = Told({(0, 1)}, {(0, 1)}, {(0, 1)}, set())
    assert looks(paths, 1, 2, 0, 1, 2) == [set()] * 5
    assert paths.tried == 4


def test_a_trial_that_takes_long_is_waited_for() -> None:
    """No other begins meanwhile."""
    paths = Told(None)
    assert looks(paths, 1, 2, 3) == [set()] * 3
    assert paths.tried == 1


def test_nodes_at_one_address_have_no_network_between_them() -> None:
    """Containers of one machine are never asked."""
    network = Network()
    network.nodes[1].address = network.nodes[0].address
    watch = PartitionDetector(paths_of(network))
    assert not watch.on
    assert watch.look(60) == set()
    assert network.steps == []
