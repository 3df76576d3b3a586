"""Access to the terminal of the client's program for calls: it serves `input()` and the debugger in a call.

A call first requests the terminal and waits for it; only one call has it at a time. If there is no terminal, the client
answers so at once, and the call fails with an error message instead of an end of file. The waiting thread sleeps; the
thread that reads the socket passes the answer to it.
"""

from __future__ import annotations

import builtins
import itertools
import os
import sys
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import FrameType, ModuleType
from typing import Any, Protocol

from skyward.errors import TerminalError
from skyward.model.instance import SETUP
from skyward.system import threading
from skyward.wire.frames import Frame
from skyward.wire.messages import Kind, decode, encode

_LOOK_S = 0.1  # an interrupt reaches a slot thread other than the main one between two waits
_ADVICE = {
    "input()": "Give the call what it asks for as an argument.",
    "breakpoint()": (
        "Run the program in a terminal, or the call in the program's own process by sky.debug(...); "
        'PYTHONBREAKPOINT="0" in the pool\'s env= turns breakpoints off.'
    ),
}


class Tracer(Protocol):
    """The debugger of a call."""

    def stop(self, frame: FrameType) -> None:
        """Stop inside the call, in its own thread, and let the user inspect it."""

    def leave(self) -> None:
        """Stop tracing."""


