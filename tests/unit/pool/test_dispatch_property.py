"""Whatever happens to workers and calls: every call has exactly one outcome, and none runs more often than it may."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from skyward._pool import dispatcher as dispatch
from skyward._pool.nodes.worker_client import WorkerClient
from skyward._pool.task import Task
from skyward.errors import PoolError
from skyward.wire.frames import Frame
from skyward.wire.messages import Kind
from tests.unit.pool.fakes import FakePool, error, fake, result

WORKERS = 3


class SimulatedWorker:
    """What a worker process does with what it is sent, one step at a time."""

    def __init__(self, link: WorkerClient) -> None:
        self.link = link
        self.queue: list[int] = []
        self.running: list[int] = []
        self._read = 0

    def step(self, machine: Dispatching) -> None:
        """Read what has come, answer orders, start what there is a slot for."""
        answers: list[Frame] = []
        sent = fake(self.link).sent
        while self._read < len(sent):
            frame = sent[self._read]
            self._read += 1
            if frame.kind == Kind.CALL:
                self.queue.append(frame.id)
            elif frame.kind in (Kind.RECALL, Kind.CANCEL) and frame.id in self.queue:
                self.queue.remove(frame.id)
                answers.append(Frame(Kind.DROPPED, frame.id))
            elif frame.kind == Kind.CANCEL and frame.id in self.running and frame.id not in machine.stubborn:
                self.running.remove(frame.id)
                answers.append(error(machine.tasks[frame.id], KeyboardInterrupt()))
        while self.queue and len(self.running) < self.link.slots:
            number = self.queue.pop(0)
            self.running.append(number)
            machine.runs[number] += 1
            assert machine.tasks[number].pin in (None, self.link.rank)
        if answers:
            machine.pool.say(self.link, *answers)


class Dispatching(RuleBasedStateMachine):
    """Calls, results, losses, restarts and cancellations in any order."""

    @initialize(slots=st.integers(1, 3))
    def start(self, slots: int) -> None:
        self.patch = pytest.MonkeyPatch()
        self.pool = FakePool(lambda time: self.patch.setattr(dispatch, "time", time), WORKERS, slots)
        self.workers = {link.rank: SimulatedWorker(link) for link in self.pool.workers}
        self.ended: list[WorkerClient] = []
        self.generations: Counter[int] = Counter()
        self.tasks: dict[int, Task] = {}
        self.allowed: dict[int, int] = {}
        self.runs: Counter[int] = Counter()
        self.stubborn: set[int] = set()
        self.gone: set[int] = set()

    # what callers do

    @rule(
        count=st.integers(1, 12),
        pin=st.none() | st.integers(0, WORKERS - 1),
        retries=st.integers(0, 2),
        deaf=st.booleans(),
    )
    def submit(self, count: int, pin: int | None, retries: int, deaf: bool) -> None:
        tasks = [self.pool.task(pin=pin, retries=retries) for _ in range(count)]
        self.tasks |= {task.id: task for task in tasks}
        self.allowed |= {task.id: 1 + retries for task in tasks}
        self.stubborn |= {task.id for task in tasks[:1] if deaf}
        try:
            self.pool.dispatcher.submit(tasks)
        except PoolError:
            assert len(self.gone) == WORKERS
            for task in tasks:
                del self.tasks[task.id]

    @precondition(lambda self: self.tasks)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.pool.dispatcher.cancel(self.tasks[data.draw(st.sampled_from(sorted(self.tasks)))])

    # what workers do

    @rule(rank=st.integers(0, WORKERS - 1), run_s=st.sampled_from([0.00005, 0.001, 1.0]))
    def finish(self, rank: int, run_s: float) -> None:
        worker = self.workers.get(rank)
        if worker is None:
            return
        worker.step(self)
        if worker.running:
            number = worker.running.pop(0)
            self.pool.say(worker.link, result(self.tasks[number], number, run_s))
            worker.step(self)

    @rule(rank=st.integers(0, WORKERS - 1))
    def crash(self, rank: int) -> None:
        worker = self.workers.pop(rank, None)
        if worker is not None:
            self.end(worker)

    @rule(rank=st.integers(0, WORKERS - 1), unread=st.integers(0, 3))
    def fall_silent(self, rank: int, unread: int) -> None:
        """It goes on, and its last answers do not arrive."""
        worker = self.workers.pop(rank, None)
        if worker is None:
            return
        worker.step(self)
        for number in (*worker.running, *worker.queue)[: unread + 1]:
            self.runs[number] += number not in worker.running
        self.end(worker, is_known=False)

    @rule(rank=st.integers(0, WORKERS - 1))
    def fill_or_drain(self, rank: int) -> None:
        """Its socket takes nothing for a while."""
        worker = self.workers.get(rank)
        if worker is not None:
            connection = fake(worker.link)
            connection.full = not connection.full
            worker.link.flush()

    @rule(rank=st.integers(0, WORKERS - 1))
    def restart(self, rank: int) -> None:
        if rank not in self.workers and rank not in self.gone:
            self.generations[rank] += 1
            self.workers[rank] = SimulatedWorker(self.pool.add(rank, self.generations[rank]))

    @precondition(lambda self: len(self.gone) < WORKERS)
    @rule(rank=st.integers(0, WORKERS - 1), twice=st.booleans())
    def node_goes(self, rank: int, twice: bool) -> None:
        worker = self.workers.pop(rank, None)
        link = worker.link if worker else next((w for w in reversed(self.ended) if w.rank == rank), None)
        if link is None:
            return
        self.gone.add(rank)
        for _ in range(1 + twice):
            self.pool.lose(link, forever=True)

    @rule(seconds=st.sampled_from([0.06, 0.5, 6.0]))
    def wait(self, seconds: float) -> None:
        self.pool.time.pass_(seconds)
        for link in self.pool.killed:
            worker = self.workers.get(link.rank)
            if worker is not None and worker.link is link:
                del self.workers[link.rank]
                self.end(worker)
        self.pool.killed.clear()

    def end(self, worker: SimulatedWorker, *, is_known: bool = True) -> None:
        worker.step(self)
        self.ended.append(worker.link)
        self.pool.lose(worker.link, is_known=is_known)

    # what must hold

    @invariant()
    def nobody_is_told_twice(self) -> None:
        told = Counter(self.pool.told)
        assert all(count == 1 for count in told.values())
        assert {task.id for task in self.tasks.values() if task.done} == set(told)

    @invariant()
    def nothing_runs_too_often(self) -> None:
        assert all(self.runs[number] <= self.allowed[number] for number in self.tasks)

    def teardown(self) -> None:
        if not hasattr(self, "pool"):
            return
        try:
            self.settle_down()
            assert {number for number, task in self.tasks.items() if not task.done} == set()
            self.nobody_is_told_twice()
            self.nothing_runs_too_often()
            for number, task in self.tasks.items():
                assert task.error is not None or task.value() == number
        finally:
            self.patch.undo()

    def settle_down(self) -> None:
        """No more accidents: the workers that can come back do, and finish what they have."""
        for rank in range(WORKERS):
            self.restart(rank)
            if rank in self.workers and fake(self.workers[rank].link).full:
                self.fill_or_drain(rank)
        self.wait(6.0)
        for rank in range(WORKERS):
            self.restart(rank)
        for _ in range(sum(self.allowed.values()) + 10):
            for rank in range(WORKERS):
                self.finish(rank, 0.001)
            self.wait(0.06)


def test_every_call_has_one_outcome_whatever_happens() -> None:
    """Random calls, results, losses, restarts, recalls and cancellations: nothing is lost, doubled or left waiting."""
    options: dict[str, Any] = {"max_examples": 120, "stateful_step_count": 40, "deadline": None}
    run_state_machine_as_test(
        Dispatching, settings=settings(**options, suppress_health_check=list(HealthCheck), derandomize=True)
    )
