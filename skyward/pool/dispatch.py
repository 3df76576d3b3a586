"""Who runs what: calls to workers, answers to callers, and what becomes of calls whose worker is lost.

One lock guards the state; nothing is sent, unpickled or called back under it, and nothing here blocks: messages are
queued at a worker's connection. A call that has begun on a lost worker, or may have, is lost with it, unless its
function allows retries; one that had not begun runs elsewhere.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from skyward.errors import PoolError, SkywardError, TaskCancelledError, TaskTimeoutError
from skyward.pool.clock import Clock
from skyward.pool.gathering import refuse
from skyward.pool.held import StreamWatch
from skyward.pool.losses import Fate, fates
from skyward.pool.stream import Streams
from skyward.pool.task import Task
from skyward.pool.worker import WorkerLink
from skyward.system import threading, time
from skyward.wire.frames import Frame
from skyward.wire.messages import RESULT_HEAD, Kind

GRACE_S = 5.0  # between the interrupt of a call and the end of the worker that does not heed it
TICK_S = 0.05
STALE_S = 0.02  # a call that waits on a busy worker for longer is given to an idle one
Lost = Callable[[Task, Fate], SkywardError]  # the error of a call that is lost with its worker
Tell = Callable[[str], None]
_LAST = frozenset((Kind.RESULT, Kind.ERROR, Kind.END))


class Dispatcher:
    """Sends calls to the least loaded worker and brings their outcomes back."""

    def __init__(self, clock: Clock, kill: Callable[[WorkerLink], None], tell: Tell) -> None:
        self._clock, self._kill, self._tell = clock, kill, tell
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._workers: dict[int, WorkerLink] = {}  # by rank
        self._leaving: list[WorkerLink] = []  # get no new calls, and may finish those they run
        self._queue: deque[Task] = deque()
        self._pinned: dict[int, list[Task]] = {}  # calls for a worker that is being started again
        self._resting = False  # whether calls wait here whoever has room, because the ranks are started afresh
        self._expected = 0  # workers that are here or will come, or come back
        self._absent: dict[int, str] = {}  # ranks whose worker could not be replaced so far, and why
        self._suspended: SkywardError | None = None  # why no call can run for the time being
        self._limits: dict[int, tuple[float, Task]] = {}  # running calls that have a time limit
        self._ticking = False
        self._streams = Streams(clock, self.cancel)
        self._held = StreamWatch()
        self._closed: SkywardError | None = None  # why no more calls are taken

    def next_id(self) -> int:
        """An id for a call, unique in this pool."""
        return next(self._ids)

    # workers ---------------------------------------------------------------------------------------------------

    def expect(self, workers: int) -> None:
        """Say how many workers there will be, before the first one is added."""
        self._expected = workers

    def add(self, worker: WorkerLink) -> None:
        """Let a connected worker take calls; does nothing if it has been lost meanwhile."""
        with self._lock:
            self._admit((worker,))
        _flush((worker,))

    def rest(self) -> None:
        """Start no more calls, and take back those that have not started; `resume` ends it."""
        with self._lock:
            self._resting = True
            touched = tuple(self._workers.values())
            for worker in touched:
                self._take_back(worker, list(worker.outstanding.values())[worker.slots :])
        _flush(touched)

    def resume(self, workers: Sequence[WorkerLink]) -> None:
        """Let these workers take the place of all before them, and the calls that wait begin."""
        with self._lock:
            self._resting, self._suspended = False, None
            self._admit(workers)
        _flush(workers)

    def suspend(self, reason: SkywardError | None) -> None:
        """Let what waits, and every call from now on, fail with `reason`; None ends that."""
        with self._lock:
            self._suspended = reason
            waiting = self._take_all_waiting() if reason is not None else []
        for task in waiting:
            task.settle(reason or PoolError("The pool is suspended."))

    def end(self, worker: WorkerLink, why: str) -> None:
        """End a worker, whatever it does; the agent starts it again. `why` completes "the pool ended it, because"."""
        with self._lock:
            worker.ordered_to_end = worker.ordered_to_end or why
        self._kill(worker)

    def drain(self, workers: Sequence[WorkerLink]) -> None:
        """Give these workers no more calls, and take back those that have not started; others will take their place."""
        with self._lock:
            for worker in workers:
                if self._workers.get(worker.rank) is worker:
                    del self._workers[worker.rank]
                    self._leaving.append(worker)
                worker.leaving = True
                self._take_back(worker, list(worker.outstanding.values())[worker.slots :])
            touched = self._spread()
        _flush((*workers, *touched))

    def lose(self, worker: WorkerLink, lost: Lost, *, is_known: bool) -> None:
        """Settle the calls of a worker that is gone; what waits for its rank waits on. May be told twice.

        Args:
            worker: everything that has arrived of it has been handled.
            lost: makes the error of a call that is lost with it.
            is_known: whether its process has ended and everything it had sent has arrived (see `losses.fates`).
        """
        with self._lock:
            if self._workers.get(worker.rank) is worker:
                del self._workers[worker.rank]
            if worker in self._leaving:
                self._leaving.remove(worker)
            worker.alive = False
            orphans = list(fates(worker, is_known=is_known))
            worker.outstanding.clear()
            for task, _ in orphans:
                self._limits.pop(task.id, None)  # of the run that was lost, not of the next
            failed = self._resettle(orphans, lost)
            touched = self._spread()
        _flush(touched)
        for task, error in failed:
            task.settle(error)

    def _resettle(self, orphans: list[tuple[Task, Fate]], lost: Lost) -> list[tuple[Task, SkywardError]]:
        """Sort the calls of a lost worker into those that failed (returned) and those that run again."""
        failed: list[tuple[Task, SkywardError]] = []
        again: list[Task] = []
        for task, fate in orphans:
            if task.stopping is not None:
                failed.append((task, task.stopping))
            elif task.stream is not None or task.pin in self._absent:
                failed.append((task, lost(task, fate)))
            elif fate is Fate.WAITED:
                again.append(task)
            elif task.retries > 0:
                task.retries -= 1
                again.append(task)
            else:
                failed.append((task, lost(task, fate)))
        for task in reversed(again):
            self._requeue(task)
        return failed + self._hopeless()

    def give_up(self, ranks: Iterable[int], why: str) -> None:
        """These ranks have no worker and may not get one soon: calls that need them fail, until `restore`."""
        with self._lock:
            new = [rank for rank in ranks if rank not in self._absent]
            self._absent.update(dict.fromkeys(new, why))
            self._expected -= len(new)
            failed: list[tuple[Task, SkywardError]] = []
            for rank in new:
                failed += [(task, self._refusal(rank)) for task in self._pinned.pop(rank, ())]
            failed += self._hopeless()
        for task, error in failed:
            task.settle(error)

    def restore(self, ranks: Iterable[int]) -> None:
        """These ranks are about to have a worker again."""
        with self._lock:
            self._expected += sum(self._absent.pop(rank, None) is not None for rank in ranks)

    def _hopeless(self) -> list[tuple[Task, SkywardError]]:
        """What waits here although no worker is left to come, each with the reason; under the lock."""
        if self._expected > 0:
            return []
        failed = [(task, self._none_left()) for task in self._queue]
        self._queue.clear()
        return failed

    def _refusal(self, rank: int) -> SkywardError:
        return PoolError(f"A call for every node cannot be run: {self._absent[rank]}")

    def _none_left(self) -> SkywardError:
        return PoolError(f"No node of this pool takes calls now: {next(iter(self._absent.values()), 'none has come')}")

    # calls -----------------------------------------------------------------------------------------------------

    def submit(self, tasks: Iterable[Task]) -> None:
        """Send calls, or queue them until a worker has room.

        Raises:
            PoolClosedError: the pool has ended.
            PoolError: none of its nodes is left, or its ranks cannot be started afresh now.
        """
        touched: dict[int, WorkerLink] = {}
        failed: list[tuple[Task, SkywardError]] = []
        with self._lock:
            if self._closed is not None:
                raise self._closed
            if self._suspended is not None:
                raise self._suspended
            if self._expected <= 0:
                raise self._none_left()
            for task in tasks:
                if task.pin is not None and task.pin in self._absent:
                    failed.append((task, self._refusal(task.pin)))
                    continue
                worker = self._home(task)
                if worker is not None:
                    self._assign(task, worker)
                    touched[worker.rank] = worker
            if not self._ticking:
                self._ticking = True
                self._clock.after(TICK_S, self._tick)
        _flush(touched.values())
        for task, error in failed:
            task.settle(error)

    def cancel(self, task: Task, reason: SkywardError | None = None) -> None:
        """Stop a call wherever it is; its outcome is `reason`. Does nothing if it has ended."""
        reason = reason or TaskCancelledError(f"{task.function.name}() was cancelled.")
        worker = None
        touched: list[WorkerLink] = []
        with self._lock:
            if task.done and task.stream is None:
                return
            task.stopping = task.stopping or reason  # a queued call is skipped when its turn comes
            worker = self._worker_of(task)
            if worker is not None and task.id in worker.outstanding:
                if worker.take_back(task.id):
                    del worker.outstanding[task.id]
                    self._refill(worker)
                else:
                    if task.gang is not None:
                        worker.post_order(Kind.STACK, task.id)  # where it was when it was stopped
                    worker.post_order(Kind.CANCEL, task.id)
                touched.append(worker)
        if task.stream is None:
            task.resolve(error=reason)
        if worker is not None:
            self._clock.after(GRACE_S, partial(self._end_if_stuck, worker, task.id))
        _flush(touched)

    def held(self, worker: WorkerLink) -> list[Task]:
        """The calls that a worker has been sent and has not answered; the first `slots` of them run."""
        with self._lock:
            return list(worker.outstanding.values())

    def has_begun(self, task: Task) -> bool:
        """Whether a call runs now."""
        worker = self._worker_of(task)
        return worker is not None and task in self.held(worker)[: worker.slots]

    def is_leaving(self, task: Task) -> bool:
        """Whether the worker of a call has hung up, and why is not known yet."""
        worker = self._worker_of(task)
        return worker is not None and worker.hung_up

    def _worker_of(self, task: Task) -> WorkerLink | None:
        """The worker that a call was sent to, None while it waits here."""
        if not task.sent_at:
            return None
        leaving = (worker for worker in tuple(self._leaving) if task.id in worker.outstanding)
        return next(leaving, self._workers.get(task.rank))

    def ask_where(self, tasks: Iterable[Task]) -> None:
        """Ask the workers where these calls are; each answer goes to the call's gang."""
        touched = []
        with self._lock:
            for task in tasks:
                worker = self._worker_of(task)
                if worker is not None and task.id in worker.outstanding:
                    worker.post_order(Kind.STACK, task.id)
                    touched.append(worker)
        _flush(touched)

    def close(self, reason: SkywardError) -> None:
        """Take no more calls; those that have not ended fail with `reason`."""
        with self._lock:
            self._closed = self._closed or reason
            workers = (*self._workers.values(), *self._leaving)
            left = [*self._take_all_waiting(), *(t for w in workers for t in w.outstanding.values())]
        self._streams.close()
        for task in left:
            task.settle(reason)

    def _take_all_waiting(self) -> list[Task]:
        """The calls that wait here, which wait no more; under the lock."""
        waiting = [*self._queue, *(task for tasks in self._pinned.values() for task in tasks)]
        self._queue.clear()
        self._pinned.clear()
        return waiting

    # what workers say ------------------------------------------------------------------------------------------

    def on_frames(self, worker: WorkerLink, frames: list[Frame]) -> None:
        """Handle what a worker sent; called by the thread that reads from it."""
        heard: list[tuple[Task, Frame]] = []
        given_back: list[Task] = []
        with self._lock:
            for frame in frames:
                task = worker.outstanding.get(frame.id)
                if task is None:
                    continue  # lost and settled before
                if frame.kind == Kind.DROPPED:
                    del worker.outstanding[frame.id]
                    given_back.append(task)
                    continue
                if frame.kind == Kind.STALE:
                    worker.stale = True  # it is leaving; what it holds runs in the process after it
                    self._clock.after(GRACE_S, partial(self._end_if_stuck, worker, task.id))
                    continue
                if frame.kind in _LAST:
                    del worker.outstanding[frame.id]
                    self._limits.pop(frame.id, None)
                    worker.observe(RESULT_HEAD.unpack_from(frame.head)[0])
                elif frame.kind == Kind.STARTED and task.timeout is not None:
                    self._limits[frame.id] = (time.monotonic() + task.timeout, task)
                heard.append((task, frame))
            for task in reversed(given_back):
                self._requeue(task)
            touched = self._spread() if given_back else ()  # to the idle first, not back to where it waited
            self._refill(worker)
        _flush((worker, *touched))
        for task, frame in heard:
            self._answer(worker, task, frame)

    def _answer(self, worker: WorkerLink, task: Task, frame: Frame) -> None:
        match frame.kind:
            case Kind.RESULT:
                task.resolve(frame)
            case Kind.STREAM:
                task.resolve(stream=self._streams.open(worker, task))
            case Kind.STACKS:
                if task.gang is not None:
                    task.gang.hear_where(task, frame)
            case Kind.GATHER if task.gathering is None:
                refuse(worker, frame, f"{task.function.name}() runs on one rank only; call it with @ to run it on all.")
            case Kind.GATHER:
                task.gathering.give(worker, frame)
            case Kind.ITEM | Kind.END:
                if task.stream is not None:
                    task.stream.put(frame)
            case Kind.ERROR if task.stream is not None:
                task.stream.put(task.stopping or frame)
            case Kind.ERROR:
                task.resolve(frame, error=task.stopping)

    def _end_if_stuck(self, worker: WorkerLink, call: int) -> None:
        with self._lock:
            task = worker.outstanding.get(call) if self._closed is None and worker.alive else None
            if task is not None:
                why = f"{task.function.name}() was to be stopped there and did not heed that for {GRACE_S:g} s"
                worker.ordered_to_end = worker.ordered_to_end or why
        if task is not None:
            self._kill(worker)

    # at regular times, while there is work ----------------------------------------------------------------------

    def _tick(self) -> None:
        """Stop calls beyond their limit, give stale calls to idle workers, say when streams hold up everything else."""
        now = time.monotonic()
        with self._lock:
            overdue = [task for deadline, task in self._limits.values() if deadline <= now]
            for task in overdue:
                del self._limits[task.id]
            touched = self._recall(now)
            first = self._queue[0] if self._queue else None
            notice = self._held.look(now, first, self._workers.values())
            self._ticking = bool(
                self._queue or self._pinned or any(w.outstanding for w in (*self._workers.values(), *self._leaving))
            )
            if self._ticking:
                self._clock.after(TICK_S, self._tick)
        _flush(touched)
        for task in overdue:
            self.cancel(task, _timeout(task))
        if notice:
            self._tell(notice)

    def _recall(self, now: float) -> list[WorkerLink]:
        """Ask busy workers for calls they have not started, when others have nothing to do."""
        room = sum(w.window for w in self._workers.values() if not w.outstanding)
        if not room or self._queue:
            return []
        touched = []
        for worker in self._workers.values():
            waiting = [t for t in list(worker.outstanding.values())[worker.slots :] if t.pin is None]
            stale = [t for t in waiting if now - t.sent_at > STALE_S][-room:] if room else []
            if stale:
                self._take_back(worker, stale)
                touched.append(worker)
                room -= len(stale)
        return touched + self._spread()

    def _take_back(self, worker: WorkerLink, tasks: Sequence[Task]) -> None:
        """Take calls back that have not begun: at once those that have not been sent, others when the worker agrees."""
        for task in reversed(tasks):
            if worker.take_back(task.id):
                del worker.outstanding[task.id]
                self._requeue(task)
            else:
                worker.post_order(Kind.RECALL, task.id)

    # scheduling; all of it under the lock ----------------------------------------------------------------------

    def _admit(self, workers: Sequence[WorkerLink]) -> None:
        """Give workers that are here what waits for them."""
        here = [w for w in workers if w.alive and not w.leaving and w.rank not in self._absent]
        self._workers.update((worker.rank, worker) for worker in here)
        for worker in () if self._resting else here:
            self._send_pinned(worker)
            self._refill(worker)

    def _send_pinned(self, worker: WorkerLink) -> None:
        """Give a worker what waits for its rank."""
        for task in self._pinned.pop(worker.rank, ()):
            if task.stopping is None:
                self._assign(task, worker)

    def _home(self, task: Task) -> WorkerLink | None:
        """The worker a new call goes to, None when it was queued."""
        if task.pin is not None:
            worker = None if self._resting else self._workers.get(task.pin)
            if worker is None:
                self._pinned.setdefault(task.pin, []).append(task)
            return worker
        worker = None if self._queue else self._least_loaded()
        if worker is None:
            self._queue.append(task)
        return worker

    def _least_loaded(self) -> WorkerLink | None:
        """The worker with most of its window free, None when all are full."""
        best, best_load = None, 1.0
        if self._resting:
            return None
        for worker in self._workers.values():
            load = len(worker.outstanding) / worker.window
            if load < best_load:
                best, best_load = worker, load
        return best

    def _next(self) -> Task | None:
        """The oldest queued call that nobody has cancelled."""
        while self._queue:
            task = self._queue.popleft()
            if task.stopping is None:
                return task
        return None

    def _assign(self, task: Task, worker: WorkerLink) -> None:
        task.place, task.rank = str(worker), worker.rank
        task.sent_at = time.monotonic()
        worker.outstanding[task.id] = task
        worker.post(task)

    def _refill(self, worker: WorkerLink) -> None:
        room = worker.window - len(worker.outstanding) if worker.alive and not worker.leaving else 0
        while room > 0 and not self._resting and (task := self._next()) is not None:
            self._assign(task, worker)
            room -= 1

    def _spread(self) -> list[WorkerLink]:
        """Give queued calls to workers with room, the least loaded first, and those of a rank to its worker."""
        touched: dict[int, WorkerLink] = {}
        for rank in () if self._resting else self._pinned.keys() & self._workers.keys():
            touched[rank] = self._workers[rank]  # it came while the one before still held them
            self._send_pinned(touched[rank])
        while self._queue and (worker := self._least_loaded()) is not None and (task := self._next()) is not None:
            self._assign(task, worker)
            touched[worker.rank] = worker
        return list(touched.values())

    def _requeue(self, task: Task) -> None:
        """Put a call that did not run back, before all that came after it."""
        task.sent_at = 0.0
        if task.stopping is not None:
            return
        if task.pin is not None:
            self._pinned.setdefault(task.pin, []).insert(0, task)
        else:
            self._queue.appendleft(task)


def _flush(workers: Iterable[WorkerLink]) -> None:
    for worker in workers:
        worker.flush()


def _timeout(task: Task) -> TaskTimeoutError:
    return TaskTimeoutError(
        f"{task.function.name}() ran longer than its limit of {task.timeout:g} s on {task.place} and was stopped."
    )
