"""Which worker gets which call, and what becomes of calls when workers are lost, cancelled or closed."""

from __future__ import annotations

import gc

import pytest

from skyward.errors import (
    PoolClosedError,
    PoolError,
    SkywardError,
    TaskCancelledError,
    TaskTimeoutError,
    WorkerLostError,
)
from skyward.pool.dispatch import GRACE_S, STALE_S, TICK_S
from skyward.pool.functions import Function
from skyward.pool.held import HELD_S
from skyward.pool.task import Task
from skyward.wire.frames import Frame
from skyward.wire.messages import RESULT_HEAD, Kind
from tests.unit.pool.conftest import Make
from tests.unit.pool.fakes import error, fake, ids, lost_on, make_worker, result, sent
from tests.waiting import wait_until


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


# lost workers --------------------------------------------------------------------------------------------------


def test_only_calls_that_had_started_are_lost(make: Make) -> None:
    """Of the calls on a lost worker the running one fails, the others run elsewhere, in their old order."""
    pool = make(workers=2)
    first, second = pool.workers
    second.buffer = first.buffer = 3
    a, b, *_ = pool.submit(8)
    on_first = list(first.outstanding.values())
    pool.lose(first)
    with pytest.raises(WorkerLostError, match="work was lost"):
        a.value()
    assert pool.told == [a.id]
    pool.finish(second, b)
    assert sent(second)[-1] == on_first[1].id
    again = pool.add(0, generation=1)
    for _ in range(8):
        for worker in (second, again):
            for task in list(worker.outstanding.values()):
                pool.finish(worker, task)
    assert sorted(pool.told) == list(range(1, 9))
    assert sorted({*sent(second), *sent(again)} & set(ids(on_first))) == ids(on_first[1:])


def test_a_call_with_retries_runs_again_as_often_as_it_may(make: Make) -> None:
    """Two retries mean three runs; the third loss is the call's."""
    pool = make()
    (task,) = pool.submit(1, retries=2)
    for generation in (1, 2):
        pool.lose(pool.workers[0])
        assert not task.done
        pool.workers[0] = pool.add(0, generation)
        assert sent(pool.workers[0]) == [task.id]
    pool.lose(pool.workers[0])
    assert isinstance(task.error, WorkerLostError)


def test_retried_calls_come_before_those_that_waited(make: Make) -> None:
    """A call that is run again keeps its place in the queue."""
    pool = make()
    first, *others = pool.submit(3, retries=1)
    pool.lose(pool.workers[0])
    again = pool.add(0, generation=1)
    for task in (first, *others):
        assert sent(again)[-1] == task.id
        pool.finish(again, task)


def test_queued_calls_wait_for_a_worker_that_comes_back(make: Make) -> None:
    """While the only worker is being started again, calls are taken and kept."""
    pool = make()
    pool.lose(pool.workers[0])
    free, pinned = pool.submit(1) + pool.submit(1, pin=0)
    again = pool.add(0, generation=1)
    pool.finish(again, pinned)
    assert sorted(sent(again)) == sorted(ids([free, pinned]))


def test_without_any_worker_left_calls_fail(make: Make) -> None:
    """Queued ones with the loss of the last worker, new ones at once, both with the reason; until one comes again."""
    pool = make(workers=2)
    tasks = pool.submit(6)
    pool.lose(pool.workers[0], forever=True)
    assert [task.done for task in tasks] == [True] + [False] * 5
    pool.lose(pool.workers[1], forever=True)
    assert [type(task.error) for task in tasks] == [WorkerLostError] * 2 + [PoolError] * 4
    with pytest.raises(PoolError, match="No node of this pool takes calls now: node 0 is gone"):
        pool.submit(1)
    pool.dispatcher.restore([1])
    (task,) = pool.submit(1)
    assert sent(pool.add(1, generation=1)) == [task.id]


def test_a_worker_that_was_being_started_again_can_be_lost_forever(make: Make) -> None:
    """A node may go while its worker restarts: what waited for that worker fails instead of waiting on."""
    pool = make()
    (running,) = pool.submit(1, retries=5)
    pool.lose(pool.workers[0])
    waiting = pool.submit(1) + pool.submit(1, pin=0)
    pool.lose(pool.workers[0], forever=True)
    assert all(isinstance(task.error, PoolError) for task in (running, *waiting))


