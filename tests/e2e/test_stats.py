"""`pool.stats()` and `skyward ps --watch`, on containers and on processes."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

import skyward as sky
from tests.e2e.functions import double
from tests.e2e.terminal import Terminal, python
from tests.waiting import wait_until


@sky.compute
def fill(size: int, seconds: float) -> int:
    held = bytearray(b"x") * size
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
    return len(held)


@sky.compute
def fail() -> None:
    raise ValueError("of this test")


@pytest.fixture(scope="module")
def quiet_pool() -> Iterator[sky.ComputePool]:
    with sky.ComputePool(sky.Local(), nodes=2, display="quiet") as pool:
        yield pool


def test_stats_tell_what_nodes_use_and_run(pool: sky.ComputePool) -> None:
    """Calls are counted by node and in all; a busy node uses a processor and memory, an idle one does not."""
    before = pool.stats()
    busy = fill(100_000_000, 3.0) > pool
    with pytest.raises(ValueError, match="of this test"):
        fail() >> pool
    double(2) >> pool
    wait_until(lambda: any(node.running and (node.memory or 0) > 100_000_000 for node in pool.stats().nodes), 60)
    stats = pool.stats()
    assert [node.node for node in stats.nodes] == [0, 1]
    (working,) = (node for node in stats.nodes if node.running)
    (idle,) = (node for node in stats.nodes if not node.running)
    assert working.cores is not None and idle.cores is not None and working.cores > idle.cores
    assert working.memory is not None and working.memory > 100_000_000
    assert working.memory_limit is not None and working.memory < working.memory_limit
    assert working.cpu_s is not None and working.received is not None and working.gpus == ()
    assert (stats.running, stats.failed - before.failed, stats.done - before.done) == (1, 1, 2)
    assert sum(node.done for node in stats.nodes) == stats.done
    assert busy.result() == 100_000_000


def test_ps_looks_again_until_ctrl_c(quiet_pool: sky.ComputePool) -> None:
    """With what each node uses; in a terminal and in a pipe, as text and as JSON."""
    double(2) >> quiet_pool
    watch = python("-m", "skyward", "ps", "--watch")
    with Terminal(watch, columns=200) as terminal:
        for _ in range(2):
            terminal.wait_match(rf"MEM(?s:.*?){quiet_pool.id} +0 .*\d[KMG].*\n{quiet_pool.id} +1 .*\d[KMG]")
        terminal.type("\x03")
        assert terminal.wait() == 0
    with subprocess.Popen([*watch, "--json"], stdout=subprocess.PIPE, text=True) as ran:
        assert ran.stdout
        found = (json.loads(line) for line in ran.stdout)
        node = next(each for each in found if each.get("pool") == quiet_pool.id and "memory" in each)
        assert node["memory"] > 1_000_000
        ran.send_signal(signal.SIGINT)
        assert ran.wait(60) == 0
