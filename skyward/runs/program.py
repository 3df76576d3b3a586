"""Runs one program as a child process: its output is recorded and, in the foreground, also to the terminal.

In the foreground it has this process's standard input and process group, so that job control, `input()` and Ctrl-C work
as for any program. An output that is a terminal stays one: the program writes to a pseudo terminal of the same size,
whose bytes are recorded and written to the real one. If both outputs are terminals they share one, since on a terminal
their order counts; the journal then has all of it as "out".
"""

from __future__ import annotations

import codecs
import ctypes
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from skyward.errors import ConfigError
from skyward.records import journal
from skyward.records.run import watch_down

PASSED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_TYPED = (signal.SIGINT, signal.SIGQUIT)  # keys of a terminal
OUTPUT_BYTES = 1 << 30  # kept of a program's output; the oldest is removed first
_CHUNK = 64 * 1024
_SMALL = 4096  # bytes; smaller reads pause for _GATHER_S to collect more: unbuffered programs print single characters
_GATHER_S = 0.01
_SILENCE_S = 0.5  # after the program's end: silence after which its remaining children are not read any longer
_AFTER_S = 5.0  # the longest time that they are read
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended.

    Attributes:
        status: its exit status; 128 plus the signal's number if a signal ended it, as in shells.
        reason: what ended it, for people; None if it ended itself.
    """

    status: int
    reason: str | None = None


@dataclass(slots=True)
class _Stream:
    """One of a program's two outputs: the descriptor to read it from, and the one to forward it to, if any."""

    name: str
    source: int
    target: int | None
    decoder: codecs.IncrementalDecoder = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))


def run_program(
    command: Sequence[str],
    folder: Path,
    *,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
    foreground: bool = False,
    on_start: Callable[[], None] = lambda: None,
) -> Ended:
    """Run a program to its end, passing on signals that this process receives. Main thread only.

    It is ended if the run is to end: with its process group if it runs in the background.

    Args:
        command: the program with its arguments.
        folder: the run's directory, whose journal receives the output.
        directory: that it runs in; None for this process's.
        environment: all its variables; None for this process's.
        foreground: use this process's input and terminal, and forward the output.
        on_start: called once it runs.

    Raises:
        ConfigError: it cannot be started.
    """
    outputs = _Outputs(folder, foreground)
    process = _spawn(command, outputs, directory, environment, foreground)

    def pass_on(number: int, _: object) -> None:
        if number == signal.SIGWINCH:
            outputs.resize()
        if number not in _TYPED or not (foreground and os.isatty(0)):  # the terminal has sent it to the program as well
            process.send_signal(number)

    for number in (*PASSED, signal.SIGWINCH):
        if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
            signal.signal(number, pass_on)
    watch_down(folder, partial(_end, process, foreground))
    on_start()
    outputs.follow(process)
    status = process.returncode
    reason = f"ended by {signal.Signals(-status).name}" if status < 0 else None
    return Ended(status if status >= 0 else 128 - status, outputs.problem or reason)


def _end(process: subprocess.Popen[bytes], foreground: bool, number: int) -> None:
    if number == signal.SIGKILL and not foreground and process.returncode is None:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)


class _Outputs:
    """The two outputs of a program."""

    def __init__(self, folder: Path, foreground: bool) -> None:
        self._folder = folder
        self._terminals: list[int] = []  # master sides of the pseudo terminals
        self.given: list[int] = []  # the program's ends
        self.problem: str | None = None
        self._streams = [self._open("out", 1, foreground)]
        if foreground and os.isatty(1) and os.isatty(2):  # on one terminal the order counts: both are "out"
            self.given.append(os.dup(self.given[0]))
        else:
            self._streams.append(self._open("err", 2, foreground))
        self.resize()

    def _open(self, name: str, number: int, foreground: bool) -> _Stream:
        if foreground and os.isatty(number):
            source, given = pty.openpty()
            modes = termios.tcgetattr(given)
            modes[1] &= ~termios.OPOST  # the real terminal does that
            modes[3] &= ~termios.ECHO
            termios.tcsetattr(given, termios.TCSANOW, modes)
            self._terminals.append(source)
        else:
            source, given = os.pipe()
        os.set_blocking(source, False)
        self.given.append(given)
        return _Stream(name, source, number if foreground else None)

    def resize(self) -> None:
        """Set the pseudo terminals to the size of the real one."""
        for source in self._terminals:
            with suppress(OSError):  # closed at this moment
                size = fcntl.ioctl(1 if os.isatty(1) else 2, termios.TIOCGWINSZ, struct.pack("4H", 0, 0, 0, 0))
                fcntl.ioctl(source, termios.TIOCSWINSZ, size)

    def follow(self, process: subprocess.Popen[bytes]) -> None:
        """Read until the program and its outputs have ended, or its remaining children print nothing more."""
        ended, tell_end = os.pipe()

        def wait() -> None:
            process.wait()
            os.close(tell_end)

        threading.Thread(target=wait, name="program", daemon=True).start()
        until = None
        while self._streams and (until is None or time.monotonic() < until):
            waiting = [each.source for each in self._streams]
            ready, _, _ = select.select([*waiting, ended] if until is None else waiting, [], [], until and _SILENCE_S)
            if not ready:
                break
            if ended in ready:
                until = time.monotonic() + _AFTER_S
            for each in [each for each in self._streams if each.source in ready]:
                self._read(each)
        for each in list(self._streams):
            self._end(each)
        process.wait()
        os.close(ended)

    def _read(self, stream: _Stream) -> None:
        try:
            data = os.read(stream.source, _CHUNK)
        except BlockingIOError:
            return
        except OSError:  # of a pseudo terminal that no process has open
            data = b""
        if not data:
            self._end(stream)
            return
        self._keep(stream, stream.decoder.decode(data))
        if stream.target is None and len(data) < _SMALL:
            time.sleep(_GATHER_S)
        if stream.target is not None:
            try:
                write_all(stream.target, data)
            except OSError:
                self._end(stream)  # the program then gets the same error as without this process between

    def _end(self, stream: _Stream) -> None:
        self._streams.remove(stream)
        if stream.source in self._terminals:
            self._terminals.remove(stream.source)
        os.close(stream.source)
        self._keep(stream, stream.decoder.decode(b"", True))

    def _keep(self, stream: _Stream, text: str) -> None:
        if not text or self.problem:
            return
        try:
            entry = {"t": round(time.time(), 3), "stream": stream.name, "text": text}
            journal.extend(self._folder / "output", (entry,), OUTPUT_BYTES)
        except OSError as error:  # its output still goes to the terminal, and the program continues
            self.problem = f"what it printed later could not be kept: {error.strerror}"


def _spawn(
    command: Sequence[str],
    outputs: _Outputs,
    directory: Path | None,
    environment: Mapping[str, str] | None,
    foreground: bool,
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
            stdout=outputs.given[0],
            stderr=outputs.given[1],
            preexec_fn=prepare,  # noqa: PLW1509 - no other thread runs yet
            process_group=None if foreground else 0,
        )
    except OSError as error:
        raise ConfigError(f"{command[0]} cannot be started: {error.strerror}.") from error
    finally:
        for each in outputs.given:
            os.close(each)


def write_all(target: int, data: bytes) -> None:
    """Write everything to a descriptor.

    Raises:
        OSError: the reader is closed.
    """
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(target, left) :]
        except BlockingIOError:  # another program has made the terminal non-blocking
            select.select([], [target], [])
