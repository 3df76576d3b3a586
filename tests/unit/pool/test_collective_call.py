"""A call on all ranks: how it ends, whom it asks, whom it blames, and what becomes of its parts."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Any, cast

import pytest

from skyward._pool.background import Timers
from skyward._pool.collective import call as module
from skyward._pool.collective.call import CollectiveCall
from skyward._pool.collective.worker_group import WorkerGroup
from skyward._pool.services import GatherCoordinator
from skyward.errors import (
    CollectiveHangError,
)
from skyward.wire.frames import Frame
from skyward.wire.messages import Kind, encode
from tests.unit.pool.conftest import Make
from tests.unit.pool.fakes import FakePool, error, result, sent

NAMES = {0: "rank 0 (node 0)", 1: "rank 1 (node 1)"}
WAITS_S = 120.0


class FakeGroup:
    """Restarts nothing; every rank's agent gives the same dump."""

    def register(self, _abort: object, _read_here: object) -> bool:
        return True

    def ignore(self, *_: object) -> None:
        pass

    unregister = hold = restart = ignore

    def dump(self, _rank: int) -> Future[str]:
        dumped: Future[str] = Future()
        dumped.set_result('Stack (most recent call first):\n  File "/home/u/c.py", line 3 in spin\n')
        return dumped


class Call:
    """A call on two ranks under way."""

    def __init__(self, pool: FakePool) -> None:
        self.pool, self.group = pool, FakeGroup()
        self.tasks = [pool.task(pin=rank) for rank in NAMES]
        gather = GatherCoordinator(NAMES, cast(Timers, pool.time))
        self.collective = CollectiveCall(self.tasks, NAMES, gather, pool.dispatcher, cast(WorkerGroup, self.group))
        assert self.collective.start()

    def say(self, rank: int, frame: Frame) -> None:
        self.pool.say(self.pool.workers[rank], frame)

    def answer(self, rank: int, **sample: Any) -> None:
        """Say where a rank is, once it has been asked."""
        self.until(lambda: sent(self.pool.workers[rank], Kind.STACK))
        frames = [("/home/u/train.py", 88, "train", "dist.all_reduce(loss)")]
        document = {"frames": frames, "place": "p", "waits": True, "cpu_s": 1.0, "switches": 1, **sample}
        self.say(rank, Frame(Kind.STACKS, self.tasks[rank].id, encode(document)))

    def until(self, condition: Any) -> None:
        deadline = time.monotonic() + WAITS_S
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def error(self) -> BaseException:
        self.until(self.collective._gate.is_set)
        assert self.collective.error is not None
        return self.collective.error


@pytest.fixture
def call(make: Make) -> Call:
    return Call(make(workers=2))


def told(failure: BaseException) -> str:
    return "\n".join([str(failure), *getattr(failure, "__notes__", ())])


def test_a_rank_that_cannot_answer_is_found_by_its_agent(call: Call) -> None:
    """Its code holds the interpreter's lock; the agent makes it write where it is."""
    call.say(1, error(call.tasks[1], ValueError("row 7")))
    text = told(call.error())
    assert 'holds the interpreter\'s lock, here:\n  File "/home/u/c.py", line 3, in spin' in text


def test_ranks_that_wait_for_one_that_returned_are_found(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names who returned and where the others wait."""
    monkeypatch.setattr(module, "STUCK_S", 0.2)
    monkeypatch.setattr(module, "PROBE_S", 0.05)
    call = Call(make(workers=2))
    call.say(0, result(call.tasks[0]))
    deadline = time.monotonic() + WAITS_S
    while not call.collective._gate.is_set() and time.monotonic() < deadline:
        call.answer(1)
        time.sleep(0.05)
    failure = call.error()
    assert isinstance(failure, CollectiveHangError)
    assert (failure.returned, failure.waiting) == ((0,), (1,))
    assert "rank 0 (node 0) returned while the other ranks waited" in str(failure)
    assert "line 88, in train" in str(failure)
