"""Calls of an open pool, between the caller and the dispatcher: pickling, sending, waiting, unpickling.

Callers wait with a `Latch` in their own thread, or with a `CallFuture` for calls in the background.
"""

from __future__ import annotations

import inspect
import itertools
import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, NoReturn, TypeVar, cast

from skyward._pool.background import Callbacks, Timers
from skyward._pool.code.copies import Copies
from skyward._pool.code.functions import Function, Functions
from skyward._pool.code.shared_arguments import Packed
from skyward._pool.collective.call import CollectiveCall
from skyward._pool.collective.worker_group import WorkerGroup
from skyward._pool.console import Printer
from skyward._pool.dispatcher import Dispatcher
from skyward._pool.maps import BatchedMap, JournaledMap, Sending, check_map, pays
from skyward._pool.progress import Counting
from skyward._pool.services import GatherCoordinator
from skyward._pool.signals import listen, undisturbed, uninterrupted
from skyward._pool.task import Broadcast, Task, item_note
from skyward.errors import PoolClosedError, PoolError, TaskCancelledError, WorkerLostError, shortened
from skyward.model.call import Call
from skyward.system import Empty, SimpleQueue, process_end, threading
from skyward.system.futures import Future, InvalidStateError
from skyward.system.futures import TimeoutError as FutureTimeout
from skyward.wire import payload
from skyward.wire.messages import RESULT_HEAD

R = TypeVar("R")
T = TypeVar("T")


