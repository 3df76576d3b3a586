"""Handles a worker's messages: sets plugins up, loads functions, runs calls, streams generators.

It uses no threads or sockets: it is passed frames and a function that sends them.
"""

from __future__ import annotations

import os
import types
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from skyward.errors import PluginError
from skyward.model.instance import InstanceInfo
from skyward.runner import shared_values as shared
from skyward.runner.main_module import Names, Program, enter_again
from skyward.runner.process import breaks_device, end_child, forget_replaced_modules, place_modules
from skyward.runner.threads import Interrupted, Slot
from skyward.runtime import environment, masking
from skyward.runtime.output import task_output
from skyward.runtime.ranks import run_coroutine
from skyward.system import threading, time
from skyward.wire import batch, payload
from skyward.wire.batch import COUNT
from skyward.wire.frames import Frame
from skyward.wire.messages import (
    BATCH,
    CALL_HEAD,
    EVERYWHERE,
    RESULT_HEAD,
    STREAM_WINDOW,
    WANT_STARTED,
    Kind,
    decode,
)

_BATCH_S = 0.005  # after which a batch is answered: the remaining calls may run elsewhere
_RUN_FURTHER = frozenset({types.CoroutineType, types.GeneratorType})  # values that have to be run to get the result
Send = Callable[[Frame], None]
Steps = Generator[None, None, Frame]


class Session(Protocol):
    """The plugins of a pool, set up in a worker; created by the callable in a SETUP message."""

    collective: bool

    def decorate(self, fn: Callable[..., Any]) -> Callable[..., Any]: ...
    def close(self) -> None: ...


class Loaded(NamedTuple):
    """A function with the `__main__` that it runs in, and its globals there."""

    fn: Callable[..., Any]
    program: Program
    names: Names


@dataclass(slots=True, eq=False)
class Stream:
    """A generator whose items are sent. While it waits for its reader, its slot runs other calls.

    It always runs in the same thread, since it may hold what belongs to that: locks, connections, modes of a framework.

    Attributes:
        slot: where it runs.
        context: the variables of its call.
        steps: runs it until it waits, and returns its final frame.
        credit: number of items it may still send.
        waits: whether it waits for its reader.
        stopped: whether the client has cancelled it.
    """

    slot: Slot
    context: Context
    steps: Steps
    credit: int = STREAM_WINDOW
    waits: bool = False
    stopped: bool = False


