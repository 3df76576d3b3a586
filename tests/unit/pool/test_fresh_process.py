"""What the pool does when a worker gives a call back because that needs a fresh process, and ends."""

from __future__ import annotations

from skyward._pool.dispatcher import GRACE_S
from skyward.wire.frames import Frame
from skyward.wire.messages import Kind
from tests.unit.pool.conftest import Make
from tests.unit.pool.fakes import fake, ids, sent


def test_the_call_runs_in_the_process_that_follows(make: Make) -> None:
    """It is sent again to the next life of the worker, before what was sent after it; no error is told."""
    pool = make()
    (worker,) = pool.workers
    worker.buffer = 1
    tasks = pool.submit(3)
    assert sent(worker) == ids(tasks[:2])

    pool.say(worker, Frame(Kind.STALE, tasks[0].id))
    pool.lose(worker)

    assert pool.told == []
    fresh = pool.add(0, generation=1)
    assert sent(fresh) == ids(tasks[:1])
    assert [frame.kind for frame in fake(fresh).sent] == [Kind.FUNCTION, Kind.CALL]


def test_a_worker_that_does_not_end_is_ended(make: Make) -> None:
    """Its plugins have a while to leave; then it is killed. One that has ended is left alone."""
    pool = make(workers=2)
    tasks = pool.submit(2)
    for worker, task in zip(pool.workers, tasks, strict=True):
        pool.say(worker, Frame(Kind.STALE, task.id))
    pool.lose(pool.workers[0])

    pool.time.pass_(GRACE_S + 1)

    assert pool.killed == [pool.workers[1]]
