"""A worker, a clock and calls without processes, sockets or time."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any, cast

from skyward._pool.background import Timers
from skyward._pool.code.functions import Function
from skyward._pool.dispatcher import Dispatcher
from skyward._pool.nodes.worker_client import LostError, WorkerClient
from skyward._pool.task import Task
from skyward.errors import WireError, WorkerLostError
from skyward.wire import payload
from skyward.wire.frames import Connection, Frame
from skyward.wire.messages import RESULT_HEAD, Kind

IDS = itertools.count(1)  # of calls, unique over all pools
FUNCTION = Function(1, "work", b"the pickled function", None)


class FakeTime:
    """Time that passes when a test says so; in the place of `Timers` and of the module `time`."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._order = itertools.count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []

    def monotonic(self) -> float:
        return self.now

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now + delay_s, next(self._order), action))

    def pass_(self, seconds: float) -> None:
        end = self.now + seconds
        while self._due and self._due[0][0] <= end:
            self.now, _, action = heapq.heappop(self._due)
            action()
        self.now = end


class FakeConnection:
    """Takes frames instead of sending them; while it is `full` they stay in its queue."""

    def __init__(self) -> None:
        self.sent: list[Frame] = []
        self.queued: list[Frame] = []
        self.broken = self.full = False

    def enqueue(self, *frames: Frame, urgent: bool = False) -> None:
        self.queued = [*frames, *self.queued] if urgent else [*self.queued, *frames]

    def is_behind(self) -> bool:
        return bool(self.queued)

    def flush(self) -> None:
        if self.broken:
            raise WireError("The connection broke while sending.")
        if not self.full:
            self.sent += self.queued
            self.queued = []

    def post(self, *frames: Frame) -> None:
        self.enqueue(*frames)
        self.flush()

    def withdraw(self, kind: int, ident: int) -> bool:
        found = [frame for frame in self.queued if (frame.kind, frame.id) == (kind, ident)]
        self.queued = [frame for frame in self.queued if frame not in found]
        return bool(found)

    def unsent(self, kind: int) -> set[int]:
        return {frame.id for frame in self.queued if frame.kind == kind}


class FakePool:
    """A dispatcher with workers whose every word a test speaks itself."""

    def __init__(self, monkeypatch_time: Callable[[FakeTime], None], workers: int = 1, slots: int = 1) -> None:
        self.time = FakeTime()
        monkeypatch_time(self.time)
        self.dispatcher = Dispatcher(cast(Timers, self.time), workers, lambda *_: None)
        self.slots = slots
        self.killed: list[WorkerClient] = []
        self.told: list[int] = []  # ids of tasks in the order in which their outcome was told
        self.workers = [self.add(rank) for rank in range(workers)]

    def add(self, rank: int, generation: int = 0) -> WorkerClient:
        worker = make_worker(rank, generation, self.slots, killed=self.killed)
        self.dispatcher.add(worker)
        return worker

    def task(self, *, pin: int | None = None, retries: int = 0, timeout: float | None = None) -> Task:
        task = Task(next(IDS), FUNCTION, b"arguments", (), timeout, retries)
        task.pin = pin
        task.on_done(lambda done: self.told.append(done.id))
        return task

    def submit(self, count: int = 1, **wishes: Any) -> list[Task]:
        tasks = [self.task(**wishes) for _ in range(count)]
        self.dispatcher.submit(tasks)
        return tasks

    def say(self, worker: WorkerClient, *frames: Frame) -> None:
        self.dispatcher.on_frames(worker, list(frames))

    def finish(self, worker: WorkerClient, task: Task, value: object = None, run_s: float = 1.0) -> None:
        self.say(worker, result(task, value, run_s))

    def lose(self, worker: WorkerClient, *, forever: bool = False, is_known: bool = True) -> None:
        fake(worker).broken = True
        self.dispatcher.lose(worker, lost_on(worker), is_known=is_known)
        if forever:
            self.dispatcher.give_up((worker.rank,), f"node {worker.node} is gone")


class FakeAgent:
    """The agent of a worker's node, which notes that it is to end the worker."""

    def __init__(self, killed: list[WorkerClient]) -> None:
        self.killed = killed
        self.worker: WorkerClient

    def post(self, frame: Frame) -> None:
        assert frame.kind == Kind.KILL
        self.killed.append(self.worker)


def make_worker(
    rank: int, generation: int = 0, slots: int = 1, *, killed: list[WorkerClient] | None = None
) -> WorkerClient:
    agent = FakeAgent([] if killed is None else killed)
    connection = cast(Connection, FakeConnection())
    agent.worker = WorkerClient(rank, 0, rank, generation, slots, connection, cast(Connection, agent))
    return agent.worker


def fake(worker: WorkerClient) -> FakeConnection:
    return cast(FakeConnection, worker.connection)


def lost_on(worker: WorkerClient) -> LostError:
    return lambda task, fate: WorkerLostError(
        f"{task.function.name} was lost, it {fate.value}", node=worker.node, rank=worker.rank
    )


def sent(worker: WorkerClient, kind: Kind = Kind.CALL) -> list[int]:
    """Ids of the messages of one kind that a worker was sent."""
    return [frame.id for frame in fake(worker).sent if frame.kind == kind]


def ids(tasks: list[Task]) -> list[int]:
    return [task.id for task in tasks]


def result(task: Task, value: object = None, run_s: float = 1.0) -> Frame:
    return Frame(Kind.RESULT, task.id, RESULT_HEAD.pack(run_s) + payload.dumps(value)[0])


def error(task: Task, raised: BaseException) -> Frame:
    return Frame(Kind.ERROR, task.id, RESULT_HEAD.pack(1.0) + payload.dump_exception(raised))
