"""What a pool measures of its nodes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from skyward._pool import facts
from skyward._pool.nodes.node_client import NodeClient
from skyward.model.spec import Worker
from tests.unit.pool.conftest import Make


def test_a_node_that_starts_takes_no_figures_away(make: Make, monkeypatch: Any) -> None:
    """Its agent cannot be asked yet; the others are."""
    monkeypatch.setattr(facts, "ANSWER_S", 0.0)
    host: Any = SimpleNamespace(address="here")
    nodes = [NodeClient(index, host, cast(Any, None), Worker(), cast(Any, None), key=bytes(32)) for index in (0, 1)]
    asked: list[Any] = []
    nodes[1]._agent = cast(Any, SimpleNamespace(post=asked.append))
    table: Any = SimpleNamespace(all_nodes=lambda: nodes)

    found = facts.measure("pool", table, make(workers=2).dispatcher)

    assert [node.node for node in found.nodes] == [1]
    assert len(asked) == 1
