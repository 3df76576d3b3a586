"""The client's end of a remote generator: items arrive as the consumer takes them, an error arrives as an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from skyward.pool.task import Task
from skyward.system import SimpleQueue
from skyward.wire import payload
from skyward.wire.frames import Frame
from skyward.wire.messages import RESULT_HEAD, Kind

T = TypeVar("T")
_CREDIT_STEP = 8  # items taken before the worker is told that it may send as many more


class StreamSource:
    """What has arrived of a stream. The pool holds this end, so that the other one can be dropped by its consumer."""

    def __init__(
        self, task: Task, credit: Callable[[int], None], cancel: Callable[[], None], drop: Callable[[], None]
    ) -> None:
        self.task, self.credit, self.cancel, self.drop = task, credit, cancel, drop
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

    def __next__(self) -> T:
        if self._ended:
            raise StopIteration
        item = self._source.arrived.get()
        if isinstance(item, BaseException):
            self._ended = True
            raise item
        if item.kind == Kind.ITEM:
            self._taken += 1
            if self._taken % _CREDIT_STEP == 0:
                self._source.credit(_CREDIT_STEP)
            value: T = payload.loads(item.head, item.buffers, what="An item of the generator")
            return value
        self._ended = True
        if item.kind == Kind.ERROR:
            raise self._source.task.remote_error(bytes(memoryview(item.head)[RESULT_HEAD.size :]))
        raise StopIteration

    def close(self) -> None:
        """Stop the generator on its node, if it still runs."""
        if not self._ended:
            self._ended = True
            self._source.cancel()

    def __enter__(self) -> RemoteStream[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._ended:
            self._source.drop()  # the collector may run where the dispatcher's lock is held: only leave word
