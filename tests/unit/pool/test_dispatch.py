"""Which worker gets which call, and what becomes of calls when workers are lost, cancelled or closed."""

from __future__ import annotations

import pytest

from skyward._pool.code.functions import Function
from skyward._pool.dispatcher import GRACE_S
from skyward._pool.nodes import worker_client
from skyward._pool.task import Task
from skyward.errors import WorkerLostError
from skyward.wire import payload
from skyward.wire.frames import Frame
from skyward.wire.messages import RESULT_HEAD, STREAM_WINDOW, Kind
from tests.unit.pool.conftest import Make
from tests.unit.pool.fakes import make_worker, sent

NUMBER = payload.dumps(0)[0]


def test_a_stream_that_waits_for_its_reader_leaves_its_slot_to_a_call(make: Make) -> None:
    """When the reader goes on, it comes after that call, and before others."""
    pool = make()
    (worker,) = pool.workers
    stream, call, later = pool.submit(3)
    pool.say(worker, Frame(Kind.STREAM, stream.id), *[Frame(Kind.ITEM, stream.id, NUMBER)] * (STREAM_WINDOW - 1))
    assert sent(worker) == [stream.id]
    pool.say(worker, Frame(Kind.ITEM, stream.id, NUMBER))
    assert sent(worker) == [stream.id, call.id]
    assert pool.dispatcher.counts() == {"running": 2, "queued": 1, "done": 0, "failed": 0}

    reader = stream.value()
    for _ in range(STREAM_WINDOW // 2):
        assert next(reader) == 0
    assert sent(worker, Kind.CREDIT) == [stream.id]
    pool.finish(worker, call, 1)
    assert sent(worker) == [stream.id, call.id]
    pool.say(worker, Frame(Kind.END, stream.id, RESULT_HEAD.pack(0.1)))
    assert sent(worker) == [stream.id, call.id, later.id]


def test_a_patient_call_shares_no_slot_until_somebody_waits_for_it(make: Make) -> None:
    """It gets one that is free; others overtake it where a stream waits for its reader."""
    pool = make(slots=2)
    (worker,) = pool.workers
    tasks = [pool.task() for _ in range(5)]
    for task in tasks[:4]:
        task.patient = True
    pool.dispatcher.submit(tasks[:4])
    for task in tasks[:2]:
        pool.say(worker, Frame(Kind.STREAM, task.id), *[Frame(Kind.ITEM, task.id)] * STREAM_WINDOW)
    first, second, third, fourth, other = (task.id for task in tasks)
    assert sent(worker) == [first, second]
    pool.dispatcher.submit(tasks[4:])
    assert sent(worker) == [first, second, other]
    pool.dispatcher.hurry(tasks[3])
    assert sent(worker) == [first, second, other, fourth]
    for task in (*tasks[:2], *tasks[3:]):
        pool.finish(worker, task)
    assert sent(worker) == [first, second, other, fourth, third]


@pytest.mark.parametrize("waits", [True, False])
def test_a_call_that_may_have_begun_while_a_stream_waited_is_not_run_again(make: Make, waits: bool) -> None:
    """The stream may have waited for a moment in which this side knew that its reader had gone on."""
    pool = make()
    (worker,) = pool.workers
    worker.buffer = 2
    stream, second, third = pool.submit(3)
    pool.say(worker, Frame(Kind.STREAM, stream.id), *[Frame(Kind.ITEM, stream.id)] * (STREAM_WINDOW - 1 + waits))
    pool.lose(worker)
    assert isinstance(second.failure(), WorkerLostError)
    assert (third.done, third.sent_at) == (False, 0.0)


def test_a_stopped_stream_has_time_to_end_from_when_it_has_its_slot(make: Make) -> None:
    """Its worker is not ended because of it while another call runs there."""
    pool = make()
    (worker,) = pool.workers
    stream, call = pool.submit(2)
    pool.say(worker, Frame(Kind.STREAM, stream.id), *[Frame(Kind.ITEM, stream.id)] * STREAM_WINDOW)
    stream.value().close()
    pool.time.pass_(10 * GRACE_S - 0.1)
    assert pool.killed == []
    pool.finish(worker, call, 1)
    pool.time.pass_(GRACE_S)
    assert pool.killed == []
    pool.time.pass_(GRACE_S)
    assert pool.killed == [worker]


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
