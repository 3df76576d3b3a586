"""`Task`: one call with its payload, state and outcome; `Broadcast`: the calls of one `@`.

The outcome of a generator is a stream: the worker sends items as the consumer takes them, and errors in their place.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from reprlib import Repr
from typing import Any, Generic, TypeVar

from skyward._pool.background import Timers
from skyward._pool.code.functions import Function
from skyward._pool.code.shared_arguments import SharedValue
from skyward._pool.display import Cell, name_cells, this_cell
from skyward._pool.services import GatherCoordinator
from skyward._pool.signals import LISTEN_S, check_thread, uninterrupted
from skyward.errors import PoolError, RemoteTraceback, SkywardError, shortened
from skyward.system import Empty, SimpleQueue, threading
from skyward.wire import payload
from skyward.wire.exceptions import Stopping
from skyward.wire.frames import Buffer, Frame
from skyward.wire.messages import (
    BATCH,
    CALL_HEAD,
    EVERYWHERE,
    NO_CALL,
    RESULT_HEAD,
    STREAM_WINDOW,
    WANT_STARTED,
    Kind,
)

_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 80
Waiter = Callable[["Task"], None]
T = TypeVar("T")
_END = Frame(Kind.END, NO_CALL)
_CREDIT_STEP = STREAM_WINDOW // 2  # after this many items, the worker is allowed to send as many more
Read = Callable[[Buffer, Sequence[Buffer], str], Any]  # see `Task.read`
ReadError = Callable[[Frame], BaseException]  # see `Task.remote_error`


@dataclass(slots=True, eq=False, repr=False)
class Task:
    """A call and its state. Changed only under the dispatcher's lock.

    Attributes:
        retries, retried: how often it may run again when its worker is lost, and how often it has.
        pin: rank of the only worker that may run it; None for any.
        place, rank: the worker it was last sent to.
        patient: whether it is a generator's and nobody waits for it, so that it starts only if no open stream would
            have to share its slot. Otherwise all of many generators would be open at once.
        sent_at: monotonic time at which it was sent; 0.0 while it is queued.
        stopping: why it is being stopped; None while it is not.
        done: whether its outcome is known; set before the waiter is called.
        stream: the outcome of a call that returned a generator, where the items arrive.
        credit: number of items that the generator's worker may still send; without any it waits for the reader.
        broadcast: the call on all ranks that it is part of; None for a call on one rank.
        shared: values that its arguments refer to, which must be sent to its worker first.
        item: index and value of its item in a map, as long as an error may name them; None for other calls.
        sample: where it was when its worker was asked (see `runner.diagnosis.describe`); unused by parts of broadcasts.
        is_batch: whether it stands for several calls of a map, which one worker runs one after another.
        cell: the notebook cell that made the call and shows its output; None outside notebooks.
    """

    id: int
    function: Function
    data: bytes
    buffers: Sequence[Buffer]
    timeout: float | None
    retries: int
    retried: int = 0
    pin: int | None = None
    patient: bool = False
    place: str = ""
    rank: int = -1
    sent_at: float = 0.0
    stopping: SkywardError | None = None
    done: bool = False
    frame: Frame | None = None
    error: BaseException | None = None
    stream: StreamSource | None = None
    credit: int = STREAM_WINDOW
    broadcast: Broadcast | None = None
    shared: tuple[SharedValue, ...] = ()
    item: tuple[int, Any] | None = None
    sample: dict[str, Any] = field(default_factory=dict)
    is_batch: bool = False
    cell: Cell | None = field(default_factory=this_cell)
    _waiter: list[Waiter] = field(default_factory=lambda: [_no_waiter])

    def copy(self, ident: int) -> Task:
        """Return the same call under another id, sharing the payload."""
        return Task(ident, self.function, self.data, self.buffers, self.timeout, self.retries)

    def on_done(self, waiter: Waiter) -> None:
        """Set the waiter, before the call is submitted. It is called once, by the thread that receives the outcome."""
        self._waiter = [waiter]

    def call_frame(self) -> Frame:
        """Return the message that makes a worker run this call."""
        flags = (WANT_STARTED if self.timeout is not None else 0) | (EVERYWHERE if self.pin is not None else 0)
        flags |= BATCH if self.is_batch else 0
        return Frame(Kind.CALL, self.id, CALL_HEAD.pack(self.function.number, flags) + self.data, self.buffers)

    def resolve(
        self, frame: Frame | None = None, error: BaseException | None = None, stream: StreamSource | None = None
    ) -> None:
        """Set the outcome and call the waiter; ignore a second outcome of a call."""
        try:
            waiter = self._waiter.pop()  # atomic: a second outcome finds the list empty
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
        """Pass on an item of the stream, its end, or an error; called by the reader thread."""
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
        """Whether it is part of a broadcast whose ranks fail together."""
        return self.broadcast is not None and self.broadcast.fails_together

    @property
    def failed(self) -> bool:
        """Whether the outcome is an error."""
        return self.error is not None or (self.frame is not None and self.frame.kind == Kind.ERROR)

    @property
    def run_s(self) -> float:
        """The run time in seconds."""
        assert self.frame is not None
        seconds: float = RESULT_HEAD.unpack_from(self.frame.head)[0]
        return seconds

    def failure(self) -> BaseException | None:
        """Return the error of the call, unpickling the function's exception; None if it succeeded."""
        error = self.error
        if error is None and self.frame is not None and self.frame.kind == Kind.ERROR:
            error = self.remote_error(self.frame)
        if error is not None and self.item is not None:
            (index, item), self.item = self.item, None
            payload.noted(error, item_note(index, item))
        return error

    def value(self) -> Any:
        """Return the call's result, or raise its error."""
        __tracebackhide__ = True
        if (failure := self.failure()) is not None:
            raise failure
        if self.stream is not None:
            return self.stream.open(self.read, self.remote_error)
        assert self.frame is not None
        body = memoryview(self.frame.head)[RESULT_HEAD.size :]
        return self.read(body, self.frame.buffers, "The result")

    def outcome(self) -> Any:
        """Return the call's result, or its exception in place of a result."""
        if (failure := self.failure()) is None:
            try:
                return self.value()
            except Exception as unreadable:  # raised by the user's classes
                return unreadable
        if not isinstance(failure, Exception):
            raise failure
        return failure

    def read(self, data: Buffer, buffers: Sequence[Buffer], what: str) -> Any:
        """Unpickle data from the function; `what` describes it at the start of error messages."""
        what = f"{what} of {self.function.name}()"
        return payload.loads(data, buffers, what=what)

    def remote_error(self, frame: Frame) -> BaseException:
        """Return the exception raised by the user's code, with a note that names function and place."""
        dumped = bytes(memoryview(frame.head)[RESULT_HEAD.size :])
        error = payload.load_exception(dumped)
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
    """A call on all ranks, one task for each. The parts end independently, and can `gather` with each other.

    In the subclass `CollectiveCall`, the parts fail together.
    """

    fails_together = False

    def __init__(self, tasks: Sequence[Task], gather: GatherCoordinator, cancel: Callable[[Task], None]) -> None:
        self.gather, self._cancel = gather, cancel
        for task in tasks:
            task.broadcast = self

    def holds_back(self, _task: Task, _item: Frame | BaseException) -> bool:
        """Return whether the broadcast withholds an item of a part's stream, because it decides on the outcome."""
        return False

    def stack_arrived(self, task: Task, frame: Frame) -> None:
        """Handle a worker's answer about a part's stack, which only `CollectiveCall` asks for."""

    def stop(self, task: Task) -> None:
        """Stop a part whose stream was closed by its consumer."""
        self._cancel(task)


