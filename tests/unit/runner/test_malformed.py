"""Control messages that make no sense, from an authenticated client: they cost its connection, never the node."""

from __future__ import annotations

from skyward.wire.frames import Frame
from skyward.wire.messages import Kind
from tests.unit.runner.node import Client, RunningNode

MALFORMED = [
    (Kind.DUMP, b"[" * 100_000),
    (Kind.DUMP, b"{}"),
    (Kind.DUMP, b'{"worker": {}}'),
    (Kind.DUMP, b'{"worker": 9}'),
    (Kind.KILL, b'{"worker":' * 100_000),
    (Kind.KILL, b"null"),
    (Kind.PLACE, b"{}"),
    (Kind.PLACE, b"\xff"),
    (Kind.SHUTDOWN, b'{"grace_s": NaN}'),
    (Kind.SHUTDOWN, b'{"grace_s": -Infinity}'),
    (Kind.SHUTDOWN, b'{"grace_s": 1e999}'),
    (Kind.SHUTDOWN, b'{"grace_s": -1}'),
    (Kind.SHUTDOWN, b'{"grace_s": true}'),
    (200, b""),
]


def test_malformed_messages_cost_only_their_connection(node: RunningNode) -> None:
    """Deep JSON, numbers that are none, missing and wrong fields: the agent closes that connection and goes on."""
    other = node.client()
    for kind, head in MALFORMED:
        client = Client(node.client().connection)
        client.connection.send(Frame(kind, 0, head))
        assert client.is_closed(), (kind, head[:40])
    other.ping_s()
    assert node.process.poll() is None
