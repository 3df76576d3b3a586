"""The end of a worker process is Python's, and nothing that a function has started outlives its node."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

import skyward as sky
from skyward.errors import WorkerLostError
from tests.e2e import ending_functions as functions
from tests.e2e.conftest import IMAGE, provider_of
from tests.printed import Printed
from tests.waiting import wait_until

ALL = {"exit-handler", "file", "log", "queue", "thread"}
CHILDREN = ("session", "no environment", "shell", "daemon", "bare daemon")


def has_ended(pid: int) -> bool:
    try:
        return " Z " in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_process_ends_as_python_does(provider_name: str, concurrency: int, printed: Printed) -> None:
    """Threads, exit handlers, logging, queues, open files."""
    with sky.ComputePool(provider_of(provider_name), image=IMAGE, concurrency=concurrency) as pool:
        functions.leaves_all_to_the_end() >> pool
        before = {line.partition("] ")[2] for line in "".join(printed.read()).splitlines()}
    after = {line.partition("] ")[2] for line in "".join(printed.read()).splitlines()}
    assert not ALL & before - {"queue"}
    assert before | after >= ALL


def test_a_thread_that_does_not_end_is_named(printed: Printed) -> None:
    """The process ends without it after half of the grace period; exit handlers still run."""
    with pytest.raises(KeyboardInterrupt), sky.ComputePool(sky.Local()) as pool:
        functions.never_ends() >> pool
        began = time.monotonic()
        raise KeyboardInterrupt
    assert time.monotonic() - began < 5
    seen = "".join(printed.read())
    assert "1 of the program's threads ran: endless" in seen
    assert "exit-handler" in seen


def test_children_end_with_the_pool() -> None:
    """Whatever their session, parent and environment."""
    with sky.ComputePool(sky.Local()) as pool:
        children = [functions.starts_a_child(how) >> pool for how in CHILDREN]
        assert not any(map(has_ended, children))
    assert all(map(has_ended, children))


def test_children_end_with_a_node_that_was_killed() -> None:
    """Before another takes its place; those that Linux shows to be of the node."""
    with sky.ComputePool(sky.Local()) as pool:
        children = [functions.starts_a_child(how) >> pool for how in ("session", "shell", "daemon")]
        with pytest.raises(WorkerLostError):
            functions.ends_its_node() >> pool
        wait_until(lambda: all(map(has_ended, children)), within_s=10)


def test_orphans_that_end_are_released() -> None:
    """A node whose functions leave many fills no table of processes."""
    with sky.ComputePool(sky.Local()) as pool:
        functions.leaves_orphans(100) >> pool
        wait_until(lambda: not functions.zombies() >> pool, within_s=10)


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_crash_names_its_line(concurrency: int) -> None:
    """Of the thread that ran the call; with what that call had printed, and no other."""
    with sky.ComputePool(sky.Local(), concurrency=concurrency) as pool:
        for how, line in (("abort", "os.abort()"), ("fault", "ctypes.string_at(0)")):
            functions.says("of another call") >> pool
            with pytest.raises(WorkerLostError) as lost:
                functions.crashes(how) >> pool
            told = str(lost.value)
            assert re.search(rf'ending_functions.py", line \d+, in _crash\n +{re.escape(line)}', told), told
            assert "/runner/" not in told
            assert lost.value.log == "before the crash"
