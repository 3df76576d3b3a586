"""Access of calls to this program's terminal, one at a time, for `input()` and the debugger.

A dedicated thread reads and writes, as long as any call uses the terminal or waits for it. Line editing is that of the
terminal. While a call uses the terminal, other output of its pool is buffered. `sky.debug` runs a call in this process,
with a debugger.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import GeneratorType
from typing import Any, TypeVar

from skyward._pool.console import Printer
from skyward._pool.display import this_cell
from skyward._pool.nodes.worker_client import WorkerClient
from skyward._pool.signals import uninterrupted
from skyward._pool.task import Task
from skyward.errors import ConfigError
from skyward.model.call import Call
from skyward.model.instance import only_node
from skyward.system import Empty, SimpleQueue, select, threading
from skyward.wire import payload
from skyward.wire.frames import Frame
from skyward.wire.messages import Kind, decode, encode

_CHUNK = 64 * 1024
_DEBUGGER = "breakpoint()"
_SOURCE_CHARS = 1_000_000
R = TypeVar("R")


@dataclass(eq=False, slots=True)
class _Use:
    """A call that uses the terminal or waits for it.

    Attributes:
        question: number of the request that the call waits for (the terminal first, then lines); 0 for none.
        wants_source: whether the debugged function is in this program's file, which its node does not have.
    """

    worker: WorkerClient
    task: Task
    printer: Printer
    what: str
    where: str
    question: int
    wants_source: bool
    granted: bool = False
    texts: deque[str] = field(default_factory=deque)

    @property
    def is_debugger(self) -> bool:
        return self.what == _DEBUGGER

    @property
    def name(self) -> str:
        return f"[{self.task.place}, call {self.task.id}]"

    def answer(self, **document: Any) -> None:
        """Answer the question."""
        number, self.question = self.question, 0
        _post(self.worker, Frame(Kind.ANSWER, self.task.id, encode({"question": number, **document})))


class Terminal:
    """The terminal of this process."""

    def __init__(self) -> None:
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()  # for the thread, which owns the attributes below
        self._uses: deque[_Use] = deque()  # the first one uses the terminal
        self._typed = b""  # an unfinished line
        self._interrupts = 0
        self._lock = threading.Lock()  # guards the attributes below
        self._thread: threading.Thread | None = None
        self._wake_read, self._wake_write = -1, -1

    def take(self, printer: Printer, worker: WorkerClient, task: Task, frame: Frame) -> None:
        """Handle a call's message about the terminal; called by the thread that reads from its worker."""
        match frame.kind:
            case Kind.TERMINAL:
                document = decode(frame.head)
                use = _Use(
                    worker,
                    task,
                    printer,
                    document["what"],
                    document["where"],
                    document["question"],
                    document["wants_source"],
                )
                if why := missing():
                    use.answer(error=why)
                else:
                    self._do(partial(self._uses.append, use))
            case Kind.TERMINAL_TEXT:
                self._do(partial(self._show, worker, task.id, str(memoryview(frame.head), "utf-8", "replace")))
            case Kind.READ_LINE:
                self._do(partial(self._expect, worker, task.id, decode(frame.head)["question"]))
            case _:
                self._holder_leaves(worker, task.id)
                self._do(partial(self._end, worker, task.id))

    def forget(self, worker: WorkerClient) -> None:
        """End the use of the terminal by calls of a lost worker."""
        if self._thread is not None:
            self._do(partial(self._end, worker, None))

    def _holder_leaves(self, worker: WorkerClient, call: int) -> None:
        """Make this call's result, which may follow immediately, wait until buffered output is printed."""
        try:
            use = self._uses[0]
        except IndexError:
            return
        if use.granted and use.worker is worker and use.task.id == call:
            use.printer.about_to_release()

    def _do(self, order: Callable[[], None]) -> None:
        with self._lock:
            self._inbox.put(order)
            if self._wake_write < 0:
                self._wake_read, self._wake_write = os.pipe()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="skyward-terminal", daemon=True)
                self._thread.start()
        os.write(self._wake_write, b".")

    # in the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._heed()
            if self._uses:
                use = self._uses[0]
                self._serve(use)
                self._wait(use)
                continue
            with self._lock:
                if self._inbox.empty():
                    self._thread = None
                    return

    def _heed(self) -> None:
        """Process the queued messages of calls."""
        while True:
            try:
                order = self._inbox.get_nowait()
            except Empty:
                return
            order()

    def _find(self, worker: WorkerClient, call: int) -> _Use | None:
        return next((use for use in self._uses if use.worker is worker and use.task.id == call), None)

    def _show(self, worker: WorkerClient, call: int, text: str) -> None:
        if use := self._find(worker, call):
            use.texts.append(text)

    def _expect(self, worker: WorkerClient, call: int, question: int) -> None:
        if use := self._find(worker, call):
            use.question = question

    def _end(self, worker: WorkerClient, call: int | None) -> None:
        """End the use of the terminal by a call, or by all calls of a worker if `call` is None."""
        for use in [use for use in self._uses if use.worker is worker and call in {None, use.task.id}]:
            self._uses.remove(use)
            if use.granted:
                uninterrupted.divert(None)
                _write("".join(use.texts) + (f"\n{use.name} was stopped.\n" if call is None or use.question else ""))
                use.printer.release()

    def _serve(self, use: _Use) -> None:
        """Grant the terminal to a call if that is new, then print its texts and pass on interrupts."""
        if not use.granted:
            use.granted = True
            use.printer.hold()
            self._typed, self._interrupts = b"", 0
            if use.is_debugger:
                uninterrupted.divert(self._on_interrupt)
                _write(
                    f"{use.name} {use.where} is at a breakpoint.\n"
                    "What else the pool prints waits until it goes on (c) or ends (q).\n"
                )
            else:
                _write(f"{use.name} ")
            use.answer(**({"source": _source()} if use.wants_source else {}))
        while use.texts:
            _write(use.texts.popleft())
        if self._interrupts:
            self._interrupts, self._typed = 0, b""
            if use.question:
                _write("\n")
                use.answer(interrupt=True)
            else:
                _post(use.worker, Frame(Kind.BREAK_IN, use.task.id))

    def _wait(self, use: _Use) -> None:
        """Wait for a message or for typed text."""
        sources = [self._wake_read, *([sys.stdin.fileno()] if use.question else [])]
        ready, _, _ = select.select(sources, [], [])
        if self._wake_read in ready:
            os.read(self._wake_read, _CHUNK)
        elif ready:
            self._read(use)

    def _read(self, use: _Use) -> None:
        try:
            data = os.read(sys.stdin.fileno(), _CHUNK)
        except OSError:
            data = b""  # the terminal is gone; treat it as end of file
        self._typed += data
        if data and not self._typed.endswith(b"\n"):
            return  # Ctrl-D within a line
        line, self._typed = self._typed.decode(sys.stdin.encoding or "utf-8", "replace"), b""
        use.answer(**({"line": line} if line else {"end": True}))

    def _on_interrupt(self) -> None:
        """Handle Ctrl-C while a call is being debugged; runs in the main thread at any point, so takes no lock."""
        self._interrupts += 1
        os.write(self._wake_write, b".")

    def _start_afresh(self) -> None:
        """Reset the state in a forked process; calls and thread belong to the parent."""
        self.__init__()  # type: ignore[misc]


