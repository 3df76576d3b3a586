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
    TaskTimeoutError,
    WorkerLostError,
)
from skyward.wire.frames import Frame
from skyward.wire.messages import Kind, encode
from tests.unit.pool.conftest import Make
from tests.unit.pool.fakes import FakePool, error, result, sent

NAMES = {0: "rank 0 (node 0)", 1: "rank 1 (node 1)"}
WAITS_S = 120.0


class FakeGroup:
    """Notes what it is told; every rank's agent gives the same dump."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.has_turn = True

    def register(self, _abort: object) -> bool:
        return self.has_turn

    def unregister(self, _abort: object) -> None:
        self.told.append("unregistered")

    def hold(self) -> None:
        self.told.append("hold")

    def restart(self, reason: str) -> None:
        self.told.append(reason)

    def node_of(self, rank: int) -> int:
        return rank

    def dump(self, _rank: int) -> Future[str]:
        dumped: Future[str] = Future()
        dumped.set_result('Stack (most recent call first):\n  File "/home/u/c.py", line 3 in spin\n')
        return dumped


class Call:
    """A call on two ranks under way."""

    def __init__(self, pool: FakePool, *, timeout: float | None = None, group: FakeGroup | None = None) -> None:
        self.pool, self.group = pool, group or FakeGroup()
        self.tasks = [pool.task(pin=rank, timeout=timeout) for rank in NAMES]
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


def test_the_cause_is_waited_for_where_a_peer_was_quicker(call: Call) -> None:
    """The end of a process takes longer to be known than the broken connection it leaves."""
    call.say(0, error(call.tasks[0], ConnectionResetError(104, "Connection reset by peer")))
    time.sleep(0.1)
    call.pool.lose(call.pool.workers[1])
    failure = call.error()
    assert isinstance(failure, WorkerLostError)
    assert failure.rank == 1
    assert "rank 0 (node 0) raised ConnectionResetError" in told(failure)


def test_a_rank_that_cannot_answer_is_found_by_its_agent(call: Call) -> None:
    """Its code holds the interpreter's lock; the agent makes it write where it is."""
    call.say(1, error(call.tasks[1], ValueError("row 7")))
    text = told(call.error())
    assert 'holds the interpreter\'s lock, here:\n  File "/home/u/c.py", line 3, in spin' in text


def test_a_time_limit_is_told_with_all_places(make: Make) -> None:
    """No rank is to blame; the processes are replaced, since the call may have been stopped in a collective."""
    call = Call(make(workers=2), timeout=1.0)
    for rank, task in enumerate(call.tasks):
        call.say(rank, Frame(Kind.STARTED, task.id))
    call.pool.time.pass_(1.2)
    for rank in NAMES:
        call.answer(rank)
    failure = call.error()
    assert isinstance(failure, TaskTimeoutError)
    assert "rank 0 (node 0), rank 1 (node 1) was here:" in told(failure)
    assert "hold" in call.group.told


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
