"""Calls that a client takes back from a worker, and gives it again."""

from __future__ import annotations

from skyward.wire import payload
from skyward.wire.frames import Frame
from skyward.wire.messages import CALL_HEAD, Kind
from tests.unit.runner.node import RunningNode


def test_a_recalled_call_that_is_sent_again_runs_in_its_new_place(node: RunningNode) -> None:
    """Clients count on it: what of a lost worker has begun, and must not run again, are the first it was sent."""
    client = node.client()
    node.do("import time; time.sleep(0.3)")
    node.do("import os; os.write(1, b'recalled\\n')")
    (connection,) = node._workers.values()
    connection.send(Frame(Kind.RECALL, 2))
    node.do("import os; os.write(1, b'other\\n')")
    again, _ = payload.dumps((("import os; os.write(1, b'recalled\\n')", {}), {}))
    connection.send(Frame(Kind.CALL, 2, CALL_HEAD.pack(1, 0) + again))
    said = "".join(text for _, _, text in client.output(until="recalled\n"))
    assert said == "other\nrecalled\n"
