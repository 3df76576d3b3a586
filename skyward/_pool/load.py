"""`Load`: read access to the calls that the workers of a pool hold, and counts of those they have answered."""

from __future__ import annotations

from collections import defaultdict

from skyward._pool.calls.task import Task
from skyward._pool.nodes.worker_client import WorkerClient
from skyward._pool.scheduler import Scheduler
from skyward.system import threading


class Load:
    """Reads the state of calls under the lock of `Dispatcher`.

    Args:
        schedule: which worker has which call.
        lock: the one that guards it.
    """

    def __init__(self, schedule: Scheduler, lock: threading.Lock) -> None:
        self._schedule, self._lock = schedule, lock
        self._answered: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])  # calls, and errors, by node

    def count_answer(self, node: int, calls: int, *, failed: bool) -> None:
        """Count an answer of a node to so many calls; under the lock."""
        answered = self._answered[node]
        answered[0] += calls
        answered[1] += failed

    @property
    def slots(self) -> int:
        """How many calls the workers that are here can run at once."""
        with self._lock:
            return sum(worker.slots for worker in self._schedule.workers.values())

    def held(self, worker: WorkerClient) -> list[Task]:
        """The calls that a worker has been sent and has not answered; the first `slots` of them run."""
        with self._lock:
            return list(worker.outstanding.values())

    def counts(self) -> dict[str, int]:
        """How many calls run now and wait, and how many nodes have answered, by a result or an error."""
        with self._lock:
            held = [(len(worker.outstanding), worker.slots) for worker in self._schedule.all_workers]
            running = sum(min(calls, slots) for calls, slots in held)
            queued = sum(calls for calls, _ in held) - running + self._schedule.queued
            done, failed = (sum(each[which] for each in self._answered.values()) for which in (0, 1))
            return {"running": running, "queued": queued, "done": done, "failed": failed}

    def counts_of(self, node: int) -> dict[str, int]:
        """The same of one node, with what those before it at its index have answered."""
        with self._lock:
            held = [(len(w.outstanding), w.slots) for w in self._schedule.all_workers if w.node == node]
            running = sum(min(calls, slots) for calls, slots in held)
            done, failed = self._answered[node]
            return {"running": running, "queued": sum(n for n, _ in held) - running, "done": done, "failed": failed}

    def has_begun(self, task: Task) -> bool:
        """Whether a call runs now."""
        worker = self._schedule.worker_of(task)
        return worker is not None and task in self.held(worker)[: worker.slots]

    def has_hung_up(self, task: Task) -> bool:
        """Whether the worker of a call has closed its connection, and why is not known yet."""
        worker = self._schedule.worker_of(task)
        return worker is not None and worker.hung_up
