"""Clients that fork, and callbacks that call the pool: each does what it says, and nothing to the pool beside it."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

import skyward as sky
from tests.printed import Printed


@sky.compute
def double(number: int) -> int:
    return 2 * number


@sky.compute
def sleep(seconds: float) -> str:
    time.sleep(seconds)
    return "slept"


def in_child(what: Callable[[], object]) -> str:
    """Do something in a forked child; what came of it."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            outcome = f"returned {what()}"
        except BaseException as error:
            outcome = f"{type(error).__name__}: {error}"
        os.write(write, outcome.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        outcome = pipe.read().decode()
    os.waitpid(child, 0)
    return outcome


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_cannot_use_the_pool(pool: sky.ComputePool) -> None:
    """It is told what to do instead; the parent's calls, those under way as well, notice nothing."""
    waiting = sleep(1.0) > pool
    uses: list[Callable[[], object]] = [
        lambda: double(1) >> pool,
        lambda: double(1) @ pool,
        lambda: double(1) > pool,
        lambda: pool.map(double, [1]),
        lambda: waiting.result(),
        waiting.cancel,
    ]
    for use in uses:
        assert f"belongs to process {os.getpid()}" in in_child(use)
    assert "PoolError: Pool " in in_child(uses[0])
    assert in_child(lambda: pool.is_active) == "returned False"
    assert waiting.result() == "slept"
    assert double(4) @ pool == [8, 8]


def test_callbacks_may_call_the_pool(pool: sky.ComputePool) -> None:
    """From as many of them at once as there are calls."""
    done, results = threading.Semaphore(0), list[int]()

    def again(future: Future[Any]) -> None:
        results.append(double(future.result()) >> pool)
        done.release()

    for number in range(20):
        (double(number) > pool).add_done_callback(again)
    for _ in range(20):
        assert done.acquire(timeout=30)
    assert sorted(results) == [4 * number for number in range(20)]


@pytest.mark.parametrize("how", ["raise", "exit"])
def test_a_callback_that_fails_harms_nothing(pool: sky.ComputePool, printed: Printed, how: str) -> None:
    """It is reported with the name of its call."""

    def fail(_: Future[Any]) -> None:
        if how == "exit":
            sys.exit(3)
        raise LookupError("a mistake in the callback")

    future = double(1) > pool
    future.add_done_callback(fail)
    assert future.result() == 2
    output = printed.until(err="a callback of double() raised an error")
    assert ("SystemExit" if how == "exit" else "a mistake in the callback") in output.err
    assert double(2) @ pool == [4, 4]


def test_results_are_unpickled_where_they_are_asked_for(pool: sky.ComputePool) -> None:
    """A class of the user's that takes its time to load holds up nobody else's result."""

    class Slow:
        def __reduce__(self) -> Any:
            return time.sleep, (6.0,)

    @sky.compute
    def slow() -> object:
        return Slow()

    future = slow() > pool
    while not future.done():
        time.sleep(0.01)
    began = time.monotonic()
    assert double(5) @ pool == [10, 10]
    assert time.monotonic() - began < 5
    assert future.result() is None
