"""Which worker gets which call, and what becomes of calls when workers are lost, cancelled or closed."""

from __future__ import annotations

from skyward._pool.code.functions import Function
from skyward._pool.scheduler import HELD_S
from skyward._pool.task import Task
from skyward.wire.frames import Frame
from skyward.wire.messages import RESULT_HEAD, Kind
from tests.unit.pool.conftest import Make
from tests.unit.pool.fakes import fake, sent


def test_what_a_function_needs_is_sent_once_before_its_first_call(make: Make) -> None:
    """The function goes before its first call to each worker and never again."""
    pool = make(workers=2)
    a, b = pool.submit(2)
    pool.finish(pool.workers[0], a)
    (c,) = pool.submit(1)
    kinds = [(frame.kind, frame.id) for frame in fake(pool.workers[0]).sent]
    assert kinds == [(Kind.FUNCTION, 1), (Kind.CALL, a.id), (Kind.CALL, c.id)]
    assert [frame.kind for frame in fake(pool.workers[1]).sent] == [Kind.FUNCTION, Kind.CALL]
    assert b.rank == 1


# recall --------------------------------------------------------------------------------------------------------


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


# the end -------------------------------------------------------------------------------------------------------


def test_thousands_of_queued_calls_cost_linear_time(make: Make) -> None:
    """Every call is looked at a bounded number of times, however long the queue is."""
    pool = make()
    looked_at = 0

    class Counted(Task):
        __slots__ = ()

        def call_frame(self) -> Frame:
            nonlocal looked_at
            looked_at += 1
            return super().call_frame()

    function = Function(1, "work", b"", None)
    tasks: list[Task] = [Counted(number, function, b"", (), None, 0) for number in range(4000)]
    pool.dispatcher.submit(tasks)
    (worker,) = pool.workers
    while worker.outstanding:
        pool.say(worker, *(Frame(Kind.RESULT, number, RESULT_HEAD.pack(0.0001)) for number in list(worker.outstanding)))
    assert all(task.done for task in tasks)
    assert looked_at == 4000


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
