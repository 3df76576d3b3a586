"""The client's end of a remote generator: items arrive as the consumer takes them, an error arrives as an error."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from skyward._pool.background import Timers
from skyward._pool.signals import uninterrupted
from skyward.errors import PoolError, shortened
from skyward.system import SimpleQueue, threading
from skyward.wire.exceptions import Stopping
from skyward.wire.frames import Buffer, Frame
from skyward.wire.messages import NO_CALL, Kind

T = TypeVar("T")
_END = Frame(Kind.END, NO_CALL)
_CREDIT_STEP = 8  # items taken before the worker is told that it may send as many more
Read = Callable[[Buffer, Sequence[Buffer], str], Any]  # see `Task.read`
ReadError = Callable[[Frame], BaseException]  # see `Task.remote_error`


class Streams:
    """Stops the streams of a pool that are garbage-collected before their end."""

    def __init__(self, clock: Timers) -> None:
        self._clock = clock
        self._dropped: SimpleQueue[StreamSource | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._collecting = False

    def open(self, credit: Callable[[int], None], stop: Callable[[], None], linger_s: float = 0.0) -> StreamSource:
        """The client's end of a stream that a call has returned.

        Args:
            credit: allows the worker to send so many further items.
            stop: stops the generator.
            linger_s: how long after the consumer has dropped the stream that happens.
        """
        with self._lock:
            if not self._collecting:
                self._collecting = True
                threading.Thread(target=self._collect, name="skyward-streams", daemon=True).start()
        return StreamSource(credit, stop, linger_s, self._dropped)

    def close(self) -> None:
        """Look after dropped streams no more."""
        self._dropped.put(None)

    def _collect(self) -> None:
        """Stop streams that nobody holds any more (a thread: the garbage collector may run where a lock is held)."""
        while (source := self._dropped.get()) is not None:
            self._clock.after(source.linger_s, source.stop)


class StreamSource:
    """What has arrived of a stream. The pool holds this end, so that the other one can be dropped by its consumer."""

    def __init__(
        self,
        credit: Callable[[int], None],
        stop: Callable[[], None],
        linger_s: float,
        dropped: SimpleQueue[StreamSource | None],
    ) -> None:
        self.credit, self.stop, self.linger_s, self.dropped = credit, stop, linger_s, dropped
        self.arrived: SimpleQueue[Frame | BaseException] = SimpleQueue()

    def put(self, item: Frame | BaseException) -> None:
        """Hand over an item, the end, or what broke the stream."""
        self.arrived.put(item)

    def open(self, read: Read, read_error: ReadError) -> RemoteStream[object]:
        """The consumer's end; there is one."""
        return RemoteStream(self, read, read_error)


class RemoteStream(Iterator[T], Generic[T]):
    """Iterates over what a generator yields on its node. At most 16 items wait here.

    Closing it (or dropping it) before its end stops the generator.
    """

    def __init__(self, source: StreamSource, read: Read, read_error: ReadError) -> None:
        self._source, self._read, self._read_error = source, read, read_error
        self._taken = itertools.count(1)  # several threads may take items
        self._ended = False
        self._process = os.getpid()

    def __next__(self) -> T:
        if self._ended:
            raise StopIteration
        if os.getpid() != self._process:
            raise PoolError("A stream belongs to the process that opened it; this one was forked from it.")
        try:
            return self._take()
        except (KeyboardInterrupt, Stopping) as interrupt:  # as a generator of this process would end
            self.close()
            raise shortened(interrupt)  # noqa: B904 - it is the error itself

    def _take(self) -> T:
        item = self._source.arrived.get()
        if not isinstance(item, BaseException) and item.kind == Kind.ITEM:
            if next(self._taken) % _CREDIT_STEP == 0:
                self._source.credit(_CREDIT_STEP)
            value: T = self._read(item.head, item.buffers, "An item of the generator")
            return value
        self._source.arrived.put(_END)  # for other threads that wait here
        self._ended = True
        if isinstance(item, BaseException):
            raise item
        if item.kind == Kind.ERROR:
            raise self._read_error(item)
        raise StopIteration

    def close(self) -> None:
        """Stop the generator on its node, if it still runs."""
        if not self._ended:
            self._ended = True
            if os.getpid() == self._process:
                with uninterrupted:
                    self._source.stop()

    def __enter__(self) -> RemoteStream[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._ended:
            self._source.dropped.put(self._source)
