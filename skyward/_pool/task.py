"""`Task`: one call with its payload, its state and its outcome; `Broadcast`: the calls of one `@`.

The outcome of a generator is a stream: items arrive as the consumer takes them, an error arrives as an error.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from reprlib import Repr
from typing import Any, Generic, TypeVar

from skyward._pool.background import Timers
from skyward._pool.code.functions import Function
from skyward._pool.code.shared_arguments import SharedValue
from skyward._pool.display import name_cells, this_cell
from skyward._pool.services import GatherCoordinator
from skyward._pool.signals import uninterrupted
from skyward.errors import PoolError, RemoteTraceback, SkywardError, shortened
from skyward.system import SimpleQueue, threading
from skyward.wire import payload
from skyward.wire.exceptions import Stopping
from skyward.wire.frames import Buffer, Frame
from skyward.wire.messages import BATCH, CALL_HEAD, EVERYWHERE, NO_CALL, ONLY_DATA, RESULT_HEAD, WANT_STARTED, Kind

_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 80
Waiter = Callable[["Task"], None]
T = TypeVar("T")
_END = Frame(Kind.END, NO_CALL)
_CREDIT_STEP = 8  # items taken before the worker is told that it may send as many more
Read = Callable[[Buffer, Sequence[Buffer], str], Any]  # see `Task.read`
ReadError = Callable[[Frame], BaseException]  # see `Task.remote_error`


class Task:
    """A call and its state. Changed under the dispatcher's lock only.

    Attributes:
        pin: rank of the only worker that may run it, None for any.
        place, rank: the worker it was sent to last.
        sent_at: monotonic time at which it was sent, 0.0 while it is queued.
        stopping: why it is being stopped, None while it is not.
        done: whether its outcome is known; set before anybody is told.
        stream: where the items of a generator arrive, the outcome of a call that returned one.
        broadcast: the call on all ranks that it is part of, None for a call on one.
        item: of a map, which one it is of, while that may have to be said; None for other calls.
        cell: of a notebook, the one that made the call, and gets its output; None elsewhere.
        is_batch: whether it is several calls of a map, which one worker makes one after the other.
        shared: values that its arguments refer to and its worker must have been sent.
    """

    __slots__ = (
        "_waiter",
        "broadcast",
        "buffers",
        "cell",
        "data",
        "done",
        "error",
        "frame",
        "function",
        "id",
        "is_batch",
        "item",
        "pin",
        "place",
        "rank",
        "retries",
        "sent_at",
        "shared",
        "stopping",
        "stream",
        "timeout",
    )  # fmt: skip

    def __init__(
        self,
        ident: int,
        function: Function,
        data: bytes,
        buffers: Sequence[Buffer],
        timeout: float | None,
        retries: int,
    ) -> None:
        self.id, self.function, self.data, self.buffers = ident, function, data, buffers
        self.timeout, self.retries = timeout, retries
        self.cell = this_cell()
        self.pin: int | None = None
        self.place = ""
        self.rank = -1
        self.sent_at = 0.0
        self.stopping: SkywardError | None = None
        self.done = False
        self.frame: Frame | None = None
        self.error: BaseException | None = None
        self.stream: StreamSource | None = None
        self.broadcast: Broadcast | None = None
        self.shared: tuple[SharedValue, ...] = ()
        self.item: tuple[int, Any] | None = None
        self.is_batch = False
        self._waiter: list[Waiter] = [_no_waiter]

    def copy(self, ident: int) -> Task:
        """The same call under another id; the payload is shared."""
        return Task(ident, self.function, self.data, self.buffers, self.timeout, self.retries)

    def on_done(self, waiter: Waiter) -> None:
        """Set who is told of the outcome, once, by whichever thread learns it; before the call is submitted."""
        self._waiter = [waiter]

    def call_frame(self) -> Frame:
        """The message that makes a worker run this call."""
        flags = (WANT_STARTED if self.timeout is not None else 0) | (EVERYWHERE if self.pin is not None else 0)
        flags |= (ONLY_DATA if self.function.only_data else 0) | (BATCH if self.is_batch else 0)
        return Frame(Kind.CALL, self.id, CALL_HEAD.pack(self.function.number, flags) + self.data, self.buffers)

    def resolve(
        self, frame: Frame | None = None, error: BaseException | None = None, stream: StreamSource | None = None
    ) -> None:
        """Set the outcome and tell the waiter; the second outcome of a call is ignored."""
        try:
            waiter = self._waiter.pop()  # one indivisible step: of two outcomes, one finds the list empty
        except IndexError:
            return
        self.frame, self.error, self.stream = frame, error, stream
        self.done = True
        self.data, self.buffers, self.shared = b"", (), ()
        if self.item is not None and not self.failed:
            self.item = None
        waiter(self)
        if self.broadcast is not None and stream is None:
            self.broadcast.gather.ended(self._own_rank, error or frame)

    def settle(self, error: SkywardError) -> None:
        """End the call, or the stream it returned, with an error."""
        if self.stream is not None:
            self.stream_item(error)
        else:
            self.resolve(error=error)

    def stream_item(self, item: Frame | BaseException) -> None:
        """Hand over an item of the stream, its end, or what broke it; called by the reader thread."""
        assert self.stream is not None
        if self.broadcast is None:
            self.stream.put(item)
            return
        if not self.broadcast.holds_back(self, item):
            self.stream.put(item)
        if isinstance(item, BaseException) or item.kind != Kind.ITEM:
            self.broadcast.gather.ended(self._own_rank, item)

    @property
    def _own_rank(self) -> int:
        return self.rank if self.pin is None else self.pin

    @property
    def fails_together(self) -> bool:
        """Whether its failure is that of a call on all ranks."""
        return self.broadcast is not None and self.broadcast.fails_together

    @property
    def failed(self) -> bool:
        """Whether the outcome is an error."""
        return self.error is not None or (self.frame is not None and self.frame.kind == Kind.ERROR)

    @property
    def run_s(self) -> float:
        """How long it ran, in seconds."""
        assert self.frame is not None
        seconds: float = RESULT_HEAD.unpack_from(self.frame.head)[0]
        return seconds

    def failure(self) -> BaseException | None:
        """The error that the call ended with; unpickles what its function raised."""
        error = self.error
        if error is None and self.frame is not None and self.frame.kind == Kind.ERROR:
            error = self.remote_error(self.frame)
        if error is not None and self.item is not None:
            (index, item), self.item = self.item, None
            payload.noted(error, item_note(index, item))
        return error

    def value(self) -> Any:
        """What the call returned; raises what it raised."""
        __tracebackhide__ = True
        if (failure := self.failure()) is not None:
            raise failure
        if self.stream is not None:
            return self.stream.open(self.read, self.remote_error)
        assert self.frame is not None
        body = memoryview(self.frame.head)[RESULT_HEAD.size :]
        return self.read(body, self.frame.buffers, "The result")

    def read(self, data: Buffer, buffers: Sequence[Buffer], what: str) -> Any:
        """Unpickle what the function has sent; `what` it is starts the message of an error."""
        what = f"{what} of {self.function.name}()"
        return payload.loads(data, buffers, what=what, only_data=self.function.only_data)

    def remote_error(self, frame: Frame) -> BaseException:
        """The exception raised by the user's code, with a note that says where."""
        dumped = bytes(memoryview(frame.head)[RESULT_HEAD.size :])
        error = payload.load_exception(dumped, only_data=self.function.only_data)
        if self.cell is not None and isinstance(error.__cause__, RemoteTraceback):
            error.__cause__.args = tuple(map(name_cells, error.__cause__.args))
        file = OSError.filename.__get__(error) if isinstance(error, FileNotFoundError) else None
        if _is_here(file):
            payload.noted(
                error,
                f"{file!r} is there for this program and not for the function: nodes have files, and a "
                "working directory, of their own. Add it to Image(includes=[...]), or pass what it holds.",
            )
        return payload.noted(error, f"raised by {self.function.name}() on {self.place}")


