"""One call on its way: what was sent, where it is, how it ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from skyward.errors import SkywardError
from skyward.pool.functions import Function
from skyward.pool.shelf import Value
from skyward.system import threading
from skyward.system.futures import Future, InvalidStateError
from skyward.wire import payload
from skyward.wire.frames import Buffer, Frame
from skyward.wire.messages import CALL_HEAD, EVERYWHERE, RESULT_HEAD, WANT_STARTED, Kind

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

    @property
    def failed(self) -> bool:
        """Whether the outcome is an error."""
        return self.error is not None or (self.frame is not None and self.frame.kind == Kind.ERROR)

    def value(self) -> Any:
        """What the call returned; raises what it raised."""
        if self.error is not None:
            raise self.error
        if self.stream is not None:
            return self.stream.open()
        assert self.frame is not None
        body = memoryview(self.frame.head)[RESULT_HEAD.size :]
        if self.frame.kind == Kind.ERROR:
            raise self.remote_error(bytes(body))
        return payload.loads(body, self.frame.buffers, what=f"The result of {self.function.name}()")

    def remote_error(self, dumped: bytes) -> BaseException:
        """The exception raised by the user's code, with a note that says where."""
        return payload.noted(payload.load_exception(dumped), f"raised by {self.function.name}() on {self.place}")


class PlainCall(NamedTuple):
    """A call made by the pool itself, of a function that may not be a compute function."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    timeout: float | None
    retries: int


class CallFuture(Future[R]):
    """The future of a call in the background. Cancelling it stops the call, also when it runs already."""

    def __init__(self, stop: Callable[[], None]) -> None:
        super().__init__()
        self._stop = stop

    def cancel(self) -> bool:
        """Stop the call; False when it has ended before."""
        cancelled = super().cancel()
        if cancelled:
            self._stop()
        return cancelled

    def take(self, task: Task) -> None:
        """Pass the outcome of the call on; called once, by the thread that learns it."""
        try:
            value, error = task.value(), None
        except BaseException as raised:  # whatever the user's code raised belongs to the future
            value, error = None, raised
        try:
            if error is not None:
                self.set_exception(error)
            else:
                self.set_result(value)
        except InvalidStateError:
            pass  # it was cancelled meanwhile


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