@pytest.mark.parametrize("forever_first", [True, False])
def test_a_loss_may_be_told_twice(make: Make, forever_first: bool) -> None:
    """The node's end and the worker's end are noticed by two threads, in any order; workers are counted down once."""
    pool = make(workers=2)
    a, b, pinned = pool.submit(2, retries=3) + pool.submit(1, pin=0, retries=3)
    for forever in (forever_first, not forever_first):
        pool.lose(pool.workers[0], forever=forever)
    assert isinstance(pinned.error, WorkerLostError | PoolError)
    pool.finish(pool.workers[1], b)
    pool.finish(pool.workers[1], a, "a")
    assert a.value() == "a"
    assert len(pool.submit(1)) == 1


def test_a_pinned_call_for_a_worker_that_is_gone_fails_at_once(make: Make) -> None:
    """It must not wait for a worker that will never be there."""
    pool = make(workers=2)
    pool.lose(pool.workers[0], forever=True)
    (task,) = pool.submit(1, pin=0)
    assert isinstance(task.error, PoolError)
    assert pool.told == [task.id]


def test_a_worker_that_died_before_it_was_added_gets_no_calls(make: Make) -> None:
    """A worker may die between its set-up and its first call; its loss is then known before it is added."""
    pool = make()
    pool.lose(pool.workers[0])
    stillborn = make_worker(0, generation=1)
    pool.lose(stillborn)
    pool.dispatcher.add(stillborn)
    (task,) = pool.submit(1)
    assert sent(stillborn) == []
    assert sent(pool.add(0, generation=2)) == [task.id]


def test_a_pinned_call_with_retries_waits_for_its_worker(make: Make) -> None:
    """It runs again on the same worker, or fails when that one does not come back."""
    pool = make(workers=2)
    (task,) = pool.submit(1, pin=0, retries=1)
    pool.lose(pool.workers[0])
    assert sent(pool.workers[1]) == []
    assert sent(pool.add(0, generation=1)) == [task.id]


def test_a_stream_on_a_lost_worker_ends_with_the_loss(make: Make) -> None:
    """What has arrived can be taken, then comes the error; a stream is never run again."""
    pool = make()
    (task,) = pool.submit(1, retries=3)
    pool.say(pool.workers[0], Frame(Kind.STREAM, task.id), Frame(Kind.ITEM, task.id, result(task, 7).head[8:]))
    stream = task.value()
    pool.lose(pool.workers[0])
    assert next(stream) == 7
    with pytest.raises(WorkerLostError):
        next(stream)
    assert list(stream) == []


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


# cancel and time limits ----------------------------------------------------------------------------------------


def test_a_queued_call_that_is_cancelled_is_never_sent(make: Make) -> None:
    """Its outcome is known at once; its turn is skipped."""
    pool = make()
    a, b, c = pool.submit(3)
    pool.dispatcher.cancel(b)
    assert isinstance(b.error, TaskCancelledError)
    pool.finish(pool.workers[0], a)
    assert sent(pool.workers[0]) == [a.id, c.id]
    assert sent(pool.workers[0], Kind.CANCEL) == []


def test_a_running_call_that_is_cancelled_is_interrupted(make: Make) -> None:
    """Its caller knows at once; the worker is told, and free again when it has answered."""
    pool = make()
    a, b = pool.submit(2)
    pool.dispatcher.cancel(a)
    assert isinstance(a.error, TaskCancelledError)
    assert sent(pool.workers[0], Kind.CANCEL) == [a.id]
    assert b.id not in sent(pool.workers[0])
    pool.say(pool.workers[0], error(a, KeyboardInterrupt()))
    assert sent(pool.workers[0])[-1] == b.id
    assert pool.told == [a.id]
    pool.time.pass_(2 * GRACE_S)
    assert pool.killed == []


def test_a_call_that_does_not_heed_its_end_costs_its_worker(make: Make) -> None:
    """After a grace the worker is ended; calls beside it run again only if their functions allow that."""
    pool = make(slots=3)
    (stubborn, innocent), (repeatable,) = pool.submit(2), pool.submit(1, retries=1)
    pool.dispatcher.cancel(stubborn)
    pool.time.pass_(GRACE_S + 0.1)
    assert pool.killed == pool.workers
    pool.lose(pool.workers[0])
    again = pool.add(0, generation=1)
    assert sent(again) == [repeatable.id]
    assert isinstance(innocent.error, WorkerLostError)
    assert "work() was to be stopped there and did not heed that" in pool.workers[0].ordered_to_end


