"""The calling half of a pool: what becomes of calls between their caller and the dispatcher."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

from skyward.errors import PoolClosedError, PoolError, WorkerLostError
from skyward.model.call import Call
from skyward.pool.callbacks import Callbacks
from skyward.pool.clock import Clock
from skyward.pool.dispatch import Dispatcher
from skyward.pool.functions import Functions
from skyward.pool.gang import Gang
from skyward.pool.gathering import Gathering
from skyward.pool.interrupt import uninterrupted
from skyward.pool.members import Members
from skyward.pool.output import Printer
from skyward.pool.regroup import Group
from skyward.pool.series import Packed, Series
from skyward.pool.settings import PoolSettings
from skyward.pool.task import CallFuture, Latch, PlainCall, Task
from skyward.system import SimpleQueue
from skyward.system.futures import Future
from skyward.wire import payload

R = TypeVar("R")
T = TypeVar("T")


class Calls:
    """What a `ComputePool` can be asked to run; `ComputePool` says what it runs on."""

    id: str
    _settings: PoolSettings
    _ranks: dict[int, str]
    _running: bool
    _dispatcher: Dispatcher
    _functions: Functions
    _printer: Printer
    _clock: Clock
    _callbacks: Callbacks
    _owner: int
    _group: Group
    _members: Members

    def run(self, call: Call[R]) -> R:
        """Run a call on one node and return what it returns; the same as `call >> pool`.

        Raises:
            The exception the function raised, with the traceback of its node as cause; else a `TaskError`.
        """
        result: R = self._run_all([self._task(call)])[0]
        return result

    def broadcast(self, call: Call[R]) -> list[R]:
        """Run a call once on every rank; the index of the list is the rank. The same as `call @ pool`.

        There is one rank per node, unless `Worker(per_node=...)` says otherwise. The first error of any rank is raised,
        with a note that names node and rank; the others are stopped. Where the ranks form one group, the error also
        says where the others were, and all are started afresh before the next call. A node that is being started or
        replaced is waited for.

        Raises:
            PoolError: a node is gone and could not be replaced.
        """
        self._check_open()
        self._members.wait_whole()
        first = self._task(call)
        if len(self._ranks) > 1 and (self._group.collective or first.function.collective):
            return self._run_together(first)
        return self._run_all(self._parts(first))

    def _parts(self, call: Task) -> list[Task]:
        """A call as each of the ranks gets it."""
        parts = [call.copy(self._dispatcher.next_id()) for _ in self._ranks]
        gathering = Gathering(self._ranks, self._clock) if len(parts) > 1 else None
        for rank, part in zip(self._ranks, parts, strict=True):
            part.pin, part.gathering = rank, gathering
        return parts

    def run_async(self, call: Call[R]) -> Future[R]:
        """Run a call in the background; the same as `call > pool`. Cancelling the future stops the call."""
        return self._in_background(self._task(call))

    def series(self) -> Series:
        """Calls in the background that have large arguments in common, each of which is sent to a node once."""
        self._check_open()
        return Series(self._functions, self._start_packed)

    def _start_packed(self, packed: Packed) -> Future[Any]:
        self._check_open()
        ident, timeout = self._dispatcher.next_id(), self._settings.default_timeout_s
        task = Task(ident, packed.function, packed.data, packed.buffers, timeout, 0)
        task.shared = packed.values
        return self._in_background(task)

    def _in_background(self, task: Task) -> Future[Any]:
        future: CallFuture[Any] = CallFuture(
            task.function.name, partial(self._dispatcher.cancel, task), self._callbacks
        )
        task.on_done(future.take)
        with uninterrupted:
            self._dispatcher.submit([task])
        return future

    def run_parallel(self, calls: Iterable[Call[Any]]) -> tuple[Any, ...]:
        """Run calls at once, on whichever nodes are free; results in the order of the calls.

        The first error of any of them is raised; the others are stopped.
        """
        return tuple(self._run_all([self._task(call) for call in calls]))

    def run_stream(self, calls: Iterable[Call[Any]], *, ordered: bool = True) -> Iterator[Any]:
        """Run calls at once; yields results as they arrive, in the order of the calls if `ordered`.

        An error is raised in its result's place, and the rest is stopped; so it is when the iterator is closed.
        """
        tasks = [self._task(call) for call in calls]
        arrived: SimpleQueue[Task] = SimpleQueue()
        for task in tasks:
            task.on_done(arrived.put)
        with uninterrupted:
            self._dispatcher.submit(tasks)
        return self._yield_results(tasks, arrived, ordered)

    def map(self, fn: Callable[[T], Any], items: Iterable[T]) -> list[Any]:
        """Run `fn(item)` for every item; results in the order of the items. `fn` may be a compute function or plain."""
        plain: Callable[..., Any] = getattr(fn, "fn", fn)
        timeout, retries = getattr(fn, "timeout", None), getattr(fn, "retries", 0)
        return list(self.run_parallel(PlainCall(plain, (item,), {}, timeout, retries) for item in items))

    def _task(self, call: Call[Any]) -> Task:
        self._check_open()
        function = self._functions.get(call.fn)
        data, buffers = payload.dumps_arguments(call.args, call.kwargs, of=function.name)
        timeout = call.timeout if call.timeout is not None else self._settings.default_timeout_s
        return Task(self._dispatcher.next_id(), function, data, buffers, timeout, call.retries)

    def _run_all(self, tasks: list[Task]) -> list[Any]:
        """Run tasks to their end; on the first error, and on Ctrl-C, stop the rest."""
        latch = Latch(len(tasks))
        for task in tasks:
            task.on_done(latch if task.gathering is None else task.gathering.then(latch))
        try:
            with uninterrupted:
                self._dispatcher.submit(tasks)
            latch.wait()
            self._printer.drain()
            if latch.first_failed is not None:
                latch.first_failed.value()
            return [task.value() for task in tasks]
        except BaseException:
            with uninterrupted:
                self._cancel(tasks)
            raise

    def _run_together(self, call: Task) -> list[Any]:
        """Run a call on all ranks, which fail together; again if one of them is lost and its function allows that."""
        for retries_left in range(call.retries, -1, -1):
            tasks = self._parts(call)
            error = Gang(tasks, self._ranks, self._dispatcher, self._group).run()
            self._printer.drain()
            if error is None:
                return [task.value() for task in tasks]
            if not (retries_left and isinstance(error, WorkerLostError)):
                raise error
        raise AssertionError("the last run returns or raises")

    def _cancel(self, tasks: Iterable[Task]) -> None:
        for task in tasks:
            if not task.done or task.stream is not None:
                self._dispatcher.cancel(task)

    def _yield_results(self, tasks: list[Task], arrived: SimpleQueue[Task], ordered: bool) -> Iterator[Any]:
        left = dict.fromkeys(tasks)  # whose results have not been handed out
        try:
            for task in tasks:
                if ordered:
                    while not task.done:
                        arrived.get()
                else:
                    task = arrived.get()
                self._printer.drain()
                del left[task]
                yield task.value()
        finally:
            with uninterrupted:
                self._cancel(left)

    def _check_open(self) -> None:
        if self._owner != os.getpid():
            raise PoolError(
                f"Pool {self.id} belongs to process {self._owner}, which opened it; process {os.getpid()} was forked "
                "from it and cannot use it. Make the calls there, open a pool of this process's own, or start "
                "processes by multiprocessing's 'spawn' and let each open its pool."
            )
        if not self._running:
            raise PoolClosedError(f"Pool {self.id} is not open; use `with sky.ComputePool(...) as pool:`.")