class PlainCall(NamedTuple):
    """A call made by the pool itself, of a function that may not be a compute function."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    timeout: float | None
    retries: int


@dataclass(slots=True, kw_only=True)
class CallRunner:
    """Runs calls. Its methods implement those of `ComputePool` and are documented there.

    Attributes:
        ranks: the names of the pool's ranks, by number.
        default_timeout_s: time limit of calls that set none; None for no limit.
    """

    ranks: Mapping[int, str]
    default_timeout_s: float | None
    functions: Functions
    dispatcher: Dispatcher
    group: WorkerGroup
    clock: Timers
    callbacks: Callbacks
    printer: Printer
    tell: Callable[[str], object]
    _copies: Copies = field(default_factory=Copies)
    _ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def run(self, call: Call[R]) -> R:
        result: R = self._run_all(self._tasks([call]))[0]
        return result

    def broadcast(self, call: Call[R]) -> list[R]:
        (first,) = self._tasks([call])
        if len(self.ranks) > 1 and (self.group.collective or first.function.collective):
            return self._run_together(first)
        tasks = self._parts(first)
        Broadcast(tasks, self._gather(), self.dispatcher.cancel)
        return self._run_all(tasks)

    def run_async(self, call: Call[R]) -> Future[R]:
        (task,) = self._tasks([call], copies=self._copies)
        return self._in_background(task)

    def run_parallel(self, calls: Iterable[Call[Any]], *, return_exceptions: bool) -> tuple[Any, ...]:
        return tuple(self._run_all(self._tasks(calls), counted=True, return_exceptions=return_exceptions))

    def run_stream(self, calls: Iterable[Call[Any]], *, ordered: bool, return_exceptions: bool) -> Iterator[Any]:
        tasks, arrived = self._tasks(calls, copies=self._copies), SimpleQueue[Task]()
        self._submit(tasks, arrived)
        return self._yield_results(tasks, arrived, ordered, Task.outcome if return_exceptions else Task.value)

    def map(
        self,
        fn: Callable[..., Any],
        *iterables: Iterable[Any],
        journal: JournaledMap | None = None,
        return_exceptions: bool = False,
    ) -> list[Any]:
        __tracebackhide__ = True  # IPython and pytest leave such frames out of tracebacks
        check_map(fn, iterables)
        plain: Callable[..., Any] = getattr(fn, "fn", fn)
        timeout, retries = getattr(fn, "timeout", None), getattr(fn, "retries", 0)
        several = len(iterables) > 1  # an item is then a tuple of arguments

        known = list(self._copies.of_items(*iterables))
        function_of = self.functions.once()

        def single(index: int) -> Task:
            item = known[index]
            try:
                call = PlainCall(plain, item if several else (item,), {}, timeout, retries)
                made = self._task(call, function_of(plain))
            except Exception as error:
                payload.noted(error, item_note(index, item))
                raise
            made.item = index, item
            return made

        sending = Sending(
            *(single, partial(self._batch, plain, function_of), self._submit, self._cancel),
            *(self.printer.drain, self.printer.is_quiet),
        )
        if journal is not None:
            calls = known if several else [(item,) for item in known]
            return journal.run(plain, calls, sending, return_exceptions=return_exceptions)
        # The calls of a batch have one argument, no time limit and no retries, and end at the first error.
        limited = timeout is not None or self.default_timeout_s is not None
        alone = several or limited or retries or return_exceptions
        if not alone and pays(plain, len(known), slots := self.dispatcher.slots):
            return BatchedMap(known, slots, sending).run()
        tasks = list(map(single, range(len(known))))
        return self._run_all(tasks, counted=True, return_exceptions=return_exceptions)

    def _batch(
        self, fn: Callable[..., Any], function_of: Callable[[Callable[..., Any]], Function], items: bytes
    ) -> Task:
        """Return one task that calls the function for each item of this payload."""
        made = Task(next(self._ids), function_of(fn), items, (), None, 0)
        made.is_batch = True
        return made

    def start_packed(self, packed: Packed) -> Future[Any]:
        """Run a call with shared arguments in the background."""
        task = Task(next(self._ids), packed.function, packed.data, packed.buffers, self.default_timeout_s, 0)
        task.shared = packed.values
        return self._in_background(task)

    def _tasks(self, calls: Iterable[Call[Any]], copies: Copies | None = None) -> list[Task]:
        """Return the tasks of one operator's calls.

        Args:
            calls: the calls.
            copies: copies what the caller may change before they are sent; None if the caller waits for all of them.
        """
        function_of = self.functions.once()
        tasks = []
        for call in calls:
            task = self._task(call, function_of(call.fn), copies)
            task.patient = copies is not None and inspect.isgeneratorfunction(call.fn)
            tasks.append(task)
        return tasks

    def _task(self, call: Call[Any], function: Function, copies: Copies | None = None) -> Task:
        data, buffers = payload.dumps_arguments(call.args, call.kwargs, of=function.name)
        if buffers and copies is not None:
            buffers = copies.of_buffers(buffers, call.args, call.kwargs)
        timeout = call.timeout if call.timeout is not None else self.default_timeout_s
        return Task(next(self._ids), function, data, buffers, timeout, call.retries)

    def _parts(self, call: Task) -> list[Task]:
        """Return one copy of a call per rank, pinned to that rank."""
        parts = [call.copy(next(self._ids)) for _ in self.ranks]
        for rank, part in zip(self.ranks, parts, strict=True):
            part.pin = rank
        return parts

    def _submit(self, tasks: list[Task], arrived: SimpleQueue[Task]) -> None:
        """Send calls; put each into the queue when it has ended."""
        for task in tasks:
            task.on_done(arrived.put)
        with undisturbed:
            self.dispatcher.submit(tasks)

    def _gather(self) -> GatherCoordinator:
        return GatherCoordinator(self.ranks, self.clock)

    def _in_background(self, task: Task) -> Future[Any]:
        future: CallFuture[Any] = CallFuture(
            *(task.function.name, partial(self.dispatcher.cancel, task), self.callbacks, self.tell),
            awaited=partial(self.dispatcher.hurry, task) if task.patient else None,
        )
        task.on_done(future.take)
        with undisturbed:
            self.dispatcher.submit([task])
        return future

    def _run_all(self, tasks: list[Task], *, counted: bool = False, return_exceptions: bool = False) -> list[Any]:
        """Run tasks to completion, showing a counter if asked; on Ctrl-C, or an error to raise, stop the rest."""
        __tracebackhide__ = True
        latch = Latch(len(tasks), until_failure=not return_exceptions)
        for task in tasks:
            task.on_done(latch)
        try:
            with undisturbed:
                self.dispatcher.submit(tasks)
            if not counted:
                latch.wait()
            else:
                with Counting(tasks, quiet=self.printer.is_quiet) as counting:
                    while not latch.wait(counting.wait_s):
                        counting.look(latch.ended, latch.failed)
                    counting.ended, counting.failed = latch.ended, latch.failed
            self.printer.drain()
            if return_exceptions:
                return [task.outcome() for task in tasks]
            if latch.first_failed is not None:
                latch.first_failed.value()
            return [task.value() for task in tasks]
        except BaseException as error:
            self._cancel(tasks)
            raise shortened(error)  # noqa: B904 - it is the error itself

    def _run_together(self, call: Task) -> list[Any]:
        """Run a call on all ranks, which fail together; retry it if a rank is lost and the function allows retries."""
        for retries_left in range(call.retries, -1, -1):
            tasks = self._parts(call)
            for task in tasks:
                task.retried = call.retries - retries_left
            error = CollectiveCall(tasks, self.ranks, self._gather(), self.dispatcher, self.group).run()
            self.printer.drain()
            if error is None:
                return [task.value() for task in tasks]
            if not (retries_left and isinstance(error, WorkerLostError)):
                raise error
        raise AssertionError("the last run returns or raises")

    def _cancel(self, tasks: Iterable[Task]) -> None:
        with uninterrupted:
            for task in tasks:
                if not task.done or task.stream is not None:
                    self.dispatcher.cancel(task)

    def _yield_results(
        self, tasks: list[Task], arrived: SimpleQueue[Task], ordered: bool, outcome: Callable[[Task], Any]
    ) -> Iterator[Any]:
        left = dict.fromkeys(tasks)  # tasks whose results have not been yielded
        try:
            with Counting(tasks, quiet=self.printer.is_quiet) as counting:
                for task in tasks:
                    self.dispatcher.hurry(task if ordered else next(iter(left)))
                    if ordered:
                        while not task.done:
                            counting.take(arrived)
                    else:
                        task = counting.take(arrived)
                    self.printer.drain()
                    del left[task]
                    yield outcome(task)
        except KeyboardInterrupt as interrupt:
            raise shortened(interrupt)  # noqa: B904 - it is the error itself
        finally:
            self._cancel(left)


class Unread(Exception):  # noqa: N818
    """Placeholder in a failed future for its error, which is unpickled when the caller asks for it."""


class CallFuture(Future[R]):
    """The future of a call in the background. Cancelling it stops the call, even if it is already running.

    The outcome is unpickled by the thread that asks for the result, not by the one that receives it. Callbacks run in
    separate threads. An error that the program never asked for is printed when the future is dropped.

    Args:
        name: the function's name.
        stop: stops the call.
        callbacks: runs callbacks.
        tell: prints a text; None prints nothing.
        awaited: called when somebody waits for the outcome.
    """

    def __init__(
        self,
        name: str,
        stop: Callable[[], None],
        callbacks: Callbacks,
        tell: Callable[[str], object] | None = None,
        *,
        awaited: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        self._name, self._stop, self._callbacks, self._tell = name, stop, callbacks, tell
        self._awaited = awaited
        self._reading = threading.RLock()  # unpickling runs code of the program's
        self._gate: SimpleQueue[None] = SimpleQueue()  # not the lock of futures: who sets it must not wait
        self._ended: Task | None = None
        self._outcome: tuple[Any, BaseException | None] | None = None
        self._process = os.getpid()

    def cancel(self) -> bool:
        """Stop the call; return False if it had already ended."""
        self._check_process()
        with undisturbed:
            cancelled = super().cancel()
            if cancelled:
                self._gate.put(None)
                self._stop()
        return cancelled

    def cancelled(self) -> bool:
        """Return whether it was cancelled."""
        with undisturbed:
            return super().cancelled()

    def done(self) -> bool:
        """Return whether the call has ended or was cancelled."""
        with undisturbed:
            return super().done()

    def result(self, timeout: float | None = None) -> R:
        """Return the call's result; raise its exception, or the same errors as any future."""
        __tracebackhide__ = True
        self._check_process()
        self._expect()
        try:
            if not listen(self._has_ended, timeout):
                raise FutureTimeout
            with undisturbed:
                super().result(0)
        except Unread:
            pass
        except KeyboardInterrupt as interrupt:
            raise shortened(interrupt)  # noqa: B904 - it is the error itself
        value, error = self._read()
        if error is not None:
            try:
                raise error
            finally:
                del error  # otherwise the traceback and this frame refer to each other
        result: R = value
        return result

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the exception that the call raised, or None if it returned."""
        self._check_process()
        self._expect()
        if not listen(self._has_ended, timeout):
            raise FutureTimeout
        with undisturbed:
            super().exception(0)  # raises CancelledError
        return self._read()[1]

    def _expect(self) -> None:
        if self._awaited is not None:
            with uninterrupted:
                self._awaited()

    def _has_ended(self, timeout_s: float) -> bool:
        try:
            self._gate.get(timeout=timeout_s)
        except Empty:
            return False
        self._gate.put(None)
        return True

    def __repr__(self) -> str:
        ended = self._ended
        failed = ended.failed if ended is not None else self._outcome is not None and self._outcome[1] is not None
        state = "cancelled" if self.cancelled() else "not done" if not self.done() else "failed" if failed else "done"
        return f"<future of {self._name}(): {state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"the future of {self._name}() exists in the client only; give its result instead, `future.result()`"
        )

    def __await__(self) -> Generator[Any, None, R]:
        """Wait in an asyncio task without blocking the event loop; cancelling the task cancels the call."""
        import asyncio

        with uninterrupted:
            pass  # reinstalls the SIGINT handler, which a notebook has replaced for this cell
        return asyncio.wrap_future(self).__await__()

    def add_done_callback(self, fn: Callable[[Future[R]], object]) -> None:
        """Call `fn(future)` in a thread of the pool when the call has ended, or now if it already has."""
        what = f"a callback of {self._name}()"
        self._expect()
        with undisturbed:
            super().add_done_callback(lambda ended: self._callbacks.submit(what, lambda: fn(ended)))

    def take(self, task: Task) -> None:
        """Record that the call has ended; called once, by the thread that receives the outcome."""
        self._ended = task
        try:
            if task.failed:
                self.set_exception(Unread())
            else:
                self.set_result(cast(R, None))
        except InvalidStateError:
            self._ended = None  # it was cancelled in the meantime
        self._gate.put(None)

    def __del__(self) -> None:
        # takes no locks; attributes are missing if __init__ failed
        ended, tell = getattr(self, "_ended", None), getattr(self, "_tell", None)
        if tell is None or ended is None or not ended.failed or os.getpid() != self._process or sys.is_finalizing():
            return
        if not isinstance(ended.error, TaskCancelledError | PoolClosedError):
            process_end.soon(partial(_tell_unread, ended, tell))

    def _read(self) -> tuple[Any, BaseException | None]:
        """Return the outcome, unpickling it the first time."""
        with self._reading:
            if self._outcome is None:
                assert self._ended is not None
                value, error = None, self._ended.failure()
                if error is None:
                    try:
                        value = self._ended.value()
                    except Exception as raised:  # an error of the user's classes is the future's outcome
                        error = raised
                self._outcome, self._ended = (value, error), None
            return self._outcome

    def _check_process(self) -> None:
        if os.getpid() != self._process and self._outcome is None:
            raise PoolError(
                f"The future of {self._name}() belongs to process {self._process}, which opened its pool; this one was "
                "forked from it. Ask for the result there."
            )


def _tell_unread(task: Task, tell: Callable[[str], object]) -> None:
    """Report an error that no caller has seen, without unpickling anything from the user."""
    if task.error is None and task.frame is not None:
        text = payload.load_record(memoryview(task.frame.head)[RESULT_HEAD.size :]).trace
    else:
        text = f"{type(task.error).__name__}: {task.error}"
    where = f" on {task.place}" if task.place else ""
    what = f"{task.function.name}() failed{where}, and its future was dropped before anybody asked for the result"
    tell(f"{what}:\n{text.rstrip()}")


class Latch:
    """Waits until `count` tasks have ended, or, `until_failure`, one of them has failed."""

    def __init__(self, count: int, *, until_failure: bool = True) -> None:
        self._count = self._left = count
        self._until_failure = until_failure
        self.failed = 0
        self._guard = threading.Lock()
        self._gate = threading.Lock()
        self._open = count == 0
        self.first_failed: Task | None = None
        if not self._open:
            self._gate.acquire()

    def __call__(self, task: Task) -> None:
        """Count a task that has ended; the latch is passed to `Task.on_done`."""
        with self._guard:
            self._left -= 1
            if task.failed:
                self.failed += 1
                self.first_failed = self.first_failed or task
            if self._open or not (self._left == 0 or (self.first_failed and self._until_failure)):
                return
            self._open = True
        self._gate.release()

    @property
    def ended(self) -> int:
        """Number of tasks that have ended."""
        return self._count - self._left

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the latch has opened, without limit if `timeout_s` is None; Ctrl-C interrupts the wait."""
        opened = listen(self._acquire, timeout_s)
        if opened:
            self._gate.release()
        return opened

    def _acquire(self, timeout_s: float) -> bool:
        return self._gate.acquire(timeout=timeout_s)
