"""Which worker gets which call, and what becomes of calls when workers are lost, cancelled or closed."""

from __future__ import annotations

import pytest

from skyward._pool.code.functions import Function
from skyward._pool.nodes import worker_client
from skyward._pool.scheduler import HELD_S
from skyward._pool.task import Task
from skyward.wire.frames import Frame
from skyward.wire.messages import RESULT_HEAD, Kind
from tests.unit.pool.conftest import Make
from tests.unit.pool.fakes import make_worker, sent


def test_streams_that_hold_up_a_call_are_told_once(make: Make) -> None:
    """All slots belong to open streams, which often the waiting thread itself has opened: it would wait for ever."""
    pool = make(slots=2)
    first, second, third = pool.submit(3)
    pool.say(pool.workers[0], Frame(Kind.STREAM, first.id), Frame(Kind.STREAM, second.id))
    pool.time.pass_(HELD_S / 2)
    assert pool.notices == []
    pool.time.pass_(5 * HELD_S)
    assert len(pool.notices) == 1
    assert "work() waits for a slot: all 2 slots of the pool are held by open streams." in pool.notices[0]
    pool.say(pool.workers[0], Frame(Kind.END, first.id, RESULT_HEAD.pack(0.1)))
    assert third.id in sent(pool.workers[0])


def test_a_call_that_a_drained_worker_gives_back_late_goes_to_its_successor(make: Make) -> None:
    """A worker in C code answers late: by then the next one of its rank is there, and would not be asked again."""
    pool = make()
    leaving = pool.workers[0]
    running, waiting = pool.submit(2, pin=0)
    pool.dispatcher.drain([leaving])
    fresh = pool.add(0, generation=1)
    assert sent(fresh) == []
    pool.finish(leaving, running, 1)
    pool.say(leaving, Frame(Kind.DROPPED, waiting.id))
    assert sent(fresh) == [waiting.id]
    pool.finish(fresh, waiting, 2)
    assert waiting.value() == 2


def test_functions_without_calls_are_dropped_from_full_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that changes at every call would fill its worker; one that is called again is sent again."""
    monkeypatch.setattr(worker_client, "BUDGET", 0)
    worker = make_worker(0)
    functions = [Function(number, "work", b"its state", None) for number in range(3)]
    for number in (0, 1, 2, 0):
        task = Task(number, functions[number], b"arguments", (), None, 0)
        worker.post(task)
        worker.flush()
        if number == 1:
            worker.outstanding[task.id] = task

    assert sent(worker, Kind.FUNCTION) == [0, 1, 2, 0]
    assert sent(worker, Kind.FORGET) == [0, 2]
