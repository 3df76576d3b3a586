"""`pool.stats()` and `skyward top`, on containers and on processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import skyward as sky
from tests.e2e.functions import double
from tests.e2e.patterns import PatternTerminal, python
from tests.waiting import wait_until

TOP = python("-m", "skyward", "top")


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


def test_top_prints_one_table_in_a_pipe(quiet_pool: sky.ComputePool) -> None:
    """As text and as JSON; afterwards nothing is measured or left."""
    double(2) >> quiet_pool
    ran = subprocess.run([*TOP, quiet_pool.id], capture_output=True, text=True, timeout=60, check=True)
    heading, *rows = ran.stdout.splitlines()
    assert heading.split() == ["POOL", "NODE", "RUN", "WAIT", "DONE", "FAIL", "CPU", "MEM", "OF", "IN/s", "OUT/s"]
    assert [row.split()[:3] for row in rows] == [[quiet_pool.id, "0", "0"], [quiet_pool.id, "1", "0"]]
    ran = subprocess.run([*TOP, quiet_pool.id, "--json"], capture_output=True, text=True, timeout=60, check=True)
    document: dict[str, Any] = json.loads(ran.stdout)
    assert (document["event"], document["pool"], len(document["nodes"])) == ("pool", quiet_pool.id, 2)
    assert document["nodes"][0]["memory"] > 1_000_000


def test_top_of_a_pool_that_is_not_open() -> None:
    """A sentence and the exit status of pools."""
    ran = subprocess.run([*TOP, "nobody"], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 7
    assert "No pool or run nobody of this machine gave figures" in ran.stderr


def test_top_waits_for_the_first_pool_of_a_run(tmp_path: Path) -> None:
    """Asked as soon as the run has begun."""
    lines = ("import time, skyward as sky", "time.sleep(1)", "with sky.ComputePool(sky.Local()):", "    time.sleep(60)")
    (tmp_path / "program.py").write_text("\n".join(lines))
    where: dict[str, Any] = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}}
    words = [sys.executable, "-m", "skyward"]
    done = [*words, "run", "--detach", "program.py"]
    run = subprocess.run(done, capture_output=True, text=True, timeout=60, check=True, **where).stdout.strip()
    try:
        shown = subprocess.run([*words, "top", run], capture_output=True, text=True, timeout=60, check=False, **where)
    finally:
        subprocess.run([*words, "down", run], capture_output=True, timeout=60, check=True, **where)
    assert "OUT/s" in shown.stdout, shown.stderr


@pytest.mark.parametrize(("columns", "no_color"), [(80, ""), (50, ""), (80, "1")])
def test_top_is_live_on_a_terminal(quiet_pool: sky.ComputePool, columns: int, no_color: str) -> None:
    """It is drawn again each second, fits into the terminal, and ends by Ctrl-C."""
    with PatternTerminal([*TOP, quiet_pool.id], columns=columns, NO_COLOR=no_color) as terminal:
        terminal.wait_match("OUT/s")
        done = double(2) >> quiet_pool
        assert done == 4
        terminal.wait_match(rf"OUT/s\n{quiet_pool.id} +0 +0 .*\n{quiet_pool.id} +1 +0 ")
        terminal.type("\x03")
        assert terminal.wait_end() == 0
    assert ("FAIL" in terminal.plain) == (columns == 80)
    assert max(map(len, re.split(r"[\r\n]+|(?=POOL)", terminal.plain))) <= columns
    assert "\x1b[3" not in terminal.text  # no colour in any case
