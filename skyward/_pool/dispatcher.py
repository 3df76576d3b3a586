"""Dispatch of calls to workers and of answers to callers, and handling of calls whose worker is lost.

One lock guards the state, which is in `Scheduler`. Nothing is sent, unpickled or called back while it is held, and
nothing here blocks: messages are queued at a worker's connection. A call that has begun, or may have begun, on a lost
worker fails unless its function allows retries; one that had not begun runs on another worker.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from skyward._pool.background import Timers
from skyward._pool.nodes.worker_client import LostError, WorkerClient
from skyward._pool.scheduler import Failed, Scheduler
from skyward._pool.services import refuse
from skyward._pool.signals import StateLock
from skyward._pool.task import Streams, Task
from skyward.errors import SkywardError, TaskCancelledError, TaskTimeoutError
from skyward.system import time
from skyward.wire.batch import COUNT
from skyward.wire.frames import Connection, Frame
from skyward.wire.messages import RESULT_HEAD, Kind, decode

GRACE_S = 5.0  # between the interrupt of a call and the end of a worker that ignores it
TICK_S = 0.05
DROPPED_S = 1.0  # delay before a dropped stream of a collective call is stopped, which ends all its processes
_LAST = frozenset((Kind.RESULT, Kind.ERROR, Kind.END))


class Dispatcher:
    """Sends calls to workers and returns their outcomes.

    Args:
        clock: the pool's timers.
        workers: the expected number of workers.
        checkpoint: handles a call's checkpoint requests; must not block.
    """

    def __init__(
        self,
        clock: Timers,
        workers: int,
        checkpoint: Callable[[Task, Connection, Frame], None],
    ) -> None:
        self._clock, self._checkpoint = clock, checkpoint
        self._lock = StateLock()
        self._schedule = Scheduler(workers)
        self._limits: dict[int, tuple[float, Task]] = {}  # running calls that have a time limit
        self._ticking = False
        self._streams = Streams(clock)
        self._suspended: SkywardError | None = None  # why calls cannot run at present
        self._closed: SkywardError | None = None  # why no more calls are accepted
        self._answered: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])  # number of calls and errors, by node

    # workers ---------------------------------------------------------------------------------------------------

    def add(self, worker: WorkerClient) -> None:
        """Start to send calls to a connected worker; do nothing if it has been lost in the meantime."""
        with self._lock:
            self._schedule.admit((worker,))
        _flush((worker,))

    def rest(self) -> None:
        """Send no more calls, and take back those that have not started, until `resume`."""
        with self._lock:
            self._schedule.resting = True
            touched = tuple(self._schedule.workers.values())
            for worker in touched:
                self._schedule.take_back(worker)
        _flush(touched)

    def resume(self, workers: Sequence[WorkerClient]) -> None:
        """Replace the workers by these and send them the waiting calls."""
        with self._lock:
            self._schedule.resting, self._suspended = False, None
            self._schedule.admit(workers)
        _flush(workers)

    def suspend(self, reason: SkywardError | None) -> None:
        """Fail waiting and new calls with `reason`, until called with None."""
        with self._lock:
            self._suspended = reason
            failed = [(task, reason) for task in self._schedule.take_queued()] if reason is not None else []
        _settle(failed)

    def drain(self, workers: Sequence[WorkerClient]) -> None:
        """Send no more calls to these workers, which will be replaced, and take back those that have not started."""
        with self._lock:
            for worker in workers:
                self._schedule.drain(worker)
            touched = self._schedule.spread()
        _flush((*workers, *touched))

    def lose(self, worker: WorkerClient, lost: LostError, *, is_known: bool) -> None:
        """Settle the calls of a lost worker (see `Scheduler.remove`); calls waiting for its rank continue to wait.

        May be called twice for a worker.
        """
        with self._lock:
            for call in worker.outstanding:
                self._limits.pop(call, None)  # limits apply to the lost run, not to the next
            failed = self._schedule.remove(worker, lost, is_known=is_known)
            touched = self._schedule.spread()
        _flush(touched)
        _settle(failed)

    def give_up(self, ranks: Iterable[int], why: str) -> None:
        """Fail calls for these ranks, which have no worker and may not get one soon, until `restore`."""
        with self._lock:
            failed = self._schedule.give_up(ranks, why)
        _settle(failed)

    def restore(self, ranks: Iterable[int]) -> None:
        """Accept calls for these ranks again, since workers for them are being started."""
        with self._lock:
            self._schedule.restore(ranks)

    # calls -----------------------------------------------------------------------------------------------------

    def submit(self, tasks: Iterable[Task]) -> None:
        """Send calls, or queue them until a worker has room. The caller is `undisturbed`.

        Raises:
            PoolClosedError: the pool is closed.
            PoolError: the pool has no nodes left, or its ranks cannot be restarted at present.
        """
        touched: dict[int, WorkerClient] = {}
        failed: Failed = []
        with self._lock.plain:
            if (refusal := self._closed or self._suspended) is not None:
                raise refusal
            if not self._schedule.has_workers:
                raise self._schedule.refusal()
            for task in tasks:
                if task.pin is not None and task.pin in self._schedule.absent:
                    failed.append((task, self._schedule.refusal(task)))
                elif (worker := self._schedule.place(task)) is not None:
                    touched[worker.rank] = worker
            if not self._ticking:
                self._ticking = True
                self._clock.after(TICK_S, self._tick)
        _flush(touched.values())
        _settle(failed)

    def cancel(self, task: Task, reason: SkywardError | None = None) -> None:
        """Stop a call, queued or running, with `reason` as its outcome. Do nothing if it has ended."""
        reason = reason or TaskCancelledError(f"{task.function.name}() was cancelled.")
        with self._lock:
            if task.done and task.stream is None:
                return
            task.stopping = task.stopping or reason  # the scheduler skips it if it is queued
            worker = self._schedule.worker_of(task)
            touched = worker is not None and task.id in worker.outstanding
            if worker is not None and touched:
                if worker.take_back(task.id):
                    del worker.outstanding[task.id]
                    self._schedule.refill(worker)
                else:
                    worker.resume(task)  # it needs its slot to close its generator
                    if task.fails_together:
                        worker.post_order(Kind.STACK, task.id)  # the stack at which it was stopped
                    worker.post_order(Kind.CANCEL, task.id)
        if task.stream is None:
            task.resolve(error=reason)
        if worker is not None:
            self._clock.after(GRACE_S, partial(self._end_if_stuck, worker, task.id))
            if touched:
                worker.flush()

    def hurry(self, task: Task) -> None:
        """Let a call start although open streams have all slots, since its caller waits for it now."""
        if task.patient:
            with self._lock:
                self._schedule.hurry(task)
                touched = self._schedule.spread()
            _flush(touched)

    def ask_where(self, tasks: Iterable[Task]) -> None:
        """Ask the workers for the stacks of these calls; each answer is passed to the call's broadcast."""
        touched = []
        with self._lock:
            for task in tasks:
                worker = self._schedule.worker_of(task)
                if worker is not None and task.id in worker.outstanding:
                    worker.post_order(Kind.STACK, task.id)
                    touched.append(worker)
        _flush(touched)

    def close(self, reason: SkywardError) -> None:
        """Accept no more calls, and fail those that have not ended with `reason`."""
        with self._lock:
            self._closed = self._closed or reason
            held = [task for worker in self._schedule.all_workers for task in worker.outstanding.values()]
            left = [*self._schedule.take_queued(), *held]
        self._streams.close()
        _settle([(task, reason) for task in left])

    # messages of workers ---------------------------------------------------------------------------------------

    def on_frames(self, worker: WorkerClient, frames: list[Frame]) -> None:
        """Handle messages of a worker; called by the thread that reads from it, which is `undisturbed`."""
        heard: list[tuple[Task, Frame]] = []
        given_back: list[Task] = []
        with self._lock.plain:
            for frame in frames:
                if frame.kind == Kind.STALE:
                    worker.stale = True  # it will exit; its calls run in the process that replaces it
                task = worker.outstanding.get(frame.id)
                if task is None:
                    continue  # already settled or answered
                if frame.kind == Kind.DROPPED:
                    del worker.outstanding[frame.id]
                    given_back.append(task)
                    continue
                if frame.kind == Kind.STALE:
                    self._clock.after(GRACE_S, partial(self._end_if_stuck, worker, task.id))
                    continue
                if frame.kind in _LAST:
                    self._count_answer(worker.node, task, frame)
                    del worker.outstanding[frame.id]
                    worker.waiting.discard(frame.id)
                    self._limits.pop(frame.id, None)
                    worker.observe(RESULT_HEAD.unpack_from(frame.head)[0])
                    if worker.lines:
                        worker.forget_lines(frame.id)
                elif frame.kind == Kind.ITEM:
                    worker.item_arrived(task)
                elif frame.kind == Kind.STARTED and task.timeout is not None:
                    self._limits[frame.id] = (time.monotonic() + task.timeout, task)
                heard.append((task, frame))
            for task in reversed(given_back):
                self._schedule.requeue(task)
            touched = self._schedule.spread() if given_back else ()  # to idle workers first, not back to this one
            self._schedule.refill(worker)
        _flush((worker, *touched))
        for task, frame in heard:
            self._answer(worker, task, frame)

    def _answer(self, worker: WorkerClient, task: Task, frame: Frame) -> None:
        broadcast = task.broadcast
        match frame.kind:
            case Kind.RESULT:
                task.resolve(frame)
            case Kind.STREAM:
                stop = partial(self.cancel, task) if broadcast is None else partial(broadcast.stop, task)
                linger_s = DROPPED_S if task.fails_together else 0.0
                task.resolve(stream=self._streams.open(partial(self._credit, worker, task), stop, linger_s))
            case Kind.STACKS if broadcast is not None:
                broadcast.stack_arrived(task, frame)
            case Kind.STACKS:
                task.sample = decode(frame.head)
            case Kind.CHECKPOINT:
                self._checkpoint(task, worker.connection, frame)
            case Kind.GATHER if broadcast is not None:
                broadcast.gather.give(worker.rank, worker.connection, frame)
            case Kind.GATHER:
                why = f"{task.function.name}() runs on one rank only; call it with @ to run it on all."
                refuse(worker.connection, frame, why)
            case Kind.ITEM | Kind.END if task.stream is not None:
                task.stream_item(frame)
            case Kind.ERROR if task.stream is not None:
                task.stream_item(task.stopping or frame)
            case Kind.ERROR:
                task.resolve(frame, error=task.stopping)

    def _credit(self, worker: WorkerClient, task: Task, items: int) -> None:
        """Allow a stream to send this many more items; called by its reader."""
        with self._lock:
            if task.id in worker.outstanding:
                worker.credit(task, items)
        worker.flush()

    def _end_if_stuck(self, worker: WorkerClient, call: int, waited: bool = False) -> None:
        with self._lock:
            task = worker.outstanding.get(call) if self._closed is None and worker.alive else None
            waits = task is not None and task not in worker.running  # a stream, for the slot in which it is closed
        if waits or (task is not None and waited):
            self._clock.after(GRACE_S, partial(self._end_if_stuck, worker, call, waits))
        elif task is not None:
            worker.end(f"{task.function.name}() ignored a stop request for {GRACE_S:g} s")

    def _count_answer(self, node: int, task: Task, frame: Frame) -> None:
        """Count a node's final message of a call, or of the calls of a batch; called under the lock."""
        answered = self._answered[node]
        answered[0] += COUNT.unpack(frame.buffers[0])[0] if task.is_batch and frame.kind == Kind.RESULT else 1
        answered[1] += frame.kind == Kind.ERROR

    # the calls that workers hold -------------------------------------------------------------------------------

    @property
    def slots(self) -> int:
        """Number of calls that the connected workers can run at once."""
        with self._lock:
            return sum(worker.slots for worker in self._schedule.workers.values())

    def held(self, worker: WorkerClient) -> list[Task]:
        """Return the unanswered calls of a worker."""
        with self._lock:
            return list(worker.outstanding.values())

    def running(self, worker: WorkerClient) -> list[Task]:
        """Return the calls that have a slot of a worker; streams that wait for their reader have none."""
        with self._lock:
            return worker.running

    def counts(self, node: int | None = None) -> dict[str, int]:
        """Return the numbers of calls that run, that wait, that were answered, and that failed.

        Those of a node include the answers of its predecessors at that index, but no calls that wait for any node.
        """
        with self._lock:
            workers = [each for each in self._schedule.all_workers if node is None or each.node == node]
            held = sum(len(worker.outstanding) for worker in workers)
            running = sum(min(worker.load, worker.slots) + len(worker.waiting) for worker in workers)
            queued = held - running + (self._schedule.queued if node is None else 0)
            answered = list(self._answered.values()) if node is None else [self._answered[node]]
            done, failed = (sum(each[which] for each in answered) for which in (0, 1))
            return {"running": running, "queued": queued, "done": done, "failed": failed}

    def has_begun(self, task: Task) -> bool:
        """Return whether a call runs now, or its stream waits for its reader."""
        worker = self._schedule.worker_of(task)
        return worker is not None and (task in self.running(worker) or task.id in worker.waiting)

    def has_hung_up(self, task: Task) -> bool:
        """Return whether the worker of a call has closed its connection for a reason not known yet."""
        worker = self._schedule.worker_of(task)
        return worker is not None and worker.hung_up

    # periodic work, while there are calls ----------------------------------------------------------------------

    def _tick(self) -> None:
        """Stop calls beyond their limit, and move stale calls to idle workers."""
        now = time.monotonic()
        with self._lock:
            overdue = [task for deadline, task in self._limits.values() if deadline <= now]
            for task in overdue:
                del self._limits[task.id]
            touched = self._schedule.rebalance(now)
            self._ticking = self._schedule.has_work
            if self._ticking:
                self._clock.after(TICK_S, self._tick)
        _flush(touched)
        for task in overdue:
            self.cancel(task, _timeout(task))


def _flush(workers: Iterable[WorkerClient]) -> None:
    for worker in workers:
        worker.flush()


def _settle(failed: Failed) -> None:
    for task, error in failed:
        task.settle(error)


def _timeout(task: Task) -> TaskTimeoutError:
    return TaskTimeoutError(
        f"{task.function.name}() ran longer than its limit of {task.timeout:g} s on {task.place} and was stopped."
    )