def test_a_call_that_has_heeded_its_end_is_not_kept(make: Make) -> None:
    """Not for the grace either: all streams that are dropped in that time would be in memory together."""
    pool = make()
    (task,) = pool.submit(1)
    pool.dispatcher.cancel(task)
    pool.say(pool.workers[0], error(task, KeyboardInterrupt()))
    number = task.id
    del task
    gc.collect()
    assert number not in [each.id for each in gc.get_objects() if isinstance(each, Task)]


def test_a_crash_next_to_a_cancelled_call_is_a_crash(make: Make) -> None:
    """Only workers that the pool itself ends give started calls another run: no function runs twice unasked."""
    pool = make(slots=2)
    cancelled, crashing = pool.submit(2)
    pool.dispatcher.cancel(cancelled)
    pool.lose(pool.workers[0])
    assert isinstance(crashing.error, WorkerLostError)


@pytest.mark.parametrize("pin", [None, 0])
def test_a_call_cancelled_in_a_workers_queue_is_forgotten(make: Make, pin: int | None) -> None:
    """The worker drops it unstarted; it is neither sent again nor kept."""
    pool = make()
    pool.workers[0].buffer = 2
    a, b = pool.submit(2, pin=pin)
    pool.dispatcher.cancel(b)
    pool.say(pool.workers[0], Frame(Kind.DROPPED, b.id))
    pool.finish(pool.workers[0], a)
    pool.time.pass_(2 * GRACE_S)
    assert pool.time.waiting == 0
    pool.lose(pool.workers[0])
    assert sent(pool.add(0, generation=1)) == []
    assert pool.told == [b.id, a.id]


def test_a_time_limit_counts_from_the_start_of_the_run(make: Make) -> None:
    """Waiting costs nothing; a call over its limit is interrupted and its caller told."""
    pool = make()
    first, second = pool.submit(2, timeout=1.0)
    pool.say(pool.workers[0], Frame(Kind.STARTED, first.id))
    pool.time.pass_(0.9)
    pool.finish(pool.workers[0], first)
    pool.time.pass_(5.0)
    assert not second.done
    pool.say(pool.workers[0], Frame(Kind.STARTED, second.id))
    pool.time.pass_(1.0 + 2 * TICK_S)
    assert isinstance(second.error, TaskTimeoutError)
    assert "limit of 1 s on node 0" in str(second.error)
    assert sent(pool.workers[0], Kind.CANCEL) == [second.id]


def test_a_limit_of_a_lost_run_does_not_count_for_the_next(make: Make) -> None:
    """A call that is run again after a loss has its whole limit again."""
    pool = make()
    (task,) = pool.submit(1, timeout=1.0, retries=1)
    pool.say(pool.workers[0], Frame(Kind.STARTED, task.id))
    pool.time.pass_(0.9)
    pool.lose(pool.workers[0])
    pool.time.pass_(5.0)
    assert not task.done
    again = pool.add(0, generation=1)
    pool.say(again, Frame(Kind.STARTED, task.id))
    pool.time.pass_(0.9)
    assert not task.done
    pool.time.pass_(0.2)
    assert isinstance(task.error, TaskTimeoutError)


def test_a_pinned_retry_keeps_its_time_limit(make: Make) -> None:
    """Also when nothing else was going on while its worker was started again."""
    pool = make()
    (task,) = pool.submit(1, pin=0, timeout=1.0, retries=1)
    pool.lose(pool.workers[0])
    pool.time.pass_(1.0)
    again = pool.add(0, generation=1)
    pool.say(again, Frame(Kind.STARTED, task.id))
    pool.time.pass_(1.2)
    assert isinstance(task.error, TaskTimeoutError)


