"""Calls whose worker is lost: which run again, which are lost, and which may have run."""

from __future__ import annotations

import pytest

from skyward.errors import PoolError, SkywardError, WorkerLostError
from skyward.wire.frames import Frame
from skyward.wire.messages import Kind
from tests.unit.pool.conftest import Make
from tests.unit.pool.fakes import fake, ids, lost_on, result, sent


def test_retried_calls_come_before_those_that_waited(make: Make) -> None:
    """A call that is run again keeps its place in the queue."""
    pool = make()
    first, *others = pool.submit(3, retries=1)
    pool.lose(pool.workers[0])
    again = pool.add(0, generation=1)
    for task in (first, *others):
        assert sent(again)[-1] == task.id
        pool.finish(again, task)


def test_a_pinned_call_for_a_worker_that_is_gone_fails_at_once(make: Make) -> None:
    """It must not wait for a worker that will never be there."""
    pool = make(workers=2)
    pool.lose(pool.workers[0], forever=True)
    (task,) = pool.submit(1, pin=0)
    assert isinstance(task.error, PoolError)
    assert pool.told == [task.id]


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
