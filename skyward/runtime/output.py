"""Output of user code: each text is passed on by task, in whole lines, unless muted.

A worker's `sys.stdout` and `sys.stderr` are streams of this module. Task and muting are stored in the context of the
printing code, never in process-wide state, so that calls in threads of one worker do not mix. Only output of Python
code is handled: bytes that subprocesses, C code or NCCL write to descriptors 1 and 2 are neither muted nor assigned to
a task.

`@sky.stdout`, `@sky.stderr` and `@sky.silent` select the nodes of a pool that may print; they go below `@sky.compute`.
Muting is per call: it covers output while the call (or the generator's own body) runs, in its thread and in threads it
starts while it is the worker's only task.
"""

from __future__ import annotations

import codecs
import functools
import inspect
import io
import os
import sys
import threading
from collections.abc import Callable, Generator
from contextvars import ContextVar
from threading import get_ident
from types import GeneratorType
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple, ParamSpec, Protocol, Self, TextIO, TypeVar, cast

from skyward.errors import ConfigError
from skyward.model.instance import InstanceInfo
from skyward.runtime import masking

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

StreamName = Literal["stdout", "stderr"]
P = ParamSpec("P")
R = TypeVar("R")
Only = Literal["head"] | Callable[[InstanceInfo], bool]
LONGEST_PART = 64 * 1024  # characters of an unfinished line after which it is passed on
_DESCRIPTOR: dict[StreamName, int] = {"stdout": 1, "stderr": 2}
_NEW_DECODER = codecs.getincrementaldecoder("utf-8")


# decorators -----------------------------------------------------------------------------------------------------------


def stdout(*, only: Only) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let only some workers print to standard output; on the others the function's output is dropped.

    Args:
        only: "head" for the head only, or a predicate over `InstanceInfo`, evaluated at every call.

    Raises:
        ConfigError: `only` is neither.
    """
    return _only_on(_predicate(only, "stdout"), frozenset(("stdout",)))


def stderr(*, only: Only) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let only some workers print to standard error; see `stdout`."""
    return _only_on(_predicate(only, "stderr"), frozenset(("stderr",)))


def silent(fn: Callable[P, R]) -> Callable[P, R]:
    """Drop the function's output to standard output and standard error, on every node. Used without parentheses."""
    if not callable(fn):
        raise ConfigError(f"@sky.silent decorates a function and takes no arguments; found {fn!r}.")
    return _mutable(fn, _nowhere, frozenset(("stdout", "stderr")))


def _predicate(only: object, name: str) -> Callable[[InstanceInfo], bool]:
    if only == "head":
        return _on_head
    if callable(only):
        return only
    raise ConfigError(
        f'@sky.{name}(only=...) takes "head" or a function of InstanceInfo that returns a bool; found {only!r}.'
    )


def _on_head(info: InstanceInfo) -> bool:
    return info.is_head


def _nowhere(_info: InstanceInfo) -> bool:
    return False