def test_cancelling_a_stream_stops_its_generator(make: Make) -> None:
    """Closing it sends one CANCEL; so does dropping it, at once, though the collector does no more than leave word."""
    pool = make(slots=2)
    closed, dropped = pool.submit(2)
    pool.say(pool.workers[0], Frame(Kind.STREAM, closed.id), Frame(Kind.STREAM, dropped.id))
    closed.value().close()
    assert sent(pool.workers[0], Kind.CANCEL) == [closed.id]
    stream = dropped.value()
    pool.time.pass_(2 * TICK_S)
    assert sent(pool.workers[0], Kind.CANCEL) == [closed.id]
    before = pool.time.waiting
    del stream
    wait_until(lambda: pool.time.waiting > before)
    pool.time.pass_(0.0)
    assert sent(pool.workers[0], Kind.CANCEL) == [closed.id, dropped.id]


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


def test_what_was_not_sent_is_taken_back_here(make: Make) -> None:
    """A worker that reads nothing is asked nothing about it, and the call runs elsewhere."""
    pool = make(workers=2)
    first, second = pool.workers
    first.buffer = second.buffer = 1
    fake(first).full = True
    tasks = pool.submit(4)
    stuck = [task for task in tasks if task.id in first.outstanding]
    pool.dispatcher.cancel(stuck[1])
    assert isinstance(stuck[1].error, TaskCancelledError)
    assert stuck[1].id not in first.outstanding
    pool.lose(first, is_known=False)
    assert not stuck[0].done
    for task in (*tasks, stuck[0]):
        if task.id in second.outstanding:
            pool.finish(second, task, "done")
    assert stuck[0].value() == "done"


def test_what_was_sent_to_a_node_that_fell_silent_may_have_run(make: Make) -> None:
    """Prefetched calls too: without retries each is an error that says so, with them they run again."""
    pool = make()
    (worker,) = pool.workers
    worker.buffer = 8
    once, again = pool.submit(3), pool.submit(1, retries=1)
    pool.lose(worker, is_known=False)
    assert [isinstance(task.error, WorkerLostError) for task in once] == [True] * 3
    assert all("may have run" in str(task.error) for task in once)
    assert sent(pool.add(0, generation=1)) == ids(again)


def test_calls_of_a_process_that_is_known_to_have_ended_run_elsewhere(make: Make) -> None:
    """It took them in order: all but the first ones, as many as it has slots, had not begun."""
    pool = make()
    (worker,) = pool.workers
    worker.buffer = 8
    running, *waiting = pool.submit(3)
    pool.lose(worker)
    assert isinstance(running.error, WorkerLostError)
    again = pool.add(0, generation=1)
    pool.finish(again, waiting[0])
    assert sent(again) == ids(waiting)


def test_a_process_that_leaves_for_a_fresh_one_has_begun_nothing_it_holds(make: Make) -> None:
    """It said so itself; what it was sent meanwhile runs in the next one."""
    pool = make()
    (worker,) = pool.workers
    worker.buffer = 8
    stale, behind = pool.submit(2)
    pool.say(worker, Frame(Kind.STALE, stale.id))
    pool.lose(worker, is_known=False)
    again = pool.add(0, generation=1)
    pool.finish(again, stale)
    assert sent(again) == ids([stale, behind])


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


def test_a_broken_connection_settles_nothing_by_itself(make: Make) -> None:
    """The thread that reads from the worker learns the reason of its end; what was not written runs elsewhere."""
    pool = make()
    fake(pool.workers[0]).broken = True
    (task,) = pool.submit(1)
    assert not task.done
    pool.lose(pool.workers[0])
    assert not task.done
    assert sent(pool.add(0, generation=1)) == [task.id]


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
    tasks: list[Task] = [Counted(pool.dispatcher.next_id(), function, b"", (), None, 0) for _ in range(4000)]
    pool.dispatcher.submit(tasks)
    (worker,) = pool.workers
    while worker.outstanding:
        pool.say(worker, *(Frame(Kind.RESULT, number, RESULT_HEAD.pack(0.0001)) for number in list(worker.outstanding)))
    assert all(task.done for task in tasks)
    assert looked_at == 4000


def test_the_error_of_a_loss_is_made_per_call(make: Make) -> None:
    """Two calls lost with one worker have an error object each: tracebacks and notes must not mix."""
    pool = make(slots=2)
    a, b = pool.submit(2)
    pool.dispatcher.lose(pool.workers[0], lost_on(pool.workers[0]), is_known=True)
    assert a.error is not b.error
    assert isinstance(a.error, SkywardError)


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
    assert pool.dispatcher.held(leaving) == []


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
