"""A process that cannot start more threads says so, and what to do."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import skyward as sky
from skyward.errors import PoolError, explained
from skyward.wire.messages import Kind
from tests.unit.runner.conftest import start as start
from tests.unit.runner.node import Start

LIMITED = """
import sys, threading
if {module!r} in sys.orig_argv:
    real, left = threading.Thread.start, {count}
    def start(self):
        global left
        left -= 1
        if left < 0:
            raise RuntimeError("can't start new thread")
        real(self)
    threading.Thread.start = start
"""


def limited(folder: Path, module: str, count: int) -> dict[str, str]:
    """Environment in which the processes of a module can start so many threads."""
    (folder / "sitecustomize.py").write_text(LIMITED.format(module=module, count=count))
    return {"PYTHONPATH": str(folder)}


@pytest.mark.parametrize("names", [("skyward-clock",), ("skyward-heartbeat",), ("skyward-node", "skyward-stop")])
def test_a_pool_that_cannot_start_threads_says_what_to_do(
    names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of its threads it is; nothing is left of the pool, also where none can be started to close it."""
    real = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith(names):
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    pool = sky.ComputePool(sky.Local(), display="quiet")
    with pytest.raises(PoolError, match=r"No more threads can be started .*ulimit -u.*fewer nodes"):
        pool.open()
    assert not any(about["pool"] == pool.id for about in sky.Local().find())


@pytest.mark.parametrize("count", [0, 2])
def test_a_node_that_cannot_start_threads_says_what_to_do(start: Start, tmp_path: Path, count: int) -> None:
    """And ends."""
    node = start(limited(tmp_path, "skyward.runner", count))
    status, errors = node.end()
    assert status == 1
    assert "Node 1 ends: No more threads can be started" in errors


@pytest.mark.parametrize("count", [0, 3, 9])
def test_a_node_whose_worker_cannot_start_its_threads_says_what_to_do(start: Start, tmp_path: Path, count: int) -> None:
    """As one of many slots may not: the node ends before anybody takes it for one that works."""
    node = start(limited(tmp_path, "skyward.runner.worker", count), slots=8)
    status, errors = node.end()
    assert status == 1
    assert "Worker 0 of node 1 ended before the node was ready (exit status 2)" in errors
    assert "fewer calls at once (concurrency=)" in errors


def test_a_worker_that_cannot_start_its_threads_again_ends_the_node(start: Start, tmp_path: Path) -> None:
    """After three starts, as one that fails in another way does."""
    node = start({"PYTHONPATH": str(tmp_path)}, slots=8)
    node.ready()
    client = node.client()
    limited(tmp_path, "skyward.runner.worker", 3)
    client.tell(Kind.KILL, worker=0)
    assert client.is_closed()
    status, errors = node.end()
    assert status == 1
    assert "Worker 0 of node 1 ended 3 times in a row before it listened" in errors
    assert "fewer calls at once (concurrency=)" in errors


def test_other_errors_stay_what_they_are() -> None:
    """Also those that name threads."""
    for error in (ValueError("can't start new thread"), RuntimeError("no thread")):
        found: Any = explained(error)
        assert found is error
