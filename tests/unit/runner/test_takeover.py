"""A node of a pool that is kept: one client after the other has it, each with processes of its own."""

from __future__ import annotations

from typing import Any

import pytest

from skyward.model.instance import EXIT_LEASE
from skyward.wire.messages import Kind
from tests.unit.runner.node import PLACE, Client, RunningNode, Start


def take(client: Client, **order: Any) -> dict[str, Any]:
    client.tell(Kind.TAKE, **{"compute_pool": PLACE.to_json(), "lease_s": 30, "environment": None, **order})
    return client.document(Kind.TAKEN)


def give_back(client: Client, keep_s: float = 30) -> None:
    client.tell(Kind.KEEP, keep_s=keep_s, grace_s=5)
    client.next(Kind.KEPT)


def test_a_client_that_vanishes_leaves_nothing_to_the_next(node: RunningNode) -> None:
    """Its workers may have been used: the node ends by its lease."""
    first = node.client()
    take(first)
    first.connection.close()
    assert "refused" in take(node.client())


def test_a_second_client_is_refused(node: RunningNode) -> None:
    """The one that has the node keeps it."""
    first, second = node.client(), node.client()
    take(first)
    assert take(second) == {"refused": "another client has the node, or had it last"}
    second.tell(Kind.KEEP, keep_s=1, grace_s=0)
    assert second.is_closed()
    assert first.ping_s() < 60
    give_back(first)


@pytest.mark.parametrize("wrong", [{"lease_s": -1}, {"compute_pool": "{"}])
def test_a_malformed_order_changes_nothing(node: RunningNode, wrong: dict[str, Any]) -> None:
    """The connection of the client that sent it ends; the next one gets the node."""
    client = node.client()
    client.tell(Kind.TAKE, **{"compute_pool": PLACE.to_json(), "lease_s": 30, "environment": None, **wrong})
    assert client.is_closed()
    assert take(node.client())["workers"]


def test_it_ends_when_the_time_that_it_is_kept_is_over(start: Start) -> None:
    """With words that say so; a client that takes it in time sets the lease anew."""
    node = start()
    node.ready()
    first = node.client()
    take(first)
    give_back(first, keep_s=0.3)
    first.connection.close()
    status, errors = node.end()
    assert status == EXIT_LEASE
    assert "no client for 0.3 s (the time that it is kept)" in errors
