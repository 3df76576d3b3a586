"""The client's end of a remote generator: items arrive as the consumer takes them, an error arrives as an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Generic, TypeVar

from skyward.pool.task import Task
from skyward.wire import payload
from skyward.wire.frames import Frame
from skyward.wire.messages import RESULT_HEAD, Kind

T = TypeVar("T")
_CREDIT_STEP = 8  # items taken before the worker is told that it may send as many more


class RemoteStream(Iterator[T], Generic[T]):
    """Iterates over what a generator yields on its node. At most 16 items wait here.

    Closing it (or dropping it) before its end stops the generator.
    """

    def __init__(
        self, task: Task, credit: Callable[[int], None], cancel: Callable[[], None], drop: Callable[[], None]
    ) -> None:
        self._task, self._credit, self._cancel, self._drop = task, credit, cancel, drop
        self._arrived: SimpleQueue[Frame | BaseException] = SimpleQueue()
        self._taken = 0
        self._ended = False

    def put(self, item: Frame | BaseException) -> None:
        """Hand over an item, the end, or what broke the stream; called by the reader thread."""
        self._arrived.put(item)

    def __next__(self) -> T:
        if self._ended:
            raise StopIteration
        item = self._arrived.get()
        if isinstance(item, BaseException):
            self._ended = True
            raise item
        if item.kind == Kind.ITEM:
            self._taken += 1
            if self._taken % _CREDIT_STEP == 0:
                self._credit(_CREDIT_STEP)
            value: T = payload.loads(item.head, item.buffers, what="An item of the generator")
            return value
        self._ended = True
        if item.kind == Kind.ERROR:
            raise self._task.remote_error(bytes(memoryview(item.head)[RESULT_HEAD.size :]))
        raise StopIteration

    def close(self) -> None:
        """Stop the generator on its node, if it still runs."""
        if not self._ended:
            self._ended = True
            self._cancel()

    def __enter__(self) -> RemoteStream[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._ended:
            self._drop()  # the collector may run anywhere, also where the dispatcher's lock is held: only leave word
