"""Ctrl-C, or the end of the client, at any moment: the client ends soon and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import skyward as sky
from skyward.nodes.run_directory import pool_directories
from tests.e2e.clients import Client
from tests.waiting import wait_until


def processes_naming(pattern: str) -> list[str]:
    """Command lines of all processes on this machine in which the pattern is found."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has just ended
            continue
        if re.search(pattern, line):
            found.append(line)
    return found


Start = Callable[..., Client]
Check = Callable[[Client], None]


def assert_interrupted(client: Client) -> None:
    """It ended by KeyboardInterrupt, as a program without skyward would."""
    assert client.end() in (130, -signal.SIGINT), client.seen
    assert "interrupted" in client.seen
    assert "KeyboardInterrupt" in client.seen
    assert "left the pool" not in client.seen


def test_during_the_build(client: Start, nothing_left: Check, provider_name: str) -> None:
    """The build is ended too; no image of it is left, and the next build of the same image works."""
    if provider_name == "local":
        pytest.skip("processes need no image")
    mark = f"mark-{os.getpid()}-{time.monotonic_ns()}"
    one = client(image=f'run=["echo {mark} && sleep 50"]')
    one.wait_for("building skyward:")
    wait_until(lambda: processes_naming(f"echo {mark}"))
    (command,) = processes_naming(f"--tag {one.said(r'building (skyward:[^ ]+)')} ")
    (context,) = re.findall(r"\S*/skyward-build-[^/]+", command)[-1:]
    assert Path(context).is_dir()
    one.interrupt()
    assert_interrupted(one)
    nothing_left(one)
    assert processes_naming(re.escape(context)) == []
    assert not Path(context).exists()
    wait_until(lambda: not processes_naming(f"echo {mark}"))  # the engine's builder hears of it from the command


SLOW_START = """
from skyward._pool.nodes.node_client import NodeClient
_open = NodeClient.open
def slow(self, timeout_s):
    print("starting", flush=True)
    return _open(self, timeout_s)
NodeClient.open = slow
"""


# a line that Python runs when it starts, which in a node never ends
_LATE = "import os, time; 'COMPUTE_POOL' in os.environ and time.sleep(99)"


@pytest.mark.parametrize("delay_s", [0.0, 0.03, 0.1])
def test_during_the_start(client: Start, nothing_left: Check, delay_s: float) -> None:
    """At several moments between the first container and readiness."""
    one = client(extra=SLOW_START, nodes=2)
    one.wait_for("starting")
    time.sleep(delay_s)
    one.interrupt()
    assert_interrupted(one)
    nothing_left(one)


@pytest.mark.parametrize(
    "body",
    [
        "work() >> pool",
        "work() @ pool",
        "(work() & work()) >> pool",
        "list(sky.gather(*(work() for _ in range(50)), stream=True) >> pool)",
        "work(); f = work() > pool; f.result()",
        "pool.map(work.fn.__call__, [])\n        work() >> pool",
    ],
    ids=["one", "every node", "group", "stream", "future", "after others"],
)
def test_during_a_call(client: Start, nothing_left: Check, body: str) -> None:
    """Whatever way the call was sent: the remote function is stopped with the pool."""
    one = client(body, nodes=2)
    one.wait_for("at work")
    one.interrupt()
    assert_interrupted(one)
    nothing_left(one)


def test_a_caught_ctrl_c_leaves_a_pool_that_works(client: Start, nothing_left: Check) -> None:
    """As at a prompt: the call is stopped, the node is free, the pool goes on."""
    one = client(
        """
        quick = sky.compute(int)
        try:
            work() @ pool
        except KeyboardInterrupt:
            started = time.monotonic()
            print("result", quick("7") @ pool, time.monotonic() - started < 20, flush=True)
        """,
        nodes=2,
    )
    one.wait_for("at work")
    one.interrupt()
    assert one.end() == 0, one.seen
    assert "result [7, 7] True" in one.seen
    nothing_left(one)


SLOW_STOP = """
from skyward._pool.nodes.node_client import NodeClient
_close = NodeClient.close
def slow(self, grace_s):
    print("stopping", flush=True)
    time.sleep(1.5)
    _close(self, grace_s)
NodeClient.close = slow
"""


def test_during_the_stop(client: Start, nothing_left: Check) -> None:
    """What is under way is finished first, then the interrupt comes through."""
    one = client("pass", extra=SLOW_STOP, nodes=2)
    one.wait_for("stopping")
    one.interrupt()
    assert_interrupted(one)
    nothing_left(one)


@pytest.mark.parametrize("end", ["SIGTERM", "SIGKILL"])
def test_a_client_that_is_killed(client: Start, engine: Any, end: str) -> None:
    """Its nodes end by their lease; the next pool sweeps up what only it could have removed."""
    one = client(ttl=2)
    one.wait_for("at work")
    pool = one.pool
    one.process.send_signal(signal.Signals[end])
    one.end()
    gone = time.monotonic()

    def nodes() -> list[Any]:
        local = [about for about in sky.Local().find() if about["pool"] == pool and about["state"] == "running"]
        return [
            *local,
            *engine.containers.list(all=True, ignore_removed=True, filters={"label": f"skyward.pool={pool}"}),
        ]

    while nodes():
        assert time.monotonic() - gone < 60, nodes()
        time.sleep(0.1)
    with sky.ComputePool(sky.Local(), display="quiet"):
        assert pool not in {directory.pool for directory in pool_directories()}
