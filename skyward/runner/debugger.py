"""`breakpoint()` in a call: the standard library's `pdb` on a socket of the node, to which `skyward debug` connects.

It traces only the thread of its call, stops only in user code, and ends with the call, removing its breakpoints.
"""

from __future__ import annotations

import bdb
import json
import os
import pdb
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn, cast

from skyward.errors import TaskCancelledError
from skyward.model.instance import ENV_VAR
from skyward.runner.threads import Interrupted
from skyward.system import select, socket, threading

_OURS = "skyward"
_LOOK_S = 0.1  # an interrupt reaches a slot thread other than the main one between two waits
_running: dict[int, Debugger] = {}  # by thread


def sockets_in(environment: Mapping[str, str]) -> Path:
    """Return the directory of the debuggers' sockets on a node with this environment; only its user can enter it."""
    return Path(environment.get("TMPDIR") or tempfile.gettempdir()) / f"skyward-debug-{os.getuid()}"


def stop(frame: FrameType, call: int | None) -> None:
    """Stop in this frame at its next line, until somebody has connected and lets it continue."""
    debugger = _running.get(threading.get_ident())
    if debugger is None:
        debugger = _running[threading.get_ident()] = Debugger(_Stream(call))
    debugger.set_trace(frame)


def end() -> None:
    """End the debugger of this thread's call; do nothing if it has none."""
    if (debugger := _running.pop(threading.get_ident(), None)) is not None:
        debugger.leave()


class Debugger(pdb.Pdb):
    """The debugger of one call."""

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream
        super().__init__(
            stdin=cast(Any, stream), stdout=cast(Any, stream), skip=[_OURS, f"{_OURS}.*"], nosigint=True, readrc=False
        )

    def interaction(self, frame: FrameType | None, tb_or_exc: TracebackType | BaseException | None, *rest: Any) -> None:
        self._stream.open(frame)
        super().interaction(frame, cast(Any, tb_or_exc), *rest)

    def trace_dispatch(self, frame: FrameType, event: str, arg: Any) -> Any:
        try:
            return super().trace_dispatch(frame, event, arg)
        except bdb.BdbQuit:
            self._raise_end(frame)

    def _raise_end(self, frame: FrameType) -> NoReturn:
        self.leave()
        if self._stream.interrupt is not None:
            raise self._stream.interrupt from None
        raise TaskCancelledError(
            f"The call was ended from its debugger (q) in {frame.f_code.co_qualname}(), line "
            f"{frame.f_lineno} of {frame.f_code.co_filename}."
        ) from None

    def dispatch_return(self, frame: FrameType, arg: Any) -> Any:
        result = super().dispatch_return(frame, arg)
        if frame.f_back is None or _is_ours(frame.f_back):  # stepping from the call's last line leaves the call
            self.set_continue()
            self._stream.close()
        return result

    def get_stack(self, f: FrameType | None, t: TracebackType | None) -> tuple[list[tuple[FrameType, int]], int]:
        """Return the frames that can be inspected: those of the call."""
        stack, index = super().get_stack(f, t)
        ours = max((number for number, (frame, _) in enumerate(stack[:index]) if _is_ours(frame)), default=-1)
        return stack[ours + 1 :], index - ours - 1

    def do_continue(self, arg: str) -> bool | None:
        """Continue the call, and end the connection."""
        self._stream.close()
        return super().do_continue(arg)

    do_c = do_cont = do_continue

    def do_quit(self, arg: str) -> bool | None:  # noqa: ARG002 - pdb's signature
        """End the call."""
        self._user_requested_quit = True
        self.set_quit()
        return True

    do_q = do_exit = do_quit

    def do_EOF(self, arg: str) -> bool | None:  # noqa: ARG002, N802 - pdb's name
        """Wait for the next connection."""
        frame = self.curframe
        assert frame
        self._stream.close()
        self._stream.open(frame)
        # pdb's own line would read the variables again, and so lose what was assigned to them
        self.message(f"> {frame.f_code.co_filename}({frame.f_lineno}){frame.f_code.co_name}()")
        return None

    def leave(self) -> None:
        """Stop tracing, remove the breakpoints and end the connection."""
        sys.settrace(None)
        self.clear_all_breaks()
        self._stream.close()


class _Stream:
    """The stream of a debugger: the connection of `skyward debug`.

    Attributes:
        interrupt: the exception with which the client stopped the call. `pdb` would take it for Ctrl-C and continue.
    """

    encoding = "utf-8"

    def __init__(self, call: int | None) -> None:
        self._path = sockets_in(os.environ) / f"{os.getpid()}-{call or 0}"
        self._sock: socket.socket | None = None
        self._data = b""
        self.interrupt: Interrupted | None = None

    def open(self, frame: FrameType | None) -> None:
        """Wait for a connection, unless there is one."""
        if self._sock is not None:
            return
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                listener.bind(str(self._path))
                listener.listen(1)
                place = json.loads(os.environ.get(ENV_VAR, "{}"))
                where = f"{frame.f_code.co_qualname}() ({frame.f_code.co_filename}:{frame.f_lineno})" if frame else ""
                way = f"skyward debug {place.get('job_id')} {place.get('node')}"
                sys.stdout.write(f"breakpoint in {where}: {way}\n")
                sys.stdout.flush()
                while not select.select([listener], [], [], _LOOK_S)[0]:
                    pass
                self._sock, _ = listener.accept()
        finally:
            self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """End the connection."""
        sock, self._sock, self._data = self._sock, None, b""
        if sock is not None:
            sock.close()

    def readline(self) -> str:
        """Return the next line; "" at the end of the connection, "quit" if the call is stopped."""
        try:
            while self._sock is not None and b"\n" not in self._data:
                if not select.select([self._sock], [], [], _LOOK_S)[0]:
                    continue
                data = self._sock.recv(1 << 16)
                self._data += data
                if not data:
                    return ""
        except OSError:
            return ""
        except Interrupted as interrupt:
            self.interrupt = interrupt
            return "quit\n"
        line, _, self._data = self._data.partition(b"\n")
        return f"{line.decode(errors='replace')}\n"

    def write(self, text: str) -> int:
        if self._sock is not None:
            with suppress(OSError):  # the next read finds that it has ended
                self._sock.sendall(text.encode("utf-8", "replace"))
        return len(text)

    def flush(self) -> None:
        """Do nothing: no text is buffered."""

    def isatty(self) -> bool:
        """Return False, so that plain text without colours is written."""
        return False


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == _OURS