def missing() -> str:
    """Return why this process has no interactive terminal, as a sentence; "" if it has one."""
    if this_cell() is not None:
        return "it is a notebook."
    for stream, name in ((sys.stdin, "standard input"), (sys.stdout, "standard output")):
        try:
            if not stream.isatty():
                return f"its {name} is not a terminal."
            if name == "standard input" and os.tcgetpgrp(stream.fileno()) != os.getpgrp():
                return "it runs in the background."
        except (AttributeError, OSError, ValueError):
            return f"its {name} is closed or cannot be used."
    return ""


def _source() -> str:
    """Return the text of this program's file, for the debugger to show; "" if there is none."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        return Path(path).read_text(errors="replace")[:_SOURCE_CHARS] if path else ""
    except OSError:
        return ""


def _post(worker: WorkerClient, frame: Frame) -> None:
    worker.connection.enqueue(frame, urgent=True)
    worker.flush()


def _write(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except (OSError, ValueError):
        pass  # the program's own output is closed


terminal = Terminal()
os.register_at_fork(after_in_child=terminal._start_afresh)


def debug(call: Call[R]) -> R:
    """Run a call in this process, as `sky.debug(train(10))`; if it fails, examine it in the debugger `pdb`.

    The function gets copies of its arguments, as on a node, and runs as if on the only node of a pool. Plugins are not
    entered, and time limits do not apply. With a terminal, `pdb` opens at an exception before it is raised here;
    without one, it is raised immediately.

    Args:
        call: a call of a compute function. It need not have failed before.

    Returns:
        The function's result; for a generator function, the list of its items.

    Raises:
        The exception that the function raises.
        ConfigError: the argument is not a single call.
        SerializationError: the arguments cannot be pickled, so they could not be sent to a node either.
    """
    if not all(hasattr(call, name) for name in ("fn", "args", "kwargs")):
        raise ConfigError(f"sky.debug() takes one call, as in sky.debug(train(10)); found {call!r}.")
    name = getattr(call.fn, "__name__", "a function")
    data, buffers = payload.dumps_arguments(call.args, call.kwargs, of=name)
    args, kwargs = payload.loads(data, buffers, what=f"An argument of {name}()")
    with only_node("debug"):
        try:
            value = call.fn(*args, **kwargs)
            return list(value) if isinstance(value, GeneratorType) else value  # type: ignore[return-value]
        except Exception as error:
            _look_at(error)
            raise


def _look_at(error: Exception) -> None:
    """Open pdb where an exception was raised, if there is an interactive terminal."""
    if missing() or error.__traceback__ is None:
        return
    import pdb
    import traceback

    traceback.print_exception(error)
    sys.stderr.flush()
    pdb.post_mortem(error.__traceback__.tb_next or error.__traceback__)
