"""One call on its way: what was sent, where it is, how it ended."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from skyward.errors import PoolError, SkywardError
from skyward.pool.callbacks import Callbacks
from skyward.pool.functions import Function
from skyward.pool.interrupt import uninterrupted
from skyward.pool.shelf import Value
from skyward.system import threading
from skyward.system.futures import Future, InvalidStateError
from skyward.wire import payload
from skyward.wire.frames import Buffer, Frame
from skyward.wire.messages import CALL_HEAD, EVERYWHERE, ONLY_DATA, RESULT_HEAD, WANT_STARTED, Kind

R = TypeVar("R")


class Task:
    """A call and its fate. Changed under the dispatcher's lock only.

    Attributes:
        pin: rank of the only worker that may run it, None for any.
        place, rank: the worker it was sent to last.
        sent_at: monotonic time at which it was sent, 0.0 while it waits here.
        stopping: why it is being stopped, None while nobody wants that.
        done: whether its outcome is known; set before anybody is told.
        stream: where the items of a generator arrive, the outcome of a call that returned one.
        gathering: the ranks that its `gather`s wait for, None for a call that runs alone.
        gang: the call on all ranks it is part of, where these fail together; None for all others.
        shared: values that its arguments refer to and its worker must have been sent.
    """

    __slots__ = (
        "_waiter", "buffers", "data", "done", "error", "frame", "function", "gang", "gathering", "id", "pin", "place",
        "rank", "retries", "sent_at", "shared", "stopping", "stream", "timeout",
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
        self.pin: int | None = None
        self.place = ""
        self.rank = -1
        self.sent_at = 0.0
        self.stopping: SkywardError | None = None
        self.done = False
        self.frame: Frame | None = None
        self.error: BaseException | None = None
        self.stream: Any = None
        self.gathering: Any = None
        self.gang: Any = None
        self.shared: tuple[Value, ...] = ()
        self._waiter: list[Callable[[Task], None]] = [_nobody]

    def copy(self, ident: int) -> Task:
        """The same call under another id; the payload is shared."""
        return Task(ident, self.function, self.data, self.buffers, self.timeout, self.retries)

    def on_done(self, waiter: Callable[[Task], None]) -> None:
        """Who is told of the outcome, once, in whichever thread learns it; to be set before the call is submitted."""
        self._waiter = [waiter]

    def call_frame(self) -> Frame:
        """The message that makes a worker run this call."""
        flags = (WANT_STARTED if self.timeout is not None else 0) | (EVERYWHERE if self.pin is not None else 0)
        flags |= ONLY_DATA if self.function.only_data else 0
        return Frame(Kind.CALL, self.id, CALL_HEAD.pack(self.function.number, flags) + self.data, self.buffers)

    def resolve(self, frame: Frame | None = None, error: BaseException | None = None, stream: Any = None) -> None:
        """Note the outcome and tell whoever waits for it; the second outcome of a call is ignored."""
        try:
            waiter = self._waiter.pop()  # one indivisible step: of two outcomes, one finds the list empty
        except IndexError:
            return
        self.frame, self.error, self.stream = frame, error, stream
        self.done = True
        self.data, self.buffers, self.shared = b"", (), ()
        waiter(self)

    def settle(self, error: SkywardError) -> None:
        """End the call, or the stream it returned, with an error."""
        if self.stream is not None:
            self.stream.put(error)
        else:
            self.resolve(error=error)

    @property
    def failed(self) -> bool:
        """Whether the outcome is an error."""
        return self.error is not None or (self.frame is not None and self.frame.kind == Kind.ERROR)

    def failure(self) -> BaseException | None:
        """The error that the call ended with; unpickles what its function raised."""
        if self.error is not None:
            return self.error
        if self.frame is not None and self.frame.kind == Kind.ERROR:
            return self.remote_error(bytes(memoryview(self.frame.head)[RESULT_HEAD.size :]))
        return None

    def value(self) -> Any:
        """What the call returned; raises what it raised."""
        if (failure := self.failure()) is not None:
            raise failure
        if self.stream is not None:
            return self.stream.open()
        assert self.frame is not None
        body = memoryview(self.frame.head)[RESULT_HEAD.size :]
        return self.read(body, self.frame.buffers, "The result")

    def read(self, data: Buffer, buffers: Sequence[Buffer], what: str) -> Any:
        """What the function has sent; `what` it is of it starts the message of an error."""
        what = f"{what} of {self.function.name}()"
        return payload.loads(data, buffers, what=what, only_data=self.function.only_data)

    def remote_error(self, dumped: bytes) -> BaseException:
        """The exception raised by the user's code, with a note that says where."""
        error = payload.load_exception(dumped, only_data=self.function.only_data)
        return payload.noted(error, f"raised by {self.function.name}() on {self.place}")


