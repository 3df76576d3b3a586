"""A process that user code forks from a worker ends with its copy of the call, and the worker goes on."""

from __future__ import annotations

import signal
import time

from skyward.wire.messages import STDERR, STDOUT
from tests.unit.runner.node import RunningNode

FORK = """
import os
child = os.fork()
if child == 0:
    print("in the child")
else:
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.write(1, b"ended with %d.\\n" % status)
"""
RAISE = FORK.replace('print("in the child")', 'raise ValueError("of the child")')


def test_a_child_ends_where_the_call_does(node: RunningNode) -> None:
    """With what it has printed and with its status; the worker takes further calls."""
    client = node.client()
    before = node.pid(client)
    node.do(FORK)
    written = "".join(text for _, _, text in client.output(until="ended with"))
    assert "in the child" in written
    assert "ended with 0." in written
    node.do(RAISE)
    written = "".join(text for _, _, text in client.output(until="ended with"))
    assert "ValueError: of the child" in written  # on the other stream
    assert "ended with 1." in written
    assert node.pid(client) == before


def test_what_a_child_wrote_comes_before_its_end(node: RunningNode) -> None:
    """Also where the agent reads late, and would find the text of child and parent at once."""
    client = node.client()
    node.pid(client)  # the agent knows the client now, and sends it all that is written
    node.process.send_signal(signal.SIGSTOP)
    node.do(RAISE)
    time.sleep(0.5)
    node.process.send_signal(signal.SIGCONT)
    streams = [stream for _, stream, _ in client.output(until="ended with")]
    assert streams == sorted(streams, reverse=True)
    assert set(streams) == {STDOUT, STDERR}
