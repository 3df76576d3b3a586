"""The client's end of a remote generator: items arrive as the consumer takes them, an error arrives as an error."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Generic, TypeVar

from skyward.errors import PoolError
from skyward.pool.clock import Clock
from skyward.pool.interrupt import uninterrupted
from skyward.pool.task import Task
from skyward.pool.worker import WorkerLink
from skyward.system import SimpleQueue, threading
from skyward.wire.frames import Frame
from skyward.wire.messages import RESULT_HEAD, Kind

T = TypeVar("T")
DROPPED_S = 1.0  # between the end of interest in one of the streams of all ranks and their end
_CREDIT_STEP = 8  # items taken before the worker is told that it may send as many more


class Streams:
    """The open streams of a pool.

    Args:
        clock: the pool's.
        cancel: stops a call.
    """

    def __init__(self, clock: Clock, cancel: Callable[[Task], None]) -> None:
        self._clock, self._cancel = clock, cancel
        self._dropped: SimpleQueue[Task | None] = SimpleQueue()  # those that were garbage-collected before their end
        self._lock = threading.Lock()
        self._collecting = False

    def open(self, worker: WorkerLink, task: Task) -> StreamSource:
        """The client's end of the stream that a call has returned."""

        def credit(items: int) -> None:
            with uninterrupted:
                worker.post_credit(task.id, items)
                worker.flush()

        with self._lock:
            if not self._collecting:
                self._collecting = True
                threading.Thread(target=self._collect, name="skyward-streams", daemon=True).start()
        return StreamSource(task, credit, partial(self._stop, task), self._dropped)

    def close(self) -> None:
        """Look after dropped streams no more."""
        self._dropped.put(None)

    def _stop(self, task: Task) -> None:
        if task.gang is None:
            self._cancel(task)
        else:
            task.gang.stop()

    def _collect(self) -> None:
        """Stop streams that nobody holds any more (a thread of its own: the garbage collector can only leave word)."""
        while (task := self._dropped.get()) is not None:
            # the ranks of a group may be about to end by themselves, and stopping them costs all their processes
            self._clock.after(0.0 if task.gang is None else DROPPED_S, partial(self._stop, task))


class StreamSource:
    """What has arrived of a stream. The pool holds this end, so that the other one can be dropped by its consumer."""

    def __init__(
        self, task: Task, credit: Callable[[int], None], cancel: Callable[[], None], dropped: SimpleQueue[Task | None]
    ) -> None:
        self.task, self.credit, self.cancel, self.dropped = task, credit, cancel, dropped
        self.arrived: SimpleQueue[Frame | BaseException] = SimpleQueue()

    def put(self, item: Frame | BaseException) -> None:
        """Hand over an item, the end, or what broke the stream; called by the reader thread."""
        if self.task.gang is None or not self.task.gang.holds(self.task, item):
            self.arrived.put(item)
        if self.task.gathering is not None and (isinstance(item, BaseException) or item.kind != Kind.ITEM):
            self.task.gathering.ended(self.task.rank, item)

    def open(self) -> RemoteStream[object]:
        """The consumer's end; there is one."""
        return RemoteStream(self)


class RemoteStream(Iterator[T], Generic[T]):
    """Iterates over what a generator yields on its node. At most 16 items wait here.

    Closing it (or dropping it) before its end stops the generator.
    """

    def __init__(self, source: StreamSource) -> None:
        self._source = source
        self._taken = 0
        self._ended = False
        self._process = os.getpid()

    def __next__(self) -> T:
        if self._ended:
            raise StopIteration
        if os.getpid() != self._process:
            raise PoolError("A stream belongs to the process that opened it; this one was forked from it.")
        item = self._source.arrived.get()
        if isinstance(item, BaseException):
            self._ended = True
            raise item
        if item.kind == Kind.ITEM:
            self._taken += 1
            if self._taken % _CREDIT_STEP == 0:
                self._source.credit(_CREDIT_STEP)
            value: T = self._source.task.read(item.head, item.buffers, "An item of the generator")
            return value
        self._ended = True
        if item.kind == Kind.ERROR:
            raise self._source.task.remote_error(bytes(memoryview(item.head)[RESULT_HEAD.size :]))
        raise StopIteration

    def close(self) -> None:
        """Stop the generator on its node, if it still runs."""
        if not self._ended:
            self._ended = True
            if os.getpid() == self._process:
                with uninterrupted:
                    self._source.cancel()

    def __enter__(self) -> RemoteStream[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._ended:
            self._source.dropped.put(self._source.task)  # only that: the collector may run where a lock is held
