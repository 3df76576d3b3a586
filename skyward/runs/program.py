"""Runs one program as a child process: its output is recorded and, in the foreground, also to the terminal.

In the foreground it has this process's standard input and process group, so that job control, `input()` and Ctrl-C work
as for any program. An output that is a terminal stays one: the program writes to a pseudo terminal of the same size,
whose bytes are recorded and written to the real one. If both outputs are terminals they share one, since on a terminal
their order counts; the journal then has all of it as "out".
"""

from __future__ import annotations

import codecs
import ctypes
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from skyward.errors import ConfigError
from skyward.records import journal
from skyward.records.run import watch_down

_PASSED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_TYPED = (signal.SIGINT, signal.SIGQUIT)  # keys of a terminal
_OUTPUT_BYTES = 1 << 30  # kept of a program's output; the oldest is removed first
_CHUNK = 64 * 1024
_SMALL = 4096  # bytes; smaller reads pause for _GATHER_S to collect more: unbuffered programs print single characters
_GATHER_S = 0.01
_SILENCE_S = 0.5  # after the program's end: silence after which its remaining children are not read any longer
_AFTER_S = 5.0  # the longest time that they are read
PR_SET_PDEATHSIG = 1


def run_program(
    command: Sequence[str],
    folder: Path,
    *,
    directory: Path,
    environment: Mapping[str, str],
    foreground: bool,
    on_start: Callable[[], None],
) -> tuple[int, str | None]:
    """Run a program to its end, passing on signals that this process receives. Main thread only.

    It is ended if the run is to end: with its process group if it runs in the background.

    Args:
        command: the program with its arguments.
        folder: the run's directory, whose journal receives the output.
        directory: that it runs in.
        environment: all its variables.
        foreground: use this process's input and terminal, and forward the output.
        on_start: called once it runs.

    Returns:
        its exit status, 128 plus the signal's number if a signal ended it, as in shells; and what ended it, for people,
        if that was not itself.

    Raises:
        ConfigError: it cannot be started.
    """
    outputs = [_Output("out", folder, 1 if foreground else None)]
    is_shared = foreground and os.isatty(1) and os.isatty(2)  # on one terminal the order counts: both are "out"
    if not is_shared:
        outputs.append(_Output("err", folder, 2 if foreground else None))
    process = _spawn(command, [each.given for each in outputs], directory, environment, foreground)
    has_ended = _terminal_end() if foreground else lambda: False

    def pass_on(number: int, _: object) -> None:
        if number == signal.SIGWINCH:
            for each in outputs:
                each.resize()
        is_typed = number in _TYPED and foreground and os.isatty(0)
        if not is_typed and not (number == signal.SIGHUP and has_ended()):  # else the program has been sent it as well
            process.send_signal(number)

    for number in (*_PASSED, signal.SIGWINCH):
        if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
            signal.signal(number, pass_on)
    watch_down(folder, partial(_end, process, foreground))
    on_start()
    for output in outputs:
        output.thread.start()
    _wait(process)
    until = time.monotonic() + _AFTER_S
    for output in outputs:
        output.until = until
    for output in outputs:
        output.thread.join()
    status = process.returncode
    reason = next(filter(None, (each.problem for each in outputs)), None)
    if status >= 0:
        return status, reason
    return 128 - status, reason or f"ended by {signal.Signals(-status).name}"


def _wait(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of the program, while signals are handled: not even `waitpid` notices one just before it."""
    signal.signal(signal.SIGCHLD, lambda *_: None)
    news, told = socket.socketpair()
    told.setblocking(False)
    signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
    while process.poll() is None:
        news.recv(_SMALL)


def _terminal_end() -> Callable[[], bool]:
    """Return a function that says whether the terminal was closed, of which a shell has told each of its processes."""

    def has_terminal() -> bool:
        try:
            os.close(os.open(os.ctermid(), os.O_RDONLY | os.O_NOCTTY))
        except OSError:
            return False
        return True

    has_shell = has_terminal() and os.getsid(0) != os.getpid()  # without one, this process alone is told
    return lambda: has_shell and not has_terminal()


def _spawn(
    command: Sequence[str], given: Sequence[int], directory: Path, environment: Mapping[str, str], foreground: bool
) -> subprocess.Popen[bytes]:
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def prepare() -> None:
        if libc is not None:  # if this process is killed, the program is asked to end
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    try:
        return subprocess.Popen(
            command,
            cwd=directory,
            env=environment,
            stdin=None if foreground else subprocess.DEVNULL,
            stdout=given[0],
            stderr=given[-1],
            preexec_fn=prepare,  # noqa: PLW1509 - no other thread runs yet
            process_group=None if foreground else 0,
        )
    except OSError as error:
        raise ConfigError(f"{command[0]} cannot be started: {error.strerror}.") from error
    finally:
        for each in given:
            os.close(each)


def _end(process: subprocess.Popen[bytes], foreground: bool, number: int) -> None:
    if number == signal.SIGKILL and not foreground and process.returncode is None:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)


class _Output:
    """One of a program's two outputs, which a thread reads, records and forwards.

    Attributes:
        given: the program's end of it.
        until: when to stop reading, once the program has ended.
        problem: why it could not be recorded.
    """

    def __init__(self, name: str, folder: Path, target: int | None) -> None:
        self._name, self._folder, self._target = name, folder, target
        self._is_terminal = target is not None and os.isatty(target)
        self._source, self.given = pty.openpty() if self._is_terminal else os.pipe()
        self.thread = threading.Thread(target=self._copy, name=f"output-{name}", daemon=True)
        self.until: float | None = None
        self.problem: str | None = None
        if self._is_terminal:
            modes = termios.tcgetattr(self.given)
            modes[1] &= ~termios.OPOST  # the real terminal does that
            modes[3] &= ~termios.ECHO
            termios.tcsetattr(self.given, termios.TCSANOW, modes)
            self.resize()

    def resize(self) -> None:
        """Set the pseudo terminal to the size of the real one."""
        if self._is_terminal and self._target is not None:
            with suppress(OSError, termios.error):  # closed at this moment
                termios.tcsetwinsize(self._source, termios.tcgetwinsize(self._target))

    def _copy(self) -> None:
        """Read until the program and its children have closed it, or print nothing more after the program's end."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while self.until is None or time.monotonic() < self.until:
            if not select.select([self._source], [], [], _SILENCE_S)[0]:
                if self.until is not None:
                    break
                continue
            try:
                data = os.read(self._source, _CHUNK)
            except OSError:  # of a pseudo terminal that no process has open
                data = b""
            if not data:
                break
            self._keep(decoder.decode(data))
            if self._target is None and len(data) < _SMALL:
                time.sleep(_GATHER_S)
            if self._target is not None:
                try:
                    _write(self._target, data)
                except OSError:
                    break  # the program then gets the same error as without this process between
        self._is_terminal = False
        os.close(self._source)
        self._keep(decoder.decode(b"", True))

    def _keep(self, text: str) -> None:
        if not text or self.problem:
            return
        try:
            entry = {"t": round(time.time(), 3), "stream": self._name, "text": text}
            journal.extend(self._folder / "output", entry, _OUTPUT_BYTES)
        except OSError as error:  # its output still goes to the terminal, and the program continues
            self.problem = f"what it printed later could not be kept: {error.strerror}"


def _write(target: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(target, left) :]
        except BlockingIOError:  # another program has made the terminal non-blocking
            select.select([], [target], [])
