"""Threads that run things for others: later, one after the other; and callbacks, which hold up and end nothing else."""

from __future__ import annotations

import sys
import threading
from functools import partial

import pytest

from skyward._pool.background import Callbacks


def test_a_callback_that_waits_holds_up_no_other() -> None:
    """Not even one that it waits for."""
    callbacks, gate, done = Callbacks(), threading.Event(), threading.Event()

    def first() -> None:
        gate.wait(60)
        done.set()

    callbacks.submit("first", first)
    callbacks.submit("second", gate.set)
    assert done.wait(60)


@pytest.mark.parametrize(
    ("code", "error"),
    [("1/0", "ZeroDivisionError"), ("sys.exit(3)", "SystemExit: 3"), ("raise KeyboardInterrupt", "KeyboardInterrupt")],
)
def test_an_error_is_reported_and_ends_nothing(capsys: pytest.CaptureFixture[str], code: str, error: str) -> None:
    """With the callback's name and its traceback."""
    callbacks, after = Callbacks(), threading.Event()
    callbacks.submit("a callback of train()", lambda: exec(code, {"sys": sys}))
    callbacks.submit("next", after.set)
    assert after.wait(60)
    callbacks.drain()
    said = capsys.readouterr().err
    assert "a callback of train() raised an error" in said
    assert error in said


def test_draining_waits_for_what_was_submitted() -> None:
    """In the order of submission, and not for itself when a callback asks for it."""
    callbacks, seen = Callbacks(), list[int]()
    for number in range(100):
        callbacks.submit("count", partial(seen.append, number))
    callbacks.drain(10)
    assert sorted(seen) == list(range(100))
    inside = threading.Event()

    def drains() -> None:
        callbacks.drain(10)
        inside.set()

    callbacks.submit("drains", drains)
    assert inside.wait(60)