class Broadcast:
    """A call on all ranks, one task for each; the parts end by themselves, and can `gather` with each other.

    `CollectiveCall` is one whose parts fail together.
    """

    fails_together = False

    def __init__(self, tasks: Sequence[Task], gather: GatherCoordinator, cancel: Callable[[Task], None]) -> None:
        self.gather, self._cancel = gather, cancel
        for task in tasks:
            task.broadcast = self

    def holds_back(self, _task: Task, _item: Frame | BaseException) -> bool:
        """Whether an item of a part's stream is not for its consumer, because the broadcast decides on the outcome."""
        return False

    def stack_arrived(self, task: Task, frame: Frame) -> None:
        """A worker has answered where a part is, which only `CollectiveCall` asks."""

    def stop(self, task: Task) -> None:
        """Stop a part whose stream was closed by its consumer."""
        self._cancel(task)


def _is_here(file: object) -> bool:
    return isinstance(file, str) and Path(file).exists()


def item_note(index: int, item: Any) -> str:
    """What the error of a map says of the item that it is about."""
    try:
        shown = _SHORT.repr(item)
    except Exception:  # of the user's class: the error that is told of matters more
        shown = f"a {type(item).__name__}"
    return f"for item {index} of the map: {shown}"


def _no_waiter(_task: Task) -> None:
    """The waiter of a task before `on_done`."""


# streams -----------------------------------------------------------------------------------------------------------


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
