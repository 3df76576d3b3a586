"""The worker processes of an agent: start, output, exit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import NamedTuple

from skyward.runner.config import WorkerStart
from skyward.runner.ending import wait_unreaped
from skyward.runner.line_buffer import Lines, Ring
from skyward.system import select, socket, threading, time
from skyward.wire.messages import STDERR, STDOUT

_CHUNK = 64 * 1024
_DRAIN_S = 0.1  # how long output is read after the end: a process that left the group may hold the pipes open for ever


class Ended(NamedTuple):
    """How a worker process ended: exit status or signal number, and whether its agent killed it."""

    code: int | None
    signal: int | None
    asked: bool


class Child:
    """One worker process, from its start to its exit.

    It leads a session of its own, so that whatever its tasks started can be killed with it. The private socket tells it
    what to be; the end of that socket tells it that the agent is gone.

    Attributes:
        start: its settings, sent over the private socket.
        env: what its environment has besides its agent's.
        address: where it listens, None before it does.
    """

    def __init__(self, start: WorkerStart, env: Mapping[str, str] | None = None) -> None:
        self.start = start
        self.env = dict(env or {})
        self.address: str | None = None
        self._lock = threading.Lock()
        self._ended = self._asked = False
        self._ring = Ring()
        self._control, theirs = socket.socketpair()
        with theirs:
            fd = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "skyward.runner.worker", str(fd)],
                env={**os.environ, **self.env},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                pass_fds=(fd,),
                start_new_session=True,
            )
        self._tell(asdict(start))

    def ask_exit(self, grace_s: float) -> None:
        """Ask it to leave its hooks and end within `grace_s`."""
        self._tell({"exit": grace_s})

    def kill(self) -> None:
        """End it and all it started, at once; nothing happens if it has ended."""
        with self._lock:
            if not self._ended:
                self._asked = True
                self._kill_group()

    def signal(self, number: int) -> None:
        """Send the process a signal; nothing happens if it has ended."""
        with self._lock:
            if not self._ended:
                self._process.send_signal(number)

    def wait(self) -> Ended:
        """Block until it has ended; what it started and left behind is killed."""
        # The dead leader is not reaped before its group is killed: until then nobody else can get the group's number.
        wait_unreaped(self._process.pid)
        with self._lock:
            self._kill_group()
            status = self._process.wait()
            self._ended = True
        self._control.shutdown(socket.SHUT_RDWR)  # wakes `read`
        return Ended(None if status < 0 else status, -status if status < 0 else None, self._asked)

    def read(self, on_listening: Callable[[str], None], on_output: Callable[[int, str], None]) -> None:
        """Pass on what it says and writes until it has ended (a thread of its own), then let go of its sockets."""
        assert self._process.stdout and self._process.stderr
        streams = {self._process.stdout.fileno(): STDOUT, self._process.stderr.fileno(): STDERR}
        lines = {fd: Lines() for fd in streams}
        poller = select.poll()
        for fd in (*streams, self._control.fileno()):
            poller.register(fd, select.POLLIN)
        give_up: float | None = None
        while lines and (give_up is None or time.monotonic() < give_up):
            for fd, _ in poller.poll(_timeout_ms([give_up, *(part.due() for part in lines.values())])):
                if fd in streams:
                    text = self._read(fd, lines)
                    if fd not in lines:
                        poller.unregister(fd)
                    if text:
                        on_output(streams[fd], text)
                elif not self._listen_to(on_listening):
                    poller.unregister(fd)
                    give_up = time.monotonic() + _DRAIN_S
            for fd, part in lines.items():
                if (due := part.due()) is not None and due <= time.monotonic():
                    on_output(streams[fd], part.flush())
        for fd, part in lines.items():
            if text := part.finish():
                on_output(streams[fd], text)
        self._process.stdout.close()
        self._process.stderr.close()

    def log(self) -> str:
        """The last lines it wrote below Python."""
        return self._ring.tail()

    def close(self) -> None:
        """Let go of the private socket; called after `wait` and `read`."""
        self._control.close()

    def _read(self, fd: int, lines: dict[int, Lines]) -> str:
        """What is there of one stream; the stream is forgotten at its end."""
        data = os.read(fd, _CHUNK)
        if not data:
            return lines.pop(fd).finish()
        self._ring.add(data)
        return lines[fd].feed(data, time.monotonic())

    def _listen_to(self, on_listening: Callable[[str], None]) -> bool:
        """Read from the private socket; False at its end. Only the first line, sent before user code runs, counts."""
        try:
            data = self._control.recv(4096)
        except ConnectionResetError:  # it ended before it had read what it was told
            return False
        if data and self.address is None:
            self.address = json.loads(data)["listening"]
            on_listening(self.address)
        return bool(data)

    def _tell(self, document: dict[str, object]) -> None:
        try:
            self._control.sendall(json.dumps(document).encode() + b"\n")
        except OSError:
            pass  # it has ended, which `wait` reports

    def _kill_group(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # nothing is left of it, or only processes that changed their user and are out of reach


def _timeout_ms(moments: list[float | None]) -> int | None:
    due = [moment for moment in moments if moment is not None]
    return max(0, int((min(due) - time.monotonic()) * 1000) + 1) if due else None
