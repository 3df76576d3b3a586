"""Lines about the progress of calls, where no terminal shows a row."""

from __future__ import annotations

import pytest

from skyward._pool import progress
from skyward._pool.progress import Counting
from skyward._pool.task import Task
from skyward.errors import TaskError
from skyward.system import SimpleQueue
from tests.unit.pool.fakes import FUNCTION, FakeTime


@pytest.mark.parametrize("fails", [False, True])
def test_last_line_counts_what_ended(
    fails: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says "all" only if every call has succeeded."""
    time = FakeTime()
    monkeypatch.setattr(progress, "time", time)
    tasks = [Task(number, FUNCTION, b"", (), None, 0) for number in range(3)]
    arrived: SimpleQueue[Task] = SimpleQueue()
    for task in tasks:
        task.on_done(arrived.put)
    with Counting(tasks, quiet=False) as counting:
        tasks[0].resolve()
        tasks[1].resolve(error=TaskError("broke") if fails else None)
        counting.take(arrived)
        time.pass_(4.0)
        counting.take(arrived)
        if not fails:
            tasks[2].resolve()
            counting.take(arrived)

    first, last = capsys.readouterr().err.splitlines()
    assert first.startswith("skyward: work(): 1 of 3 calls, ")
    assert last == f"skyward: work(): {'2 of 3 calls, 1 failed,' if fails else 'all 3 calls'} in 4.0 s"
