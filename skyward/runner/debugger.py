"""`pdb` in a call: the standard library's debugger, reading and writing the terminal of the client's program.

Loaded together with `pdb`. It traces only the thread of its call, stops only in user code, and ends with the call,
removing its breakpoints.
"""

from __future__ import annotations

import bdb
import pdb
import sys
from collections.abc import Iterable
from types import FrameType, ModuleType, TracebackType
from typing import Any, NoReturn, cast

from skyward.errors import TaskCancelledError
from skyward.runner.terminal import TerminalClient
from skyward.runner.threads import Interrupted

_OURS = "skyward"


def replace_in(module: ModuleType, terminal: TerminalClient) -> None:
    """Make every function of `pdb` that creates a debugger create one for the calling thread's call."""

    class CallDebugger(Debugger):
        def __init__(self, *_: Any, **settings: Any) -> None:
            super().__init__(terminal, skip=settings.get("skip"))

    def set_trace(*, header: str | None = None, commands: Iterable[str] | None = None) -> None:
        """Stop the calling function in the debugger; see `pdb.set_trace`."""
        frame = sys._getframe().f_back
        terminal.acquire("breakpoint()", frame)
        debugger = CallDebugger()
        if header is not None:
            debugger.message(header)
        debugger.set_trace(frame, **({} if commands is None else {"commands": commands}))

    module.Pdb, module.set_trace = CallDebugger, set_trace  # type: ignore[attr-defined]


class Debugger(pdb.Pdb):
    """The debugger of one call."""

    def __init__(self, terminal: TerminalClient, skip: Iterable[str] | None = None) -> None:
        self._terminal = terminal
        self._call = terminal.acquire("breakpoint()", _first_of_users(sys._getframe()))
        self._input = _Input(terminal, self._call)
        super().__init__(
            stdin=cast(Any, self._input),
            stdout=cast(Any, _Output(terminal, self._call)),
            skip=[*(skip or ()), _OURS, f"{_OURS}.*"],
            nosigint=True,  # Ctrl-C arrives as an answer
        )
        terminal.used[self._call] = self
        self._prompts = False  # whether commands are being read or executed

    def cmdloop(self, intro: Any = None) -> None:
        self._prompts = True
        try:
            super().cmdloop(intro)
        finally:
            self._prompts = False

    def interaction(self, frame: FrameType | None, tb_or_exc: TracebackType | BaseException | None, *rest: Any) -> None:
        self._terminal.acquire("breakpoint()", frame)  # it may have been released since the last stop
        super().interaction(frame, cast(Any, tb_or_exc), *rest)

    def trace_dispatch(self, frame: FrameType, event: str, arg: Any) -> Any:
        try:
            return super().trace_dispatch(frame, event, arg)
        except bdb.BdbQuit:
            self._raise_end(frame)

    def _raise_end(self, frame: FrameType) -> NoReturn:
        self.leave()
        if self._input.interrupt is not None:
            raise self._input.interrupt from None
        raise TaskCancelledError(
            f"The call was ended from its debugger (q or Ctrl-D) in {frame.f_code.co_qualname}(), line "
            f"{frame.f_lineno} of {frame.f_code.co_filename}."
        ) from None

    def dispatch_return(self, frame: FrameType, arg: Any) -> Any:
        result = super().dispatch_return(frame, arg)
        if frame.f_back is None or _is_ours(frame.f_back):  # stepping from the call's last line leaves the call
            self.set_continue()
            self._terminal.release(self._call)
        return result

    def get_stack(self, f: FrameType | None, t: TracebackType | None) -> tuple[list[tuple[FrameType, int]], int]:
        """Return the frames that can be inspected: those of the call."""
        stack, index = super().get_stack(f, t)
        ours = max((number for number, (frame, _) in enumerate(stack[:index]) if _is_ours(frame)), default=-1)
        return stack[ours + 1 :], index - ours - 1

    def do_continue(self, arg: str) -> bool | None:
        """Continue the call and release the terminal."""
        self._terminal.release(self._call)
        return super().do_continue(arg)

    do_c = do_cont = do_continue

    def do_quit(self, arg: str) -> bool | None:  # noqa: ARG002 - pdb's signature
        """End the call."""
        self._user_requested_quit = True
        self.set_quit()
        self._terminal.release(self._call)
        return True

    do_q = do_exit = do_quit

    def do_EOF(self, arg: str) -> bool | None:  # noqa: N802 - pdb's name
        """End the call (Ctrl-D)."""
        self.message("")
        return self.do_quit(arg)

    def do_run(self, arg: str) -> bool | None:  # noqa: ARG002
        """Print an error: a call is started by its program."""
        self.error("a call cannot be started again from its debugger; q ends it")
        return None

    do_restart = do_run

    def stop(self, frame: FrameType) -> None:
        """Handle Ctrl-C: raise KeyboardInterrupt while commands are read or run, else stop in the call."""
        if self._prompts:
            raise KeyboardInterrupt
        inner = _first_of_users(frame)
        if inner is not None and self._call in self._terminal.held:
            self.message("\nInterrupted in the midst of a line, which c, n and s finish.")
            self.interaction(inner, None)
            if self.quitting:
                self._raise_end(inner)

    def leave(self) -> None:
        """Stop tracing and remove the breakpoints."""
        sys.settrace(None)
        self.clear_all_breaks()


class _Output:
    """The stream that a debugger writes to."""

    encoding = "utf-8"

    def __init__(self, terminal: TerminalClient, call: int) -> None:
        self._terminal, self._call = terminal, call

    def write(self, text: str) -> int:
        self._terminal.write(self._call, text)
        return len(text)

    def flush(self) -> None:
        """Do nothing: no text is buffered."""

    def isatty(self) -> bool:
        """Return False, so that plain text without colours is written."""
        return False


class _Input:
    """The stream that a debugger reads its commands from.

    Attributes:
        interrupt: the exception with which the client stopped the call. `pdb` would take it for Ctrl-C and continue.
    """

    def __init__(self, terminal: TerminalClient, call: int) -> None:
        self._terminal, self._call = terminal, call
        self.interrupt: Interrupted | None = None

    def readline(self) -> str:
        try:
            return self._terminal.read_line(self._call)
        except Interrupted as interrupt:
            self.interrupt = interrupt
            return "quit\n"


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == _OURS


def _first_of_users(frame: FrameType | None) -> FrameType | None:
    while frame is not None and (_is_ours(frame) or frame.f_globals.get("__name__") == "pdb"):
        frame = frame.f_back
    return frame