class TerminalClient:
    """Terminal access for the calls of one worker process.

    Args:
        send: sends a frame to the client; returns whether an answer can come.
        running: as in `exchange._Requests`.
        shield: defers interrupts of the calling thread's call while its block runs.

    Attributes:
        held: the calls that have the terminal; their output is shown there, too.
        used: the calls that have requested it, each with its debugger, None while it has none.
    """

    def __init__(
        self,
        send: Callable[[Frame], bool],
        running: Callable[[], tuple[int | None, Collection[int]]],
        shield: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._send, self._running, self._shield = send, running, shield
        self._process = os.getpid()
        self._questions = itertools.count(1)
        self._waits: dict[int, _Wait] = {}
        self._unread: dict[int, _Wait] = {}  # by call: the requested line that has not been read yet
        self.held: set[int] = set()
        self.used: dict[int, Tracer | None] = {}

    def acquire(self, what: str, frame: FrameType | None) -> int:
        """Wait until the calling thread's call has the terminal, and return the call.

        Raises:
            TerminalError: there is no terminal, or the calling thread belongs to no call.
        """
        where = _where(frame)
        if os.getpid() != self._process:
            raise TerminalError(f"{what} in {where}: the process was forked from a worker, which alone has a terminal.")
        call, _ = self._running()
        if call is None or call == SETUP:
            found = "plugins are set up" if call == SETUP else "the thread belongs to none of the calls that run"
            raise TerminalError(f"{what} in {where} is possible in the own thread of a call only; here {found}.")
        if call not in self.held:
            program = _of_program(frame)
            question = {"what": what, "where": where, "wants_source": program is not None}
            wait = self._expect()
            try:
                self._ask(wait, Kind.TERMINAL, call, question)
                answer = self._finish(wait)
            except BaseException:  # the call is stopped while another has the terminal
                self._waits.pop(wait.number, None)
                self._send(Frame(Kind.TERMINAL_LEFT, call))
                raise
            if why := answer.get("error"):
                raise TerminalError(
                    f"{what} in {where} needs the terminal of the program that opened the pool, and there is none: "
                    f"{why} {_ADVICE.get(what, '')}".rstrip()
                )
            if program is not None and (source := answer.get("source")):
                _remember(program, source)
            self.used.setdefault(call)
            self.held.add(call)
        return call

    def write(self, call: int, text: str) -> None:
        """Show text in the terminal that a call has."""
        self._send(Frame(Kind.TERMINAL_TEXT, call, text.encode("utf-8", "replace")))

    def read_line(self, call: int) -> str:
        """Return a line typed in the terminal, including its line end; "" for Ctrl-D.

        Raises:
            KeyboardInterrupt: Ctrl-C was typed.
            TerminalError: the client has disconnected.
        """
        with self._shield():  # Ctrl-C takes effect before the line is requested or after that is recorded
            wait = self._unread.get(call)
            if wait is None:
                wait = self._unread[call] = self._expect()
                self._ask(wait, Kind.READ_LINE, call, {})
        answer = self._finish(wait)  # after Ctrl-C the client is still reading this line, and must not be asked twice
        del self._unread[call]
        if why := answer.get("error"):
            raise TerminalError(f"The terminal that call {call} had is lost: {why}")
        if answer.get("interrupt"):
            raise KeyboardInterrupt
        return str(answer.get("line", ""))

    def release(self, call: int) -> None:
        """Release the terminal; do nothing if the call does not have it."""
        if call in self.held:
            self.held.discard(call)
            self._send(Frame(Kind.TERMINAL_LEFT, call))

    def end(self, call: int) -> None:
        """End a call's use of the debugger and the terminal; called in the thread that it ran in."""
        if call in self.used:
            tracer = self.used.pop(call)
            if (unread := self._unread.pop(call, None)) is not None:
                self._waits.pop(unread.number, None)
            if tracer is not None:
                tracer.leave()
            self.release(call)

    def take(self, frame: Frame) -> None:
        """Pass an answer to the thread that waits for it; do nothing if none waits any more."""
        document = decode(frame.head)
        if wait := self._waits.get(document["question"]):
            wait.end(document)

    def abandon(self, why: str) -> None:
        """Fail all pending requests, since no answer will come."""
        for wait in tuple(self._waits.values()):
            wait.end({"error": why})

    def _expect(self) -> _Wait:
        """Register a question that is about to be sent."""
        wait = _Wait(next(self._questions))
        self._waits[wait.number] = wait
        return wait

    def _ask(self, wait: _Wait, kind: Kind, call: int, document: dict[str, Any]) -> None:
        """Send the question."""
        if not self._send(Frame(kind, call, encode({"question": wait.number, **document}))):
            wait.end({"error": "the client is gone, or this worker is to end."})

    def _finish(self, wait: _Wait) -> dict[str, Any]:
        """Wait for the answer."""
        while not wait.done.wait(_LOOK_S):
            pass
        self._waits.pop(wait.number, None)
        return wait.answer


class _Wait:
    """A question that has been sent and not yet answered."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.done = threading.Event()
        self.answer: dict[str, Any] = {}

    def end(self, answer: dict[str, Any]) -> None:
        self.answer = answer
        self.done.set()


def install(terminal: TerminalClient) -> None:
    """Make `input()`, `breakpoint()` and `pdb` in this process use the client's terminal."""

    def ask(prompt: object = "", /) -> str:
        """Read a line from the terminal of the program that opened the pool; see `builtins.input`."""
        sys.stdout.flush()
        had = set(terminal.held)
        call = terminal.acquire("input()", sys._getframe().f_back)
        try:
            terminal.write(call, str(prompt))
            line = terminal.read_line(call)
        finally:
            if call not in had:  # unless the debugger had it, where the user typed this
                terminal.release(call)
        if not line:
            raise EOFError("end of input: Ctrl-D was typed where input() was to read a line")
        return line.removesuffix("\n")

    def adapt(module: ModuleType) -> None:
        from skyward.runner.debugger import replace_in

        replace_in(module, terminal)

    builtins.input = ask
    if "pdb" in sys.modules:
        adapt(sys.modules["pdb"])
    else:
        sys.meta_path.insert(0, _PdbFinder(adapt))


class _PdbFinder(MetaPathFinder):
    """Adapts `pdb` when it is imported: importing it in every worker would delay their start."""

    def __init__(self, adapt: Callable[[ModuleType], None]) -> None:
        self._adapt = adapt

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        if name != "pdb":
            return None
        spec = PathFinder.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _PdbLoader(spec.loader, self._adapt)
        return spec


class _PdbLoader(Loader):
    def __init__(self, loader: Loader, adapt: Callable[[ModuleType], None]) -> None:
        self._loader, self._adapt = loader, adapt

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._adapt(module)


def _of_program(frame: FrameType | None) -> str | None:
    """Return the file of the client's program, which is not on this node, if a function of it is in these frames."""
    while frame is not None:
        name = frame.f_code.co_filename
        if frame.f_globals.get("__name__") == "__main__" and not os.path.exists(name):  # noqa: PTH110 - a plain name
            return name
        frame = frame.f_back
    return None


def _remember(program: str, source: str) -> None:
    """Give the debugger the source lines of a file that is not on this node."""
    import linecache

    lines = source.splitlines(keepends=True)
    for name in (program, os.path.abspath(program)):  # noqa: PTH100 - as pdb does it
        linecache.cache[name] = len(source), None, lines, name


def _where(frame: FrameType | None) -> str:
    """Return a code location in readable form."""
    if frame is None:
        return "a call"
    return f"{frame.f_code.co_qualname}() ({os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno})"  # noqa: PTH119
