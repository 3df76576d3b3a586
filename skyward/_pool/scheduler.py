"""Scheduler: selects the worker for each call, and queues calls while no worker has room.

It is the state of `Dispatcher`, used under its lock: nothing here blocks, and messages are queued, not sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from skyward._pool.nodes.worker_client import Fate, LostError, WorkerClient
from skyward._pool.task import Task
from skyward.errors import PoolError, SkywardError
from skyward.system import time
from skyward.wire.messages import Kind

STALE_S = 0.02  # a call that waits longer on a busy worker is moved to an idle one
Failed = list[tuple[Task, SkywardError]]  # calls to settle after the lock is released


class Scheduler:
    """Assigns calls to the least loaded worker with room, and queues them while there is none.

    Args:
        workers: the expected number of workers.

    Attributes:
        workers: workers that take calls, by rank.
        draining: workers that receive no new calls, and may finish those that run.
        absent: ranks whose worker could not be replaced so far, with the reason.
        resting: whether all calls are queued, because the ranks are being restarted.
    """

    def __init__(self, workers: int) -> None:
        self.workers: dict[int, WorkerClient] = {}
        self.draining: list[WorkerClient] = []
        self.absent: dict[int, str] = {}
        self.resting = False
        self._expected = workers  # workers that are connected, or will be
        self._queue: deque[Task] = deque()
        self._patient: deque[Task] = deque()  # queued calls that are patient
        self._pinned: dict[int, list[Task]] = {}  # by rank: calls whose worker is not connected

    # workers ---------------------------------------------------------------------------------------------------

    @property
    def all_workers(self) -> tuple[WorkerClient, ...]:
        """All workers, including those that are draining."""
        return (*self.workers.values(), *self.draining)

    def admit(self, workers: Sequence[WorkerClient]) -> None:
        """Add connected workers and assign waiting calls to them."""
        here = [w for w in workers if w.alive and not w.draining and w.rank not in self.absent]
        self.workers.update((worker.rank, worker) for worker in here)
        for worker in () if self.resting else here:
            self._send_pinned(worker)
            self.refill(worker)

    def drain(self, worker: WorkerClient) -> None:
        """Assign no more calls to a worker, and take back those that have not started."""
        if self.workers.get(worker.rank) is worker:
            del self.workers[worker.rank]
            self.draining.append(worker)
        worker.draining = True
        self.take_back(worker)

    def remove(self, worker: WorkerClient, lost: LostError, *, is_known: bool) -> Failed:
        """Remove a lost worker, requeue the calls that may run again, and return the others with their errors.

        Args:
            worker: the worker, all of whose messages have been handled.
            lost: creates the error of a call that is lost with it.
            is_known: see `WorkerClient.fates`.
        """
        if self.workers.get(worker.rank) is worker:
            del self.workers[worker.rank]
        if worker in self.draining:
            self.draining.remove(worker)
        worker.alive = False
        fates = worker.fates(is_known=is_known)
        worker.outstanding.clear()
        worker.waiting.clear()
        failed: Failed = []
        again: list[Task] = []
        for task, fate in fates:
            if task.stopping is not None:
                failed.append((task, task.stopping))
            elif task.stream is not None or task.pin in self.absent:
                failed.append((task, lost(task, fate)))
            elif fate is Fate.WAITED:
                again.append(task)
            elif task.retries > 0:
                task.retries, task.retried = task.retries - 1, task.retried + 1
                again.append(task)
            else:
                failed.append((task, lost(task, fate)))
        for task in reversed(again):
            self.requeue(task)
        return failed + self._hopeless()

    def give_up(self, ranks: Iterable[int], why: str) -> Failed:
        """Mark ranks that have no worker and may not get one soon; return the calls that fail because of it."""
        new = [rank for rank in ranks if rank not in self.absent]
        self.absent.update(dict.fromkeys(new, why))
        self._expected -= len(new)
        pinned = [task for rank in new for task in self._pinned.pop(rank, ())]
        return [(task, self.refusal(task)) for task in pinned] + self._hopeless()

    def restore(self, ranks: Iterable[int]) -> None:
        """Unmark ranks whose worker is being started."""
        self._expected += sum(self.absent.pop(rank, None) is not None for rank in ranks)

    def _hopeless(self) -> Failed:
        """Remove and return the queued calls with their errors, if no worker is connected or expected."""
        if self.has_workers:
            return []
        failed = [(task, self.refusal(task)) for task in (*self._queue, *self._patient)]
        self._queue.clear()
        self._patient.clear()
        return failed

    @property
    def has_workers(self) -> bool:
        """Whether a worker is connected or expected."""
        return self._expected > 0

    def refusal(self, task: Task | None = None) -> SkywardError:
        """Return the error for a call that cannot run now, since its worker or all workers are absent."""
        if task is not None and task.pin in self.absent:
            return PoolError(f"A call for every node cannot be run: {self.absent[task.pin]}")
        return PoolError(f"No node of this pool accepts calls now: {next(iter(self.absent.values()), 'none has come')}")

    # calls -----------------------------------------------------------------------------------------------------

    def place(self, task: Task) -> WorkerClient | None:
        """Assign a new call to a worker and return that, or queue the call and return None."""
        if task.pin is not None:
            worker = None if self.resting else self.workers.get(task.pin)
            if worker is None:
                self._pinned.setdefault(task.pin, []).append(task)
        else:
            queue = self._patient if task.patient else self._queue
            worker = None if queue else self._least_loaded(patient=task.patient)
            if worker is None:
                queue.append(task)
        if worker is not None:
            self._assign(task, worker)
        return worker

    def worker_of(self, task: Task) -> WorkerClient | None:
        """Return the worker that a call was sent to, or None while it is queued."""
        if not task.sent_at:
            return None
        draining = (worker for worker in tuple(self.draining) if task.id in worker.outstanding)
        return next(draining, self.workers.get(task.rank))

    def refill(self, worker: WorkerClient) -> None:
        """Assign queued calls to a worker until it has no room."""
        room = worker.window - worker.load if worker.alive and not worker.draining else 0
        while room > 0 and not self.resting and (task := _next(self._queue)) is not None:
            self._assign(task, worker)
            room -= 1
        while room > 0 and not self.resting and worker.has_free_slot and (task := _next(self._patient)) is not None:
            self._assign(task, worker)
            room -= 1

    def spread(self) -> list[WorkerClient]:
        """Assign queued calls to workers with room, least loaded first, and pinned calls; return the workers used."""
        touched: dict[int, WorkerClient] = {}
        for rank in () if self.resting else self._pinned.keys() & self.workers.keys():
            touched[rank] = self.workers[rank]  # it connected while its predecessor still held these calls
            self._send_pinned(touched[rank])
        for queue in (self._queue, self._patient):
            while queue and (worker := self._least_loaded(patient=queue is self._patient)) is not None:
                if (task := _next(queue)) is not None:
                    self._assign(task, worker)
                    touched[worker.rank] = worker
        return list(touched.values())

    def hurry(self, task: Task) -> None:
        """Let a patient call share the slot of a stream, since somebody waits for it; called before `spread`."""
        task.patient = False
        if task in self._patient:
            self._patient.remove(task)
            self._queue.append(task)

    def requeue(self, task: Task) -> None:
        """Return a call that did not run to the front of its queue."""
        task.sent_at = 0.0
        if task.stopping is not None:
            return
        if task.pin is not None:
            self._pinned.setdefault(task.pin, []).insert(0, task)
        elif task.patient:
            self._patient.appendleft(task)
        else:
            self._queue.appendleft(task)

    def take_back(self, worker: WorkerClient, tasks: Sequence[Task] | None = None) -> None:
        """Take back calls that have not begun (`tasks`, or all): unsent ones now, others when the worker agrees."""
        for task in reversed(worker.queued if tasks is None else tasks):
            if worker.take_back(task.id):
                del worker.outstanding[task.id]
                self.requeue(task)
            else:
                worker.post_order(Kind.RECALL, task.id)

    def rebalance(self, now: float) -> list[WorkerClient]:
        """Take back waiting calls from busy workers while others are idle; return the workers to flush."""
        room = sum(w.window for w in self.workers.values() if not w.load)
        if not room or self._queue:
            return []
        touched = []
        for worker in self.workers.values():
            stale = [t for t in worker.queued if t.pin is None and now - t.sent_at > STALE_S][-room:] if room else []
            if stale:
                self.take_back(worker, stale)
                touched.append(worker)
                room -= len(stale)
        return touched + self.spread()

    def take_queued(self) -> list[Task]:
        """Remove and return all queued calls."""
        queued = [*self._queue, *self._patient, *(task for tasks in self._pinned.values() for task in tasks)]
        self._queue.clear()
        self._patient.clear()
        self._pinned.clear()
        return queued

    @property
    def queued(self) -> int:
        """Number of calls that wait for a worker."""
        return len(self._queue) + len(self._patient) + sum(map(len, self._pinned.values()))

    @property
    def has_work(self) -> bool:
        """Whether any call is queued or unanswered."""
        return bool(
            self._queue or self._patient or self._pinned or any(worker.outstanding for worker in self.all_workers)
        )

    def _least_loaded(self, *, patient: bool = False) -> WorkerClient | None:
        """Return the worker with the largest free share of its window, or None if all are full."""
        best, best_load = None, 1.0
        if self.resting:
            return None
        for worker in self.workers.values():
            load = worker.load / worker.window
            if load < best_load and (not patient or worker.has_free_slot):
                best, best_load = worker, load
        return best

    def _assign(self, task: Task, worker: WorkerClient) -> None:
        task.place, task.rank = str(worker), worker.rank
        task.sent_at = time.monotonic()
        worker.outstanding[task.id] = task
        worker.post(task)

    def _send_pinned(self, worker: WorkerClient) -> None:
        """Assign the calls pinned to a worker's rank."""
        for task in self._pinned.pop(worker.rank, ()):
            if task.stopping is None:
                self._assign(task, worker)


def _next(queue: deque[Task]) -> Task | None:
    """Remove and return the oldest call that was not cancelled, or None."""
    while queue:
        task = queue.popleft()
        if task.stopping is None:
            return task
    return None
