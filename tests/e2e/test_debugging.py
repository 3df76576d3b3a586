"""`breakpoint()` in calls, with `skyward debug` in another terminal, and `sky.debug` in this process."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import skyward as sky
from skyward.errors import TaskCancelledError
from tests.e2e.conftest import provider_of
from tests.e2e.debugged import asks, double, fail_later
from tests.e2e.terminal import Terminal, python
from tests.waiting import wait_until

PROMPT = r"\(Pdb\) "


@pytest.fixture(scope="module", params=["local", "docker"])
def pool(request: pytest.FixtureRequest) -> Iterator[sky.ComputePool]:
    """Two nodes with two calls at once."""
    with sky.ComputePool(provider_of(request.param), nodes=2, concurrency=2, display="quiet") as pool:
        yield pool


def debugger(pool: sky.ComputePool, node: int) -> Terminal:
    """The debugger of a call that is, or will be, at a breakpoint there."""
    again = 'until "$@"; do sleep 0.2; done'
    return Terminal(["sh", "-c", again, "sh", *python("-m", "skyward", "debug", pool.id, str(node))])


def test_a_call_is_debugged_from_another_terminal(pool: sky.ComputePool) -> None:
    """Steps, frames, values; Ctrl-D leaves the call waiting for the next terminal, which ends it with its return."""
    future = double(3) > pool
    node = running_node(pool)
    with debugger(pool, node) as terminal:
        assert "double()" in terminal.wait_match(PROMPT)
        terminal.type("p y\n")
        assert "\n4\n" in terminal.wait_match(PROMPT)
        terminal.type("w\n")
        frames = terminal.wait_match(PROMPT)
        assert "double()" in frames and "skyward" not in re.sub(r"\S*/", "", frames)
        terminal.type("y = 10\n")
        terminal.wait_match(PROMPT)
        terminal.type("\x04")
        assert terminal.wait() == 0
    assert not future.done()
    with debugger(pool, node) as terminal:
        for _ in range(3):
            terminal.wait_match(PROMPT)
            terminal.type("n\n")
        terminal.wait_match("--Return--")
        terminal.wait_match(PROMPT)
        terminal.type("n\n")
        assert terminal.wait() == 0
    assert future.result() == 20


def running_node(pool: sky.ComputePool) -> int:
    """The first node on which a call runs."""
    found: list[int] = []

    def is_known() -> bool:
        found[:] = [node.node for node in pool.stats().nodes if node.running]
        return bool(found)

    wait_until(is_known)
    return found[0]


def test_quitting_ends_the_call_and_continuing_does_not(pool: sky.ComputePool) -> None:
    """Two calls of a node, one after the other."""
    calls = [double(x) > pool for x in (1, 2)]
    for done, word in enumerate(("c\n", "q\n")):
        node = running_node(pool)
        with debugger(pool, node) as terminal:
            terminal.wait_match(PROMPT)
            terminal.type(word)
            assert terminal.wait() == 0
        wait_until(partial(lambda least: sum(each.done() for each in calls) > least, done))
    outcomes = [call.exception() for call in calls]

    assert sorted(type(each).__name__ for each in outcomes) == ["NoneType", "TaskCancelledError"]
    error = next(each for each in outcomes if each)
    assert isinstance(error, TaskCancelledError)
    assert "double()" in str(error)


def test_a_call_that_is_stopped_leaves_its_breakpoint(pool: sky.ComputePool) -> None:
    """Another call of its group fails while it waits for a terminal."""
    with pytest.raises(ZeroDivisionError, match="of the other call"):
        fail_later() @ pool


def test_input_reads_nothing(pool: sky.ComputePool) -> None:
    """A node has no terminal."""
    with pytest.raises(EOFError):
        asks() >> pool


def test_debug_shows_where_a_call_failed() -> None:
    """In this process, after the exception; then it is raised."""
    with Terminal(python(str(Path(__file__).with_name("debugged.py")))) as terminal:
        assert "ZeroDivisionError" in terminal.wait_match(PROMPT)
        terminal.type("p over, x\n")
        assert "(10, 0)" in terminal.wait_match(PROMPT)
        terminal.type("q\n")
        terminal.wait_match("ZeroDivisionError: division by zero")
        assert terminal.wait() == 0