class Calls:
    """The functions, plugin session and open streams of one client connection.

    Attributes:
        is_grouped: whether this process is, or may be, part of a group of ranks.
        streams: the open streams, by call.
    """

    def __init__(self, place: InstanceInfo, *, replaceable: bool = True) -> None:
        self._place, self._replaceable = place, replaceable
        self._functions: dict[int, bytes | Loaded] = {}
        self._program = Program()
        self._wishes: dict[int, dict[str, Any]] = {}  # requirements of functions for the process, if any
        self._loading = threading.Lock()
        self._code: deque[Frame] = deque()  # local modules that could not be placed yet
        self._placing = threading.Lock()
        self.streams: dict[int, Stream] = {}
        self._crediting = threading.Lock()
        self._session: Session | None = None
        self._used = False  # whether a function has been loaded
        self.is_grouped = False

    def move(self, place: InstanceInfo) -> None:
        """Store the place for plugins that are set up from now on."""
        self._place = place

    def keep_function(self, frame: Frame) -> None:
        """Store a pickled function; it is loaded at its first call."""
        asked = decode(frame.buffers[0]) if frame.buffers else {}
        self._functions[frame.id] = bytes(frame.head)
        if asked:
            self._wishes[frame.id] = asked

    def forget(self, frame: Frame) -> None:
        """Drop a shared value or a function that no call needs at present; the client sends it again if one does."""
        if frame.head:
            shared.values.forget(bytes(frame.head))
        else:
            self._functions.pop(frame.id, None)
            self._wishes.pop(frame.id, None)

    def keep_code(self, frame: Frame) -> None:
        """Write local modules to disk. If that fails, calls of new functions try again and report the error."""
        self._code.append(frame)
        with suppress(OSError):
            self._place_code()

    def wake(self, call: int, items: int = 0, *, stop: bool = False) -> Slot | None:
        """Allow a stream to send further items, or stop it; if it waits, return the slot that must `resume` it."""
        with self._crediting:
            if (stream := self.streams.get(call)) is None:
                return None
            stream.credit += items
            stream.stopped |= stop
            waited, stream.waits = stream.waits, False
            return stream.slot if waited else None

    def setup(self, frame: Frame) -> Frame:
        """Set the pool's secrets and enter its plugins in this process; return READY or ERROR."""
        secrets = decode(frame.head)
        masking.use(secrets.values())
        os.environ.update(secrets)  # before the plugins: loading them may import user modules
        try:
            self.close()
            self._place_code()
            if frame.buffers:
                data, *buffers = frame.buffers
                self._program.enter({})
                self._session = session = payload.loads(data, buffers)(self._place)
                self.is_grouped |= session.collective and self._place.total_workers > 1
            end_child()
        except BaseException as error:  # any failure of a user's plugin is reported; none ends the worker
            end_child(error)
            return Frame(Kind.ERROR, frame.id, RESULT_HEAD.pack(0.0) + payload.dump_exception(error, masking.conceal))
        return Frame(Kind.READY, frame.id)

    def close(self) -> None:
        """Exit the plugins, in reverse order."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def run(self, frame: Frame, slot: Slot, send: Send) -> Frame | None:
        """Run a call and return its final frame, or None if it is a stream that waits for its reader.

        Only an interrupt propagates as an exception.
        """
        number, flags = CALL_HEAD.unpack_from(frame.head)
        everywhere = bool(flags & EVERYWHERE)
        if number in self._wishes and (refusal := self._prepare(frame.id, self._wishes[number], everywhere=everywhere)):
            return refusal
        if flags & WANT_STARTED:
            with slot.shield():
                send(Frame(Kind.STARTED, frame.id))
        start = time.perf_counter()
        environment.begin_call(everywhere=everywhere)
        try:
            with task_output(frame.id):
                fn, program, names = self._function(number)
                program.enter(names)
                packed = memoryview(frame.head)[CALL_HEAD.size :]
                if flags & BATCH:
                    return self._run_batch(frame.id, fn, batch.loads(packed), slot, send)
                environment.prepare(fn)
                args, kwargs = payload.loads(packed, frame.buffers, what="An argument")
                if isinstance(frame.buffers, list):
                    frame.buffers.clear()  # the arguments own the memory now; the caller's frame must not keep it
                value = fn(*args, **kwargs)
                del args, kwargs
                if isinstance(value, types.CoroutineType):
                    value = run_coroutine(value)
                if isinstance(value, types.GeneratorType):
                    return self._stream(frame.id, value, slot, send)
                data, buffers = payload.dumps(value, what="The result")
                end_child()
            return Frame(Kind.RESULT, frame.id, RESULT_HEAD.pack(time.perf_counter() - start) + data, buffers)
        except Interrupted:
            raise
        except BaseException as error:  # user code may raise SystemExit and the like, which must not end the worker
            end_child(error)
            slot.broke_device = breaks_device(error)
            return failure(frame.id, error, start)
        finally:
            environment.end_call()

    def _run_batch(self, call: int, fn: Callable[..., Any], items: list[Any], slot: Slot, send: Send) -> Frame | None:
        """Run the calls of a batch in order until the time is up; return a frame with the results so far.

        The client sends the remaining items again.
        """
        start = time.perf_counter()
        results, size = list[Any](), 0
        for index, item in enumerate(items):
            try:
                environment.prepare(fn)
                value = fn(batch.value_of(item, "An argument"))
                if type(value) in _RUN_FURTHER:
                    if isinstance(value, types.CoroutineType):
                        value = run_coroutine(value)
                    elif index == 0:
                        return self._stream(call, value, slot, send)
                    else:
                        break  # earlier results are sent first: the item will come again, as the first of its call
                end_child()
                size += batch.add(results, value, "The result")
            except Interrupted:
                raise
            except BaseException as error:  # as for a single call
                end_child(error)
                slot.broke_device = breaks_device(error)
                return failure(call, error, start)._replace(buffers=[COUNT.pack(index)])
            finally:
                environment.end_call()
            if size >= payload.OUT_OF_BAND or time.perf_counter() - start >= _BATCH_S:
                break
        head = RESULT_HEAD.pack(time.perf_counter() - start) + batch.dumps(results)
        return Frame(Kind.RESULT, call, head, [COUNT.pack(len(results))])

    def _prepare(self, call: int, wishes: dict[str, Any], *, everywhere: bool) -> Frame | None:
        """Set the variables that a function requests; return the answer to its call if it is too late for that here."""
        self.is_grouped |= everywhere and wishes["collective"] and self._place.total_workers > 1
        why = environment.conflict(wishes["env"])
        if why is None:
            environment.apply(wishes["env"])
            return None
        if self._replaceable and self._used and not self.is_grouped and not self.streams:
            return Frame(Kind.STALE, call)
        asked = ", ".join(f"{name}={value}" for name, value in wishes["env"].items())
        remedy = (
            "A process that other calls run in, or whose rank is part of a group, is not replaced: use a pool for each."
            if self._used
            else "Nothing but the pool's plugins has run in it: they must not import what reads the variable."
        )
        return failure(call, PluginError(f"The function asks for {asked}, but {why}. {remedy}"), time.perf_counter())

    def _place_code(self) -> None:
        with self._placing:
            while self._code:
                place_modules(*payload.loads(self._code[0].head, self._code[0].buffers))
                self._code.popleft()

    def _function(self, number: int) -> Loaded:
        known = self._functions[number]
        if isinstance(known, Loaded):
            return known
        self._used = True
        with self._loading:
            known = self._functions[number]
            if not isinstance(known, Loaded):
                self._place_code()
                forget_replaced_modules()
                # calls that run at the same time may be of versions of a function with other globals
                program, names = self._program if self._replaceable else Program(), Names()
                program.enter(names)
                fn: Callable[..., Any] = payload.loads(known, (), what="The function")
                known = self._functions[number] = Loaded(
                    self._session.decorate(fn) if self._session else fn, program, names
                )
        return known

    def _stream(self, call: int, items: types.GeneratorType[Any, Any, Any], slot: Slot, send: Send) -> Frame | None:
        """Begin to send a generator's items; see `resume`."""
        self.streams[call] = Stream(slot, environment.hand_over(), self._steps(call, slot, items, send))
        return self.resume(call)

    def resume(self, call: int) -> Frame | None:
        """Send a stream's items as far as the client's credit allows; do nothing if it has ended.

        Returns:
            The frame with what the generator returns, or with its error; None if it waits for its reader.
        """
        stream = self.streams.get(call)
        if stream is None:
            return None
        try:
            stream.context.run(enter_again)
            if stream.stopped:
                stream.context.run(stream.steps.throw, Interrupted("the call was interrupted by the client"))
            else:
                stream.context.run(next, stream.steps)
        except StopIteration as end:
            last: Frame = end.value
            return last
        return None

    def drop_stream(self, call: int) -> None:
        """Close a stream, if this is one and it has not ended."""
        if (stream := self.streams.pop(call, None)) is not None:
            stream.context.run(stream.steps.close)

    def close_streams(self) -> None:
        """Close all streams that wait for their reader or their slot; the others are being interrupted."""
        for call, stream in tuple(self.streams.items()):
            if stream.slot.running != call:
                self.drop_stream(call)

    def _steps(self, call: int, slot: Slot, items: types.GeneratorType[Any, Any, Any], send: Send) -> Steps:
        """Run a generator to its end, and pause whenever it waits for its reader; return its final frame."""
        stream, ran_s, start = self.streams[call], 0.0, time.perf_counter()
        try:
            with task_output(call) as output:
                try:
                    with slot.shield():
                        send(Frame(Kind.STREAM, call))
                    while True:
                        with slot.shield(), self._crediting:
                            waits = stream.waits = stream.credit == 0
                            stream.credit -= not waits
                        if waits:
                            ran_s += time.perf_counter() - start
                            output.pause()
                            yield
                            output.resume()
                            start = time.perf_counter()
                            continue
                        try:
                            item = next(items)
                        except StopIteration as end:
                            returned = end.value
                            break
                        end_child()
                        data, buffers = payload.dumps(item, what="An item of the generator")
                        with slot.shield():
                            send(Frame(Kind.ITEM, call, data, buffers))
                finally:
                    self.streams.pop(call, None)
                    items.close()
                end_child()
                data, buffers = payload.dumps(returned, what="What the generator returned")
            ran_s += time.perf_counter() - start
            return Frame(Kind.END, call, RESULT_HEAD.pack(ran_s) + data, buffers)
        except Interrupted:
            raise
        except BaseException as error:  # as for other calls
            end_child(error)
            slot.broke_device = breaks_device(error)
            return failure(call, error, start)
        finally:
            environment.end_call()


def failure(call: int, error: BaseException, start: float) -> Frame:
    """Return the frame that carries an error to the client."""
    return Frame(
        Kind.ERROR,
        call,
        RESULT_HEAD.pack(time.perf_counter() - start) + payload.dump_exception(error, masking.conceal),
    )
