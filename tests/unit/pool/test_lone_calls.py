"""Which calls of single ranks count as waiting for the others."""

from __future__ import annotations

from typing import Any

import pytest

from skyward._pool.collective import lone_calls as module
from skyward._pool.collective.diagnosis import PROBE_S, STUCK_S
from skyward._pool.collective.lone_calls import LoneCalls
from skyward.wire.frames import Frame
from skyward.wire.messages import Kind, encode
from tests.unit.pool.conftest import Make

WAITING = {"frames": [("/home/u/train.py", 88, "train", "dist.all_reduce(loss)")], "place": "p", "waits": True}


@pytest.mark.parametrize(
    ("second", "told"),
    [
        ({}, True),
        ({"waits": False}, False),
        ({"silent": True}, False),
        ({"cpu_s": 1.0}, False),
        ({"everywhere": True}, False),
    ],
    ids=["waits too", "works", "holds the interpreter's lock", "computes", "is a part of a call on all ranks"],
)
def test_calls_are_told_when_all_that_run_wait(
    make: Make, monkeypatch: pytest.MonkeyPatch, second: dict[str, Any], told: bool
) -> None:
    """Any other may come to where they wait."""
    pool = make(workers=2)
    monkeypatch.setattr(module, "time", pool.time)
    notes: list[str] = []
    lone, tasks = LoneCalls(pool.dispatcher, notes.append), pool.submit(2)
    if second.get("everywhere"):
        tasks[1].broadcast = object()  # type: ignore[assignment]
    for number in range(int(3 * STUCK_S / PROBE_S)):
        pool.time.pass_(PROBE_S)
        lone.look([task for worker in pool.workers for task in pool.dispatcher.running(worker)])
        for worker, changes in zip(pool.workers, ({}, second), strict=True):
            (task,) = pool.dispatcher.running(worker)
            cpu_s = number * changes.get("cpu_s", 0.0)
            answer = Frame(Kind.STACKS, task.id, encode({**WAITING, **changes, "cpu_s": cpu_s, "switches": 1}))
            if task.broadcast is None and not changes.get("silent"):
                pool.say(worker, answer)
    text = "work() has waited on node 0 for 10 s, and was called on that rank only. If it waits for the others, "
    assert [note.partition("call it")[0] for note in notes] == [text] * told