class PlainCall(NamedTuple):
    """A call made by the pool itself, of a function that may not be a compute function."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    timeout: float | None
    retries: int


class Unread(Exception):  # noqa: N818
    """Stands in a failed future for the error, which is unpickled where it is asked for."""


class CallFuture(Future[R]):
    """The future of a call in the background. Cancelling it stops the call, also when it runs already.

    The thread that learns of the outcome unpickles nothing: whoever asks for the result does. Callbacks run in threads
    of their own.
    """

    def __init__(self, name: str, stop: Callable[[], None], callbacks: Callbacks) -> None:
        super().__init__()
        self._name, self._stop, self._callbacks = name, stop, callbacks
        self._reading = threading.Lock()
        self._ended: Task | None = None
        self._outcome: tuple[Any, BaseException | None] | None = None
        self._process = os.getpid()

    def cancel(self) -> bool:
        """Stop the call; False when it has ended before."""
        self._check_process()
        cancelled = super().cancel()
        if cancelled:
            with uninterrupted:
                self._stop()
        return cancelled

    def result(self, timeout: float | None = None) -> R:
        """What the call returned; raises what it raised, and the same errors as any future."""
        self._check_process()
        try:
            super().result(timeout)
        except Unread:
            pass
        value, error = self._read()
        if error is not None:
            try:
                raise error
            finally:
                del error  # the traceback would hold this frame, and that the error
        result: R = value
        return result

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What the call raised, None if it returned."""
        self._check_process()
        super().exception(timeout)
        return self._read()[1]

    def add_done_callback(self, fn: Callable[[Future[R]], object]) -> None:
        """Call `fn(future)` when the call has ended, in a thread of the pool's; at once if it has."""
        what = f"a callback of {self._name}()"
        super().add_done_callback(lambda ended: self._callbacks.submit(what, lambda: fn(ended)))

    def take(self, task: Task) -> None:
        """Note that the call has ended; called once, by the thread that learns it."""
        self._ended = task
        try:
            if task.failed:
                self.set_exception(Unread())
            else:
                self.set_result(cast(R, None))
        except InvalidStateError:
            pass  # it was cancelled meanwhile

    def _read(self) -> tuple[Any, BaseException | None]:
        """The outcome, unpickled once."""
        with self._reading:
            if self._outcome is None:
                assert self._ended is not None
                value, error = None, self._ended.failure()
                if error is None:
                    try:
                        value = self._ended.value()
                    except Exception as raised:  # whatever the user's classes raise belongs to the future
                        error = raised
                self._outcome, self._ended = (value, error), None
            return self._outcome

    def _check_process(self) -> None:
        if os.getpid() != self._process and self._outcome is None:
            raise PoolError(
                f"The future of {self._name}() belongs to process {self._process}, which opened its pool; this one was "
                "forked from it. Ask for the result there."
            )


class Latch:
    """Waits until as many tasks as were counted have ended, or one of them has failed."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._guard = threading.Lock()
        self._gate = threading.Lock()
        self._open = count == 0
        self.first_failed: Task | None = None
        if not self._open:
            self._gate.acquire()

    def __call__(self, task: Task) -> None:
        """A task has ended; this object is its `on_done`."""
        with self._guard:
            self._left -= 1
            if task.failed and self.first_failed is None:
                self.first_failed = task
            if self._open or not (self._left == 0 or self.first_failed):
                return
            self._open = True
        self._gate.release()

    def wait(self) -> None:
        """Block until the latch has opened; Ctrl-C gets through."""
        self._gate.acquire()
        self._gate.release()


def _nobody(_task: Task) -> None:
    """A task nobody waits for yet."""
