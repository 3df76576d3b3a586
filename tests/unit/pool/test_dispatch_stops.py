"""Calls that are stopped: cancelled, over their limit, and streams that are dropped."""

from __future__ import annotations

import gc

from skyward._pool.dispatcher import TICK_S
from skyward._pool.task import Task
from skyward.errors import TaskTimeoutError, WorkerLostError
from skyward.wire.frames import Frame
from skyward.wire.messages import Kind
from tests.unit.pool.conftest import Make
from tests.unit.pool.fakes import error, sent


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
