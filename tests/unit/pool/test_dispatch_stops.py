"""Calls that are stopped: cancelled, over their limit, and streams that are dropped."""

from __future__ import annotations

import gc

import pytest

from skyward._pool.dispatcher import GRACE_S, TICK_S
from skyward._pool.task import Task
from skyward.errors import TaskCancelledError, TaskTimeoutError, WorkerLostError
from skyward.wire.frames import Frame
from skyward.wire.messages import Kind
from tests.unit.pool.conftest import Make
from tests.unit.pool.fakes import error, sent
from tests.waiting import wait_until


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
    assert number not in [each.id for each in gc.get_objects() if type(each) is Task]  # some classes warn of isinstance


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
