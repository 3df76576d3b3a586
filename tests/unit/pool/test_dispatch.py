"""Which worker gets which call, and what becomes of calls when workers are lost, cancelled or closed."""

from __future__ import annotations

import pytest

from skyward._pool.code.functions import Function
from skyward._pool.dispatcher import GRACE_S, TICK_S
from skyward._pool.scheduler import HELD_S, STALE_S
from skyward._pool.task import Task
from skyward.errors import PoolClosedError, PoolError, WorkerLostError
from skyward.wire.frames import Frame
from skyward.wire.messages import RESULT_HEAD, Kind
from tests.unit.pool.conftest import Make
from tests.unit.pool.fakes import error, fake, ids, result, sent


def test_calls_go_to_the_least_loaded_worker(make: Make) -> None:
    """Idle workers are filled first; what nobody has room for waits here, in order."""
    pool = make(workers=2)
    a, b, c, d = pool.submit(4)
    assert [sent(worker) for worker in pool.workers] == [[a.id], [b.id]]

    pool.finish(pool.workers[1], b)
    assert sent(pool.workers[1]) == [b.id, c.id]
    pool.finish(pool.workers[0], a)
    assert sent(pool.workers[0]) == [a.id, d.id]


def test_slots_are_calls_at_once(make: Make) -> None:
    """A worker with four slots holds four calls before its first result says how long they take."""
    pool = make(slots=4)
    tasks = pool.submit(6)
    assert sent(pool.workers[0]) == ids(tasks[:4])


def test_quick_calls_are_sent_ahead(make: Make) -> None:
    """The shorter the calls, the more of them a worker is given beyond the one that runs; long ones wait here."""
    pool = make(workers=2)
    quick, slow = pool.workers
    tasks = pool.submit(200)
    pool.finish(quick, tasks[0], run_s=0.0001)
    pool.finish(slow, tasks[1], run_s=10.0)
    assert len(quick.outstanding) > 5
    assert len(slow.outstanding) == 1


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


def test_results_are_told_once_to_the_right_call(make: Make) -> None:
    """Each outcome reaches its own call; a second one is ignored."""
    pool = make(slots=2)
    a, b = pool.submit(2)
    pool.say(pool.workers[0], result(b, "b"), result(a, "a"))
    pool.say(pool.workers[0], result(a, "again"))
    assert (a.value(), b.value()) == ("a", "b")
    assert pool.told == [b.id, a.id]


def test_a_users_exception_is_raised_where_its_result_would_be(make: Make) -> None:
    """It says which function raised it and where."""
    pool = make()
    (task,) = pool.submit(1)
    pool.say(pool.workers[0], error(task, KeyError("no such key")))
    with pytest.raises(KeyError, match="no such key") as caught:
        task.value()
    assert caught.value.__notes__ == ["raised by work() on node 0"]


def test_a_pinned_call_goes_to_its_worker_only(make: Make) -> None:
    """Also when that one is busy and others are idle; and it is never recalled."""
    pool = make(workers=2)
    tasks = pool.submit(3, pin=1)
    assert sent(pool.workers[1]) == ids(tasks)
    pool.time.pass_(10 * STALE_S + TICK_S)
    assert sent(pool.workers[0]) == []
    assert sent(pool.workers[1], Kind.RECALL) == []


# recall --------------------------------------------------------------------------------------------------------


def test_calls_stuck_behind_a_long_one_move_to_an_idle_worker(make: Make) -> None:
    """A worker is asked for calls it has not started once others are idle; each runs exactly once."""
    pool = make(workers=2)
    busy, idle = pool.workers
    for worker in pool.workers:
        worker.run_s = 0.0001
    tasks = pool.submit(10)
    stuck = list(busy.outstanding.values())
    for task in list(idle.outstanding.values()):
        pool.finish(idle, task, run_s=0.0001)
    pool.time.pass_(2 * TICK_S)
    recalled = sorted(set(sent(busy, Kind.RECALL)))
    assert recalled == ids(stuck[1:])

    before = len(sent(idle))
    pool.say(busy, *(Frame(Kind.DROPPED, number) for number in recalled))
    assert sent(idle)[before] == recalled[0]
    while not all(task.done for task in tasks if task is not stuck[0]):
        for task in list(idle.outstanding.values()):
            pool.finish(idle, task, run_s=0.0001)
        pool.time.pass_(2 * TICK_S)
        pool.say(busy, *(Frame(Kind.DROPPED, number) for number in list(busy.outstanding)[1:]))
    pool.finish(busy, stuck[0])
    assert sorted(pool.told) == ids(tasks)


def test_a_call_that_had_started_when_it_was_recalled_stays(make: Make) -> None:
    """A worker does not answer for calls it has started; their results count as ever."""
    pool = make(workers=2)
    busy, idle = pool.workers
    busy.buffer = 1
    a, b, c = pool.submit(3)
    pool.finish(idle, b)
    pool.time.pass_(2 * TICK_S)
    assert c.id in sent(busy, Kind.RECALL)
    pool.finish(busy, a, "a")
    pool.finish(busy, c, "c")
    assert (a.value(), c.value()) == ("a", "c")
    assert c.id not in sent(idle)


