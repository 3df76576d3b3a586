"""A call on all ranks of a group: the first failure stops it on all of them, and is reported as one error.

A thread supervises each such call. It receives outcomes from the threads that read from workers, asks running ranks for
their stacks, determines the root cause, and requests the stop and restart of the ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from skyward._pool.collective import diagnosis
from skyward._pool.collective.diagnosis import PROBE_S, STUCK_S, Blame, Failure, HangDetector
from skyward._pool.collective.worker_group import WorkerGroup
from skyward._pool.dispatcher import Dispatcher
from skyward._pool.services import GatherCoordinator
from skyward._pool.signals import listen, undisturbed, uninterrupted
from skyward._pool.task import Broadcast, Task
from skyward.errors import SkywardError, TaskCancelledError, TaskTimeoutError
from skyward.system import threading, time
from skyward.wire.frames import Frame
from skyward.wire.messages import Kind, decode

ANSWER_S = 0.7  # how long a rank may take to report its stack
_LOOK_S = 0.05
_ABORTED_S = 10.0  # how long to wait for the end of an aborted call


class CollectiveCall(Broadcast):
    """A call on all ranks whose parts fail together.

    Args:
        tasks: its parts, one for each rank, not yet submitted.
        names: names of the ranks in messages.
        gather: coordinates `gather` between its ranks.
        dispatcher, group: those of the pool.

    Attributes:
        error: the error that it failed with; None if it did not.
    """

    fails_together = True

    def __init__(
        self,
        tasks: Sequence[Task],
        names: Mapping[int, str],
        gather: GatherCoordinator,
        dispatcher: Dispatcher,
        group: WorkerGroup,
    ) -> None:
        super().__init__(tasks, gather, dispatcher.cancel)
        self._tasks = {task.pin: task for task in tasks if task.pin is not None}
        self._names, self._dispatcher, self._group = names, dispatcher, group
        self._function = tasks[0].function.name
        self._changed = threading.Condition()
        self._answered: set[int] = set()  # ranks whose result or stream has arrived
        self._returned: dict[int, float] = {}  # time at which each rank returned
        self._failures: list[Failure] = []
        self._samples: dict[int, dict[str, Any]] = {}  # reported stacks, by rank
        self._hang_detector = HangDetector()
        self._stuck: tuple[int, ...] = ()
        self._abort_reason = ""
        self._begun = False  # whether a rank has begun it, so that others may wait for that rank
        self._over = False
        self._gate = threading.Event()
        self._thread = threading.get_ident()
        self.error: BaseException | None = None
        for task in tasks:
            task.retries = 0  # a rank is never retried alone
            task.on_done(self._part_ended)

    def run(self) -> BaseException | None:
        """Send the call when it may start, wait for its end, and return its error, or None.

        It ends when every rank has returned a result or a stream, or when the call has failed; Ctrl-C stops it.

        Raises:
            PoolError: the pool is closed.
        """
        try:
            while not self.start():
                self._group.wait_turn()
            listen(self._gate.wait)
        except BaseException:
            with uninterrupted:
                self.stop()
            raise
        return self.error

    def start(self) -> bool:
        """Send the call to all ranks and start its supervision; return False if it must wait for another call."""
        with undisturbed:
            if not self._group.register(self.abort, self._read_here):
                return False
            try:
                self._dispatcher.submit(self._tasks.values())
            except SkywardError:
                self._group.unregister(self.abort)
                raise
            threading.Thread(target=self._attend, name="skyward-collective", daemon=True).start()
        return True

    def stop(self, _task: Task | None = None) -> None:
        """Stop the call on every rank that has not returned; the caller no longer waits for its outcome."""
        begun = any(map(self._dispatcher.has_begun, self._tasks.values()))
        with self._changed:
            left = self._left()
            if self._over or not left:
                return
            self._begun |= begun
        if self._begun:
            self._group.hold()  # immediately, as the caller's next call must not use these processes
        for rank in left:
            task, reason = self._tasks[rank], TaskCancelledError(f"{self._function}() was cancelled.")
            self._dispatcher.cancel(task, reason)
            if task.stream is not None:
                self._fail(rank, task, reason)

    def _read_here(self) -> str:
        """Return the function's name if the calling thread has streams to read that have not ended or failed."""
        opened = self._thread == threading.get_ident() and self._gate.is_set()
        return self._function if opened and not self._failures else ""

    # messages of ranks, in the threads that read from workers --------------------------------------------------

    def _part_ended(self, task: Task) -> None:
        """Record the outcome of a part: a result, a stream or an error."""
        assert task.pin is not None
        if task.stream is not None:
            with self._changed:
                self._answer(task.pin)
        elif task.failed:
            self._fail(task.pin, task, task.error or task.frame)
        else:
            self._part_returned(task.pin)

    def holds_back(self, task: Task, item: Frame | BaseException) -> bool:
        """Inspect an item of a part's stream; withhold errors, since another rank may be the cause."""
        if isinstance(item, BaseException) or item.kind == Kind.ERROR:
            self._fail(task.rank, task, item)
            return True
        if item.kind == Kind.END:
            self._part_returned(task.rank)
        return False

    def stack_arrived(self, task: Task, frame: Frame) -> None:
        """Record a worker's answer about the call's stack."""
        sample = decode(frame.head)
        with self._changed:
            if sample or task.rank not in self._samples:  # a second answer may be empty
                self._samples[task.rank] = sample
            self._hang_detector.note(task.rank, time.monotonic(), sample)
            self._changed.notify_all()

    def abort(self, reason: str) -> None:
        """Fail because of a restart of the ranks, unless no rank has begun the call; return when that is done."""
        if not self._begun and not any(map(self._dispatcher.has_begun, self._tasks.values())):
            return
        with self._changed:
            self._abort_reason = reason
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._over, _ABORTED_S)

    def _answer(self, rank: int) -> None:
        self._begun = True
        self._answered.add(rank)
        if len(self._answered) == len(self._tasks):
            self._gate.set()

    def _part_returned(self, rank: int) -> None:
        with self._changed:
            self._returned[rank] = time.monotonic()
            self._answer(rank)
            self._changed.notify_all()

    def _fail(self, rank: int, task: Task, outcome: Frame | BaseException | None) -> None:
        assert outcome is not None
        with self._changed:
            if self.error is None:
                failure = Failure.of(rank, time.monotonic(), task, outcome)
                self._begun |= failure.blame != Blame.STOPPED or isinstance(outcome, TaskTimeoutError)
                self._failures.append(failure)
                self._changed.notify_all()
            elif task.stream is not None:
                task.stream.put(self.error)

    # in its own thread -----------------------------------------------------------------------------------------

    def _attend(self) -> None:
        error: BaseException | None = None
        try:
            if not self._returns():
                error = self._diagnose()
        except Exception as bug:  # must not leave the caller waiting
            error = bug
        self._finish(error)

    def _returns(self) -> bool:
        """Wait and return True when all ranks have returned, or False when the call fails, hangs or is aborted."""
        next_look = time.monotonic() + PROBE_S
        while not self._stuck:
            with self._changed:
                if self._failures or self._abort_reason or not self._left():
                    return not (self._failures or self._abort_reason)
                looking = bool(self._returned)
                self._changed.wait(max(0.0, next_look - time.monotonic()) if looking else None)
            if looking and time.monotonic() >= next_look:
                self._look()
                next_look = time.monotonic() + PROBE_S
        return False

    def _left(self) -> set[int]:
        """Return the ranks that have not returned."""
        return self._tasks.keys() - self._returned.keys()

    def _look(self) -> None:
        """Check whether the remaining ranks wait for one that has returned."""
        self._dispatcher.ask_where([self._tasks[rank] for rank in self._left()])
        with self._changed:
            self._changed.wait_for(lambda: self._failures or self._left() <= self._samples.keys(), ANSWER_S)
            left = self._left()
            still_s = self._hang_detector.lasted_s(left, time.monotonic())
            if not self._failures:
                self._stuck = tuple(sorted(left)) if self._returned and still_s >= STUCK_S else ()
            if not self._stuck:
                self._samples.clear()

    def _diagnose(self) -> BaseException:
        """Determine why the call failed and what its ranks execute, before they are stopped."""
        began = time.monotonic()
        if not self._stuck:
            self._dispatcher.ask_where(self._running())
        with self._changed:
            self._await_root_cause()
            self._changed.wait_for(lambda: not self._without_stack(), max(0.0, began + ANSWER_S - time.monotonic()))
            failures = list(self._failures)
        found = diagnosis.FailureReport(
            self._function, self._names, failures, tuple(self._returned), dict(self._samples), self._dumps()
        )
        if self._stuck:
            return diagnosis.of_hang(found, self._stuck)
        if failures:
            return diagnosis.of_failures(found)
        return diagnosis.of_abort(found, self._abort_reason)

    def _await_root_cause(self) -> None:
        """Wait for the failure that is the root cause, since a peer may have reported its consequence earlier."""
        while self._failures:
            unexplained = any(map(self._dispatcher.has_hung_up, self._running()))
            end = self._failures[0].at + diagnosis.patience_s(self._failures, unexplained=unexplained)
            left_s = end - time.monotonic()
            if left_s <= 0:
                return
            self._changed.wait(min(left_s, _LOOK_S) if unexplained else left_s)

    def _running(self) -> list[Task]:
        """Return the parts that may still run, including those that were asked to stop."""
        over = {failure.rank for failure in self._failures if failure.blame != Blame.STOPPED} | self._returned.keys()
        return [task for rank, task in self._tasks.items() if rank not in over]

    def _without_stack(self) -> list[Task]:
        """Return the running parts that have not answered about their stack, or without one as they were ending."""
        asked = [task for task in self._running() if not self._samples.get(task.rank)]
        return [task for task in asked if self._dispatcher.has_begun(task)]

    def _dumps(self) -> dict[int, str]:
        """Return, by rank, the dumped stacks of ranks that do not answer because their code holds the GIL."""
        silent = [task.rank for task in self._without_stack() if task.rank not in self._samples]
        return diagnosis.collected({rank: self._group.dump(rank) for rank in silent})

    def _finish(self, error: BaseException | None) -> None:
        """Release the caller; if the call failed, stop it everywhere and restart the ranks."""
        with self._changed:
            self.error = error
            broken = error is not None and (self._begun or bool(self._stuck or self._abort_reason))
        if broken:
            self._group.hold()
        if error is not None:
            for task in self._tasks.values():
                if not task.done or task.stream is not None:
                    self._dispatcher.cancel(task, TaskCancelledError(f"{self._function}() failed on another rank."))
                if task.stream is not None:
                    task.stream.put(error)
        if broken:
            self._group.restart(f"{self._function}() had failed on some of them")
        with self._changed:
            self._over = True
            self._changed.notify_all()
        self._group.unregister(self.abort)  # last, so that the next call does not start in processes about to end
        self._gate.set()
