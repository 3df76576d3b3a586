"""When a node that says nothing is given up."""

from __future__ import annotations

from typing import Any, cast

import pytest

from skyward._pool.nodes import node_client as nodes
from skyward._pool.nodes.node_client import BEAT_S, SILENCE_S, NodeClient
from skyward.model.spec import Worker
from skyward.wire.messages import Kind
from tests.unit.pool.fakes import FakeConnection, FakeTime


class Agent(FakeConnection):
    """Takes what an agent is asked."""

    def close(self) -> None:
        self.broken = True


class Watched:
    """A node whose agent never answers by itself."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.time, self.agent = FakeTime(), Agent()
        self.time.monotonic_ns = lambda: int(self.time.now * 1e9)  # type: ignore[attr-defined]
        monkeypatch.setattr(nodes, "time", self.time)
        self.node = NodeClient(0, cast(Any, None), cast(Any, None), Worker(), cast(Any, None), key=bytes(32))
        self.node._agent = cast(Any, self.agent)

    def beat(self, seconds: float) -> float | None:
        """Ask for signs of life for so long; after how many seconds the node was given up, None if it was not."""
        began = self.time.now
        while self.time.now - began <= seconds:
            self.node.beat()
            if self.agent.broken:
                return self.time.now - began
            self.time.pass_(BEAT_S)
        return None


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def test_a_node_that_answers_nothing_is_given_up(watched: Watched) -> None:
    """Ten seconds after the first question, and with a word on it."""
    lost_s = watched.beat(60)
    assert lost_s is not None
    assert SILENCE_S < lost_s <= SILENCE_S + BEAT_S
    assert {frame.kind for frame in watched.agent.sent} == {Kind.PING}
    assert watched.node._lost_reason == f"it has answered nothing for {lost_s:.0f} s"


def test_a_node_that_was_asked_nothing_owes_no_answer(watched: Watched) -> None:
    """Its plugins may take long to set up, and nobody asks meanwhile."""
    watched.time.pass_(60)
    assert watched.beat(SILENCE_S / 2) is None


def test_a_client_that_was_stopped_gives_its_nodes_time(watched: Watched) -> None:
    """Their answers lie unread; the time that passed without a question does not count alone."""
    assert watched.beat(2) is None
    watched.time.pass_(60)
    assert watched.beat(1) is None
    watched.node._unanswered = []  # what its reader does with an answer
    assert watched.beat(SILENCE_S - BEAT_S) is None