def test_nothing_is_recalled_while_everybody_is_busy(make: Make) -> None:
    """Recalls cost messages; without an idle worker there is no gain."""
    pool = make(workers=2)
    for worker in pool.workers:
        worker.buffer = 4
    pool.submit(10)
    pool.time.pass_(1.0)
    assert [sent(worker, Kind.RECALL) for worker in pool.workers] == [[], []]


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


def test_calls_that_wait_for_a_node_wait_for_no_stream(make: Make) -> None:
    """Nothing is told of streams where there is no worker at all."""
    pool = make()
    pool.lose(pool.workers[0])
    pool.submit(1)
    pool.time.pass_(5 * HELD_S)
    assert pool.notices == []


def test_a_suspended_pool_takes_calls_again(make: Make) -> None:
    """What waits and what comes fails with the reason, until that is over."""
    pool = make()
    pool.dispatcher.rest()
    (waiting,) = pool.submit(1)
    reason = PoolError("a node is away")
    pool.dispatcher.suspend(reason)
    assert waiting.error is reason
    with pytest.raises(PoolError, match="a node is away"):
        pool.submit(1)
    pool.dispatcher.suspend(None)
    (task,) = pool.submit(1)
    pool.dispatcher.resume(pool.workers)
    assert sent(pool.workers[0]) == [task.id]


def test_no_tick_without_work(make: Make) -> None:
    """An idle pool wakes nobody."""
    pool = make()
    (task,) = pool.submit(1)
    pool.finish(pool.workers[0], task)
    pool.time.pass_(1.0)
    assert pool.time.waiting == 0
    pool.submit(1)
    assert pool.time.waiting == 1


# the end -------------------------------------------------------------------------------------------------------


def test_closing_settles_everything(make: Make) -> None:
    """Running, queued, pinned and streaming calls end with the reason; new ones are refused; nobody is killed."""
    pool = make(workers=2)
    running, streaming, queued = pool.submit(3)
    pool.say(pool.workers[1], Frame(Kind.STREAM, streaming.id))
    stream = streaming.value()
    pool.lose(pool.workers[0], forever=False)
    (pinned,) = pool.submit(1, pin=0)
    pool.dispatcher.cancel(streaming)
    reason = PoolClosedError("closed")
    pool.dispatcher.close(reason)
    assert isinstance(running.error, WorkerLostError)
    assert queued.error is pinned.error is reason
    with pytest.raises(PoolClosedError):
        next(stream)
    with pytest.raises(PoolClosedError):
        pool.submit(1)
    pool.time.pass_(2 * GRACE_S)
    assert pool.killed == []
    assert sorted(pool.told) == ids([running, streaming, queued, pinned])


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


def test_a_worker_that_is_drained_finishes_what_it_runs(make: Make) -> None:
    """It gives back what it has not begun, which goes to the others, and gets no new calls."""
    pool = make(workers=2)
    leaving, staying = pool.workers
    leaving.buffer = staying.buffer = 1
    running, there, waiting, _ = pool.submit(4)
    pool.dispatcher.drain([leaving])
    assert sent(leaving, Kind.RECALL) == [waiting.id]
    pool.say(leaving, Frame(Kind.DROPPED, waiting.id))
    pool.finish(staying, there)
    assert waiting.id in sent(staying)
    before = sent(leaving)
    pool.submit(3)
    pool.finish(leaving, running, "done")
    assert running.value() == "done"
    assert sent(leaving) == before
    assert pool.dispatcher.load.held(leaving) == []


def test_a_call_on_a_drained_worker_can_be_stopped_and_lost(make: Make) -> None:
    """It is still known where it runs, though another worker has its rank."""
    pool = make()
    leaving = pool.workers[0]
    (stopped,) = pool.submit(1)
    pool.dispatcher.drain([leaving])
    again = pool.add(0, generation=1)
    (other,) = pool.submit(1)
    assert sent(again) == [other.id]
    pool.dispatcher.cancel(stopped)
    assert sent(leaving, Kind.CANCEL) == [stopped.id]
    pool.lose(leaving)
    assert not other.done
    pool.finish(again, other, "fine")
    assert other.value() == "fine"


def test_calls_for_a_drained_rank_wait_for_the_next_worker(make: Make) -> None:
    """Also one that had been sent, and had not begun."""
    pool = make(workers=2)
    leaving = pool.workers[0]
    running, waiting = pool.submit(2, pin=0)
    pool.dispatcher.drain([leaving])
    pool.say(leaving, Frame(Kind.DROPPED, waiting.id))
    assert sent(pool.workers[1]) == []
    fresh = pool.add(0, generation=1)
    assert sent(fresh) == [waiting.id]
    pool.finish(leaving, running, 1)
    assert running.value() == 1


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
