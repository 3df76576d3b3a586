"""Calls whose worker is lost: which run again, which are lost, and which may have run."""

from __future__ import annotations

import pytest

from skyward.errors import PoolError, SkywardError, TaskCancelledError, WorkerLostError
from skyward.wire.frames import Frame
from skyward.wire.messages import Kind
from tests.unit.pool.conftest import Make
from tests.unit.pool.fakes import fake, ids, lost_on, make_worker, result, sent


def test_only_calls_that_had_started_are_lost(make: Make) -> None:
    """Of the calls on a lost worker the running one fails, the others run elsewhere, in their old order."""
    pool = make(workers=2)
    first, second = pool.workers
    second.buffer = first.buffer = 3
    a, b, *_ = tasks = pool.submit(8)
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
    assert sorted(pool.told) == ids(tasks)
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


def test_a_broken_connection_settles_nothing_by_itself(make: Make) -> None:
    """The thread that reads from the worker learns the reason of its end; what was not written runs elsewhere."""
    pool = make()
    fake(pool.workers[0]).broken = True
    (task,) = pool.submit(1)
    assert not task.done
    pool.lose(pool.workers[0])
    assert not task.done
    assert sent(pool.add(0, generation=1)) == [task.id]


def test_the_error_of_a_loss_is_made_per_call(make: Make) -> None:
    """Two calls lost with one worker have an error object each: tracebacks and notes must not mix."""
    pool = make(slots=2)
    a, b = pool.submit(2)
    pool.dispatcher.lose(pool.workers[0], lost_on(pool.workers[0]), is_known=True)
    assert a.error is not b.error
    assert isinstance(a.error, SkywardError)
