"""One call's outcome: told once, kept as it came, waited for."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import pytest

from skyward._pool.background import Callbacks
from skyward._pool.calls import CallFuture, Latch
from skyward._pool.task import Task
from skyward.errors import (
    PoolClosedError,
    SerializationError,
    SkywardError,
    TaskCancelledError,
    WorkerLostError,
)
from skyward.system import process_end
from skyward.wire.frames import Frame
from skyward.wire.messages import RESULT_HEAD, Kind
from tests.unit.pool.fakes import FUNCTION, error, result


def task(number: int = 1, *, timeout: float | None = None) -> Task:
    return Task(number, FUNCTION, b"arguments", (b"buffer",), timeout, 0)


def test_a_result_that_cannot_be_loaded_here_says_whose_it_is() -> None:
    """Such as one of a class whose module only the node has."""
    one = task()
    pickled = b"\x80\x05cno_such_module\nThing\n."
    one.resolve(Frame(Kind.RESULT, 1, RESULT_HEAD.pack(0.0) + pickled))
    with pytest.raises(SerializationError, match=r"The result of work\(\) needs the module 'no_such_module'"):
        one.value()


def test_a_latch_opens_with_the_last_task() -> None:
    """Not before; whoever waits is in another thread than those who tell."""
    tasks = [task(n) for n in range(3)]
    latch = Latch(3)
    opened = threading.Event()

    def wait() -> None:
        latch.wait()
        opened.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    for one in tasks:
        one.on_done(latch)
        assert not opened.is_set()
        one.resolve(result(one))
    assert opened.wait(60)
    waiter.join(60)
    assert latch.first_failed is None


def test_a_latch_opens_with_the_first_failure() -> None:
    """The rest is not waited for; later failures change nothing."""
    first, second, third = (task(n) for n in range(3))
    latch = Latch(3)
    for one in (first, second, third):
        one.on_done(latch)
    second.resolve(error(second, ValueError()))
    latch.wait()
    third.resolve(error=TaskCancelledError("cancelled"))
    first.resolve(result(first))
    latch.wait()
    assert latch.first_failed is second


def test_cancelling_a_future_stops_its_call() -> None:
    """Once, and only while it has no outcome; an outcome that comes later is nobody's business."""
    stopped: list[bool] = []
    future: CallFuture[object] = CallFuture("f", lambda: stopped.append(True), Callbacks())
    assert future.cancel()
    one = task()
    one.on_done(future.take)
    one.resolve(result(one, 5))
    assert future.cancelled()
    assert repr(future) == "<future of f(): cancelled>"
    assert stopped == [True]

    done: CallFuture[object] = CallFuture("f", lambda: stopped.append(True), Callbacks())
    other = task()
    other.on_done(done.take)
    other.resolve(result(other, 5))
    assert repr(done) == "<future of f(): done>"
    assert done.result(0) == 5
    assert not done.cancel()
    assert stopped == [True]


def test_an_error_that_nobody_asks_for_is_told_once_when_its_future_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its traceback; not what somebody has seen, has cancelled, or what the end of the pool explains."""
    monkeypatch.setattr(process_end, "soon", lambda action: action())
    told: list[str] = []

    def dropped(outcome: BaseException | None, ask: Callable[[CallFuture[object]], object]) -> list[str]:
        told.clear()
        future: CallFuture[object] = CallFuture("f", lambda: None, Callbacks(), told.append)
        one = task()
        one.on_done(future.take)
        ask(future)
        if isinstance(outcome, SkywardError):
            one.resolve(error=outcome)
        else:
            one.resolve(result(one, 5) if outcome is None else error(one, outcome))
        ask(future)
        del future
        gc.collect()
        return list(told)

    def nothing(_: object) -> None:
        pass

    def look(future: CallFuture[object]) -> None:
        if future.done():
            future.exception()

    (text,) = dropped(LookupError("nothing there"), nothing)
    assert "work() failed" in text and text.endswith("LookupError: nothing there")
    (text,) = dropped(WorkerLostError("gone", node=1, rank=1), nothing)
    assert text.endswith("WorkerLostError: gone")
    assert dropped(None, nothing) == []
    assert dropped(LookupError("nothing there"), look) == []
    assert dropped(LookupError("nothing there"), CallFuture.cancel) == []
    assert dropped(PoolClosedError("closed"), nothing) == []
