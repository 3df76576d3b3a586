"""What a worker does with a message: set plugins up, load functions, run calls, stream generators.

Knows nothing of threads or sockets: it is given frames and a way to send them.
"""

from __future__ import annotations

import threading
import time
import types
from collections.abc import Callable
from typing import Any, Protocol

from skyward.model.instance import InstanceInfo
from skyward.runner.slots import Interrupted, Slot
from skyward.runtime.output import task_output
from skyward.wire import payload
from skyward.wire.frames import Frame
from skyward.wire.messages import CALL_HEAD, RESULT_HEAD, WANT_STARTED, Kind

STREAM_WINDOW = 16  # items of a generator that may be on their way before the client has taken one
Send = Callable[[Frame], None]


class Session(Protocol):
    """What a pool's plugins set up in a worker; made by the callable that a SETUP message carries."""

    def decorate(self, fn: Callable[..., Any]) -> Callable[..., Any]: ...
    def close(self) -> None: ...


class Calls:
    """The functions, plugin session and open streams of one client connection."""

    def __init__(self, place: InstanceInfo) -> None:
        self._place = place
        self._functions: dict[int, bytes | Callable[..., Any]] = {}
        self._loading = threading.Lock()
        self._credits: dict[int, threading.Semaphore] = {}
        self._session: Session | None = None

    def keep_function(self, frame: Frame) -> None:
        """Remember a pickled function; it is loaded where it is first called."""
        self._functions[frame.id] = bytes(frame.head)

    def credit(self, call: int, items: int) -> None:
        """Let a stream send further items."""
        if semaphore := self._credits.get(call):
            semaphore.release(items)

    def setup(self, frame: Frame) -> Frame:
        """Enter the pool's plugins in this process; the answer is READY or ERROR."""
        try:
            make = payload.loads(frame.head, frame.buffers)
            self.close()
            self._session = make(self._place)
        except Exception as error:  # any failure of a user's plugin is reported, none ends the worker
            return Frame(Kind.ERROR, frame.id, RESULT_HEAD.pack(0.0) + payload.dump_exception(error))
        return Frame(Kind.READY, frame.id)

    def close(self) -> None:
        """Leave the plugins, in reverse order."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def run(self, frame: Frame, slot: Slot, send: Send) -> Frame:
        """Run a call to its end; returns the frame that ends it. Only an interrupt leaves this function as an error."""
        number, flags = CALL_HEAD.unpack_from(frame.head)
        if flags & WANT_STARTED:
            with slot.shield():
                send(Frame(Kind.STARTED, frame.id))
        start = time.perf_counter()
        try:
            with task_output(frame.id):
                fn = self._function(number)
                packed = memoryview(frame.head)[CALL_HEAD.size :]
                args, kwargs = payload.loads(packed, frame.buffers, what="An argument")
                if isinstance(frame.buffers, list):
                    frame.buffers.clear()  # what loads made owns the memory now, and the caller's frame must not
                value = fn(*args, **kwargs)
                del args, kwargs
                if isinstance(value, types.GeneratorType):
                    self._stream(frame.id, value, slot, send)
                    return Frame(Kind.END, frame.id, RESULT_HEAD.pack(time.perf_counter() - start))
            data, buffers = payload.dumps(value, what="The result")
            return Frame(Kind.RESULT, frame.id, RESULT_HEAD.pack(time.perf_counter() - start) + data, buffers)
        except Interrupted:
            raise
        except (
            BaseException
        ) as error:  # user code may leave by the wrong door (SystemExit and the like); the worker stays
            return failure(frame.id, error, start)

    def _function(self, number: int) -> Callable[..., Any]:
        known = self._functions[number]
        if not isinstance(known, bytes):
            return known
        with self._loading:
            known = self._functions[number]
            if isinstance(known, bytes):
                fn: Callable[..., Any] = payload.loads(known, (), what="The function")
                known = self._session.decorate(fn) if self._session else fn
                self._functions[number] = known
        return known

    def _stream(self, call: int, items: types.GeneratorType[Any, Any, Any], slot: Slot, send: Send) -> None:
        """Send a generator's items, never more than the client has given credit for."""
        credit = self._credits[call] = threading.Semaphore(STREAM_WINDOW)
        try:
            with slot.shield():
                send(Frame(Kind.STREAM, call))
            for item in items:
                data, buffers = payload.dumps(item, what="An item of the generator")
                credit.acquire()
                with slot.shield():
                    send(Frame(Kind.ITEM, call, data, buffers))
        finally:
            del self._credits[call]
            items.close()


def failure(call: int, error: BaseException, start: float) -> Frame:
    """The frame that carries an error to the client."""
    return Frame(Kind.ERROR, call, RESULT_HEAD.pack(time.perf_counter() - start) + payload.dump_exception(error))
