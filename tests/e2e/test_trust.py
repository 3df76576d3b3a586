"""What a node that is in somebody else's hands can do to the others and to the client."""

from __future__ import annotations

import pytest

import skyward as sky
from skyward._pool.nodes.node_client import NodeClient
from skyward.errors import AuthenticationError
from skyward.wire.handshake import agent_endpoint, connect, worker_endpoint


def test_the_key_of_one_node_opens_no_other() -> None:
    """Neither its agent nor its worker, under whichever name; to its own node it does."""
    with sky.ComputePool(sky.Local(), nodes=2, display="quiet") as pool:
        own, other = pool._table.nodes
        there = other._node.wait_ready(1)
        doors = [(there.agent, agent_endpoint(1)), (there.agent, agent_endpoint(0))]
        doors += [(there.workers[0], worker_endpoint(node, 0, 0)) for node in (0, 1)]
        for address, endpoint in doors:
            with pytest.raises(AuthenticationError, match="does not hold its key"):
                connect(other._node.connect(address), own._key, endpoint)
        connect(other._node.connect(there.agent), other._key, agent_endpoint(1)).close()


def test_a_node_that_is_replaced_leaves_no_key_behind() -> None:
    """The one in its place, which has its index, has another key."""
    with sky.ComputePool(sky.Local(), nodes=2, display="quiet") as pool:
        first: NodeClient = pool._table.nodes[1]
        first.declare_lost("the test wants another")
        assert first.removed.wait(60)
        while len(pool._table.nodes) < 2 or (second := pool._table.nodes[1]) is first or not second.is_connected:
            pass
        assert second._key != first._key