def _is_here(file: object) -> bool:
    return isinstance(file, str) and Path(file).exists()


def item_note(index: int, item: Any) -> str:
    """Return the note for a map's error that describes the item."""
    try:
        shown = _SHORT.repr(item)
    except Exception:  # raised by the user's class; the error to report matters more
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
        """Return the client's end of a stream that a call has returned.

        Args:
            credit: allows the worker to send this many more items.
            stop: stops the generator.
            linger_s: seconds between the dropping of the stream and the stop.
        """
        with self._lock:
            if not self._collecting:
                self._collecting = True
                threading.Thread(target=self._collect, name="skyward-streams", daemon=True).start()
        return StreamSource(credit, stop, linger_s, self._dropped)

    def close(self) -> None:
        """End the thread that stops dropped streams."""
        self._dropped.put(None)

    def _collect(self) -> None:
        """Stop dropped streams, in a thread, since the garbage collector may run where a lock is held."""
        while (source := self._dropped.get()) is not None:
            self._clock.after(source.linger_s, source.stop)


@dataclass(slots=True, eq=False)
class StreamSource:
    """Receiving end of a stream, referenced by the pool; the consumer's end can be dropped independently."""

    credit: Callable[[int], None]
    stop: Callable[[], None]
    linger_s: float
    dropped: SimpleQueue[StreamSource | None]
    arrived: SimpleQueue[Frame | BaseException] = field(default_factory=SimpleQueue)

    def put(self, item: Frame | BaseException) -> None:
        """Add an item, the end of the stream, or an error."""
        self.arrived.put(item)

    def open(self, read: Read, read_error: ReadError) -> RemoteStream[object]:
        """Return the consumer's end; called once."""
        return RemoteStream(self, read, read_error)


class RemoteStream(Iterator[T], Generic[T]):
    """Iterates over the items that a generator yields on its node. At most 16 items wait here.

    A generator that is so far ahead waits for its reader, and its node runs other calls meanwhile. Closing or dropping
    the iterator before its end stops the generator.
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
        except (KeyboardInterrupt, Stopping) as interrupt:  # as a local generator would end
            self.close()
            raise shortened(interrupt)  # noqa: B904 - it is the error itself

    def _take(self) -> T:
        item = self._next()
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
        body = memoryview(item.head)[RESULT_HEAD.size :]
        raise StopIteration(self._read(body, item.buffers, "What the generator returned") if body else None)

    def _next(self) -> Frame | BaseException:
        check_thread()
        while True:
            try:
                return self._source.arrived.get(timeout=LISTEN_S)
            except Empty:
                continue  # signals are handled here

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