def _only_on(
    may_print: Callable[[InstanceInfo], bool], streams: frozenset[StreamName]
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    def decorate(fn: Callable[P, R]) -> Callable[P, R]:
        return _mutable(fn, may_print, streams)

    return decorate


def _mutable(
    fn: Callable[P, R], may_print: Callable[[InstanceInfo], bool], streams: frozenset[StreamName]
) -> Callable[P, R]:
    if hasattr(fn, "local") and hasattr(fn, "fn"):  # a compute function: calling it runs nothing, so nothing is muted
        raise ConfigError(f"Output decorators go below @sky.compute, next to the function; found one on {fn!r}.")
    # The wrappers are sent to the workers by value: they may refer to functions of this module, but not to its state.
    if inspect.isgeneratorfunction(fn):

        @functools.wraps(fn)
        def generate(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            result = yield from call(fn, may_print, streams, args, kwargs)
            return result

        return generate  # type: ignore[return-value] # it is a generator function as fn is, which R cannot say

    @functools.wraps(fn)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        return call(fn, may_print, streams, args, kwargs)

    return run


def call(
    fn: Callable[..., R],
    may_print: Callable[[InstanceInfo], bool],
    streams: frozenset[StreamName],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> R:
    """Run `fn`, dropping its output if this worker may not print; outside a pool, as if it were not decorated."""
    info = InstanceInfo.current()
    if info is None or may_print(info):
        return fn(*args, **kwargs)
    with muted(streams):
        result = fn(*args, **kwargs)
    if isinstance(result, GeneratorType):
        return muted_steps(result, streams)  # type: ignore[return-value] # a generator replaces a generator
    return result


def muted_steps(body: Generator[Any, Any, Any], streams: frozenset[StreamName]) -> Generator[Any, Any, Any]:
    """Iterate over a generator, muted only while its own body runs."""
    try:
        while True:
            with muted(streams):
                try:
                    item = next(body)
                except StopIteration as end:
                    return end.value
            yield item
    finally:
        with muted(streams):
            body.close()


# the worker's streams -------------------------------------------------------------------------------------------------


class Sink(Protocol):
    """The destination of a worker's output. Called in the printing threads, many at once: it must not raise."""

    def write(self, task: int | None, stream: StreamName, text: str, /) -> None:
        """Pass on text printed by a task; task None is output of no task.

        The text is one or more whole lines; without a newline at its end it is a flushed or overlong part of a line.
        Empty text ends a task's output to a stream, if it contained a part of a line. Must not print.
        """
        ...


class _Task:
    """Unfinished output of a running task, and the number of its calls that are muted now."""

    __slots__ = ("begun", "decoders", "held", "id", "muted", "parts")

    def __init__(self, number: int | None) -> None:
        self.id = number
        self.parts: dict[tuple[StreamName, int], str] = {}  # by stream and thread: threads never share a line
        self.held: dict[tuple[StreamName, int], str] = {}  # text that may be the beginning of a secret
        self.decoders: dict[tuple[StreamName, int], codecs.IncrementalDecoder] = {}
        self.muted: dict[StreamName, int] = {"stdout": 0, "stderr": 0}
        self.begun: dict[StreamName, bool] = {}  # streams that were sent a part of a line: whether it is unfinished


class _Scope(NamedTuple):
    task: _Task | None
    muted: frozenset[StreamName]


_NOBODY = _Task(None)
_OUTSIDE = _Scope(None, frozenset())
_scope: ContextVar[_Scope] = ContextVar("skyward_output", default=_OUTSIDE)
_lock = threading.RLock()  # signal handlers and tracers print, too
_running: dict[int, _Task] = {}  # by thread: an entry left behind by an interrupt is replaced by the thread's next task
_lone = _NOBODY  # the running task if there is exactly one: threads started by user code have no context
_streams: dict[StreamName, TaskStream] = {}


def install(sink: Sink) -> Callable[[], None]:
    """Replace `sys.stdout` and `sys.stderr` by task streams; the returned function restores them.

    A process forked from this one (multiprocessing, data loaders) writes to its own descriptors; what was muted at the
    fork stays muted in it.
    """
    before = sys.stdout, sys.stderr
    _streams["stdout"], _streams["stderr"] = TaskStream("stdout", sink), TaskStream("stderr", sink)
    sys.stdout, sys.stderr = cast(TextIO, _streams["stdout"]), cast(TextIO, _streams["stderr"])

    def remove() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = before
        _streams.clear()

    return remove


class TaskStream(io.TextIOBase):
    """A text stream that passes text to a sink by task and in whole lines, and drops what is muted."""

    encoding = "utf-8"
    errors = "backslashreplace"
    mode = "w"
    line_buffering = True

    def __init__(self, stream: StreamName, sink: Sink) -> None:
        self._stream: StreamName = stream
        self._sink = sink
        self.name = f"<{stream}>"
        self.buffer: BinaryIO = cast(BinaryIO, _ByteSide(self, stream))

    def write(self, text: str, /) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        task, muted = _scope.get()
        if task is None:
            task = _lone
            if task.muted[self._stream]:
                return len(text)
        if self._stream in muted:
            return len(text)
        length, key = len(text), (self._stream, get_ident())
        if masking.current is not None:
            text, held = masking.current.split(task.held.pop(key, "") + text)
            if held:
                task.held[key] = held
        self._take(task, key, text)
        return length

    def _take(self, task: _Task, key: tuple[StreamName, int], text: str) -> None:
        """Store a string at once, and pass on its whole lines."""
        if not text:
            return
        part = task.parts.pop(key, "")
        end = text.rfind("\n") + 1
        if end:
            self._sink.write(task.id, self._stream, part + text[:end])
            if task.begun or "\r" in part or "\r" in text:  # the client shows the final state of a progress line
                task.begun[self._stream] = False
            part = text[end:]
        else:
            part += text
        if len(part) >= LONGEST_PART:
            self._sink.write(task.id, self._stream, part)
            task.begun[self._stream] = True
        elif part:
            while task.parts.setdefault(key, part) is not part:  # code that has interrupted this one began a line, too
                part += task.parts.pop(key, "")

    def release(self, task: _Task, key: tuple[StreamName, int]) -> None:
        """Pass on text that was held back, as it is not the beginning of a secret or nothing follows."""
        self._take(task, key, masking.conceal(task.held.pop(key, "")))

    def flush(self) -> None:
        task = _scope.get().task or _lone
        self.pass_on(task, (self._stream, get_ident()))

    def pass_on(self, task: _Task, key: tuple[StreamName, int]) -> None:
        """Send an unfinished line."""
        if part := task.parts.pop(key, ""):
            self._sink.write(task.id, self._stream, part)
            task.begun[self._stream] = True

    def end(self, task: _Task) -> None:
        """Finish a task's output: end the line it has begun, and report the end of output that was sent in parts."""
        for key in [key for key in task.parts if key[0] == self._stream]:
            self.pass_on(task, key)
        if self._stream in task.begun:
            if task.begun[self._stream]:
                self._sink.write(task.id, self._stream, "\n")
            self._sink.write(task.id, self._stream, "")

    def become_descriptor(self) -> None:
        """Write to the process's own descriptor from now on: in a forked child the sink does not work."""
        self._sink = _DescriptorSink()

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        """Return the process's own descriptor, for subprocesses and the like, whose output is not muted."""
        return _DESCRIPTOR[self._stream]

    def reconfigure(self, **_settings: object) -> None:
        """Do nothing, for code that sets encoding or line buffering; this stream is line-buffered UTF-8."""

    def close(self) -> None:
        """Flush; a process's standard streams stay open."""
        self.flush()

    def __reduce__(self) -> tuple[Any, ...]:
        return _standard, (self._stream,)  # a value that refers to sys.stdout is unpickled with the other side's


class _ByteSide(io.BufferedIOBase):
    """The `.buffer` of a stream: accepts UTF-8, even if a character's bytes are split over two writes."""

    def __init__(self, text: TaskStream, stream: StreamName) -> None:
        self._text = text
        self._stream: StreamName = stream

    def write(self, data: ReadableBuffer, /) -> int:
        task = _scope.get().task or _lone
        key = (self._stream, get_ident())
        decoder = task.decoders.get(key) or task.decoders.setdefault(key, _NEW_DECODER("replace"))
        content = bytes(data)
        self._text.write(decoder.decode(content))
        return len(content)

    def flush(self) -> None:
        self._text.flush()

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._text.fileno()

    def close(self) -> None:
        self.flush()


class _DescriptorSink:
    """Writes directly to descriptors 1 and 2, without locks that may be held at a fork."""

    def write(self, _task: int | None, stream: StreamName, text: str, /) -> None:
        data = text.encode("utf-8", "replace")
        while data:
            data = data[os.write(_DESCRIPTOR[stream], data) :]


def _standard(stream: StreamName) -> TextIO:
    return sys.stdout if stream == "stdout" else sys.stderr


# tasks ----------------------------------------------------------------------------------------------------------------


class task_output:  # noqa: N801 - a context manager; a class, since contextlib's modify passing exceptions
    """Assign this thread's output to task `number`; at the end, unfinished lines are passed on.

    Threads started by user code have no context. Their output is assigned to this task, and muted with it, while no
    other task runs in the process; otherwise it is assigned to no task.
    """

    def __init__(self, number: int) -> None:
        self._task = _Task(number)

    def __enter__(self) -> Self:
        self.resume()
        self._token = _scope.set(_Scope(self._task, frozenset()))
        return self

    def pause(self) -> None:
        """Let the thread run other tasks until `resume`, in contexts of their own."""
        _note_running(None)

    def resume(self) -> None:
        """Let this thread run the task."""
        _note_running(self._task)

    def __exit__(self, *_: object) -> None:
        _scope.reset(self._token)
        self.pause()
        _finish(self._task)


class muted:  # noqa: N801 - as above: a frozen exception cannot pass a generator-based one (python/cpython#99856)
    """Drop the calling code's output to these streams; output of other threads and tasks is unaffected."""

    def __init__(self, streams: frozenset[StreamName]) -> None:
        self._streams = streams

    def __enter__(self) -> None:
        self._task, before = _scope.get()
        self._token = _scope.set(_Scope(self._task, before | self._streams))
        _count_muted(self._task, self._streams, 1)

    def __exit__(self, *_: object) -> None:
        _count_muted(self._task, self._streams, -1)
        _scope.reset(self._token)


def standard_error() -> tuple[int | None, bool]:
    """Return the task that the calling code belongs to, and whether its standard error is muted."""
    task, muted = _scope.get()
    if task is None:
        return _lone.id, "stderr" in muted or _lone.muted["stderr"] > 0
    return task.id, "stderr" in muted


def _count_muted(task: _Task | None, streams: frozenset[StreamName], change: int) -> None:
    if task is None:
        return
    with _lock:
        for stream in streams:
            task.muted[stream] += change


def _note_running(task: _Task | None) -> None:
    global _lone
    with _lock:
        if task is None:
            _running.pop(get_ident(), None)
        else:
            _running[get_ident()] = task
        _lone = next(iter(_running.values())) if len(_running) == 1 else _NOBODY


def _finish(task: _Task) -> None:
    for key, decoder in tuple(task.decoders.items()):
        if rest := decoder.decode(b"", final=True):  # bytes that never became a character
            task.parts[key] = task.parts.get(key, "") + rest
    for key in tuple(task.held):
        if stream := _streams.get(key[0]):
            stream.release(task, key)
    if task.parts or task.begun:
        for stream in _streams.values():
            stream.end(task)


def _after_fork() -> None:
    global _lock, _lone
    _lock = threading.RLock()  # another thread may have held it at the fork
    _lone = _scope.get().task or _lone
    _running.clear()  # these belong to the parent, as do its unfinished lines
    _lone.parts.clear()
    _lone.held.clear()
    for stream in _streams.values():
        stream.become_descriptor()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_after_fork)
