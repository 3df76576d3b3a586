"""Things done later, one after the other."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator

import pytest

from skyward._pool.background import Timers


@pytest.fixture
def clock() -> Iterator[Timers]:
    value = Timers()
    yield value
    value.stop()


def test_actions_run_in_the_order_of_their_times(clock: Timers) -> None:
    """Not in the order in which they were given; of equal times the first given goes first."""
    done: queue.SimpleQueue[str] = queue.SimpleQueue()
    clock.after(0.08, lambda: done.put("last"))
    clock.after(0.04, lambda: done.put("first"))
    clock.after(0.06, lambda: done.put("second"))
    assert [done.get(timeout=60) for _ in range(3)] == ["first", "second", "last"]


def test_nothing_runs_early(clock: Timers) -> None:
    """An action waits for at least its delay."""
    ran = threading.Event()
    started = time.monotonic()
    clock.after(0.05, ran.set)
    assert ran.wait(60)
    assert time.monotonic() - started >= 0.05


def test_an_action_may_ask_for_another(clock: Timers) -> None:
    """Which is how heartbeats go on."""
    count: queue.SimpleQueue[int] = queue.SimpleQueue()

    def beat(n: int) -> None:
        count.put(n)
        if n < 3:
            clock.after(0.001, lambda: beat(n + 1))

    clock.after(0, lambda: beat(1))
    assert [count.get(timeout=60) for _ in range(3)] == [1, 2, 3]


def test_a_stopped_clock_runs_nothing() -> None:
    """What was to come is forgotten."""
    clock = Timers()
    ran = threading.Event()
    clock.after(0.02, ran.set)
    clock.stop()
    assert not ran.wait(0.1)
