"""`python -m ...session`: runs one command on a node for a client that is connected to its standard streams.

The command gets the environment and the working directory of calls on this node, and a terminal if the client has one.
All processes it has started end with it, and with the client: the end of standard input is the end of the client. The
protocol is described in `skyward.wire.session`.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skyward.errors import WireError
from skyward.model.instance import ENV_VAR
from skyward.runner.entry.container import adopt_orphans
from skyward.system import select, time
from skyward.wire.session import Decoder, Kind, encode, encode_json

_PROC = Path("/proc")
_CHUNK = 1 << 16
_MOST_WAITING = 1 << 20  # bytes of output waiting for the client; beyond that the command's is not read
_LOOK_S = 1.0  # interval of checks that the node still exists
_HANG_UP_S = 0.5  # between the request to end and the kill
_DRAIN_S = 2.0  # for the last output
_NOT_FOUND, _NOT_ALLOWED = 127, 126  # exit statuses of shells
_VEOF = b"\x04"
_RUNNER, _WORKER = "skyward.runner", "skyward.runner.worker"


@dataclass(frozen=True)
class Order:
    """The request of a client.

    Attributes:
        argv: the command; empty for a shell, which is bash if the node has it, else sh.
        pool, node: the node whose environment is used.
        rows, columns: size of the terminal; 0 for none.
        env: variables in addition to the node's.
        cwd: working directory if the node's cannot be determined; "" in a container, which has one node.
    """

    argv: list[str]
    pool: str
    node: int
    rows: int = 0
    columns: int = 0
    env: dict[str, str] = field(default_factory=dict)
    cwd: str = ""


@dataclass(frozen=True)
class Place:
    """Where calls run: the process of the node's runner, with the directory and environment for commands."""

    runner: int | None
    cwd: str
    environment: dict[str, str]


def find_place(order: Order) -> Place:
    """Return where calls of the node run: as its first worker, or as its runner while it has no worker."""
    found = list(_processes())
    runners = [pid for pid, module, _ in found if module == _RUNNER]
    workers = {pid: parent for pid, module, parent in found if module == _WORKER}
    named = [pid for pid in runners if _is_of(pid, order)]
    if not named and not order.cwd:  # a container has one node, whatever its number in the pool
        named = runners
    runner = min(named, default=None)
    ours = [pid for pid, parent in workers.items() if parent == runner]
    shown = min(ours, key=lambda pid: (_index_of(pid), pid), default=runner)
    environment, cwd = dict(os.environ), order.cwd or str(Path.cwd())
    try:
        if shown is not None:
            environment, cwd = _environment(shown), str((_PROC / str(shown) / "cwd").readlink())
    except OSError:  # it has just ended; a lost runner is noticed later
        pass
    own = str(Path(sys.executable).parent)
    paths = [path for path in environment.get("PATH", os.defpath).split(os.pathsep) if path != own]
    return Place(runner, cwd, {**environment, "PATH": os.pathsep.join([own, *paths]), **order.env})


def _processes() -> Iterator[tuple[int, str, int]]:
    """Yield the processes that run a Python module: number, module, parent."""
    for path in _PROC.glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has just ended
        if len(words) > 2 and words[1] == b"-m":
            yield int(path.name), os.fsdecode(words[2]), parent


def _environment(pid: int) -> dict[str, str]:
    entries = (os.fsdecode(each).partition("=") for each in (_PROC / str(pid) / "environ").read_bytes().split(b"\0"))
    return {name: value for name, equals, value in entries if equals}


def _place_of(pid: int) -> dict[str, Any]:
    """Return the place in a pool of a process; empty if it has none, is another user's, or has just ended."""
    try:
        return json.loads(_environment(pid).get(ENV_VAR, "null")) or {}
    except (OSError, ValueError):
        return {}


def _is_of(pid: int, order: Order) -> bool:
    place = _place_of(pid)
    return (place.get("job_id"), place.get("node")) == (order.pool, order.node)


def _index_of(pid: int) -> int:
    place = _place_of(pid)
    return int(place.get("worker", 0)) if place else sys.maxsize


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


class Session:
    """One command and its client, served by one event loop."""

    def __init__(self) -> None:
        self._decoder = Decoder()
        self._order: Order | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._runner: int | None = None
        self._status: int | None = None  # as returned by waitpid(2)
        self._to_client = bytearray()
        self._to_child = bytearray()
        self._input: int | None = None  # the descriptor that the command's input is written to
        self._input_ended = self._client_gone = False
        self._last = b"\n"  # last byte of the input
        self._sources: dict[int, Kind] = {}
        self._terminal: int | None = None
        self._woken, self._wake = os.pipe()

    def run(self) -> int:
        """Serve the client until the command ends or the client disconnects."""
        for fd in (0, 1, self._woken, self._wake):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        lost = False
        while self._status is None and not self._client_gone and not lost:
            self._step(_LOOK_S)
            lost = self._runner is not None and not _is_running(self._runner)
        lost = lost and self._status is None  # determined before the processes are ended
        self._end_all()
        self._drain(lambda: bool(self._sources))
        if lost:
            self._say(encode(Kind.LOST, b"The node has ended."))
        elif self._status is not None and self._child is not None:
            code = os.waitstatus_to_exitcode(self._status)
            ended = {"status": None, "signal": -code} if code < 0 else {"status": code, "signal": None}
            self._say(encode_json(Kind.EXIT, ended))
        self._drain(lambda: False)
        return 0

    # the loop -----------------------------------------------------------------------------------------------------

    def _step(self, timeout_s: float) -> None:
        poller = select.poll()
        poller.register(self._woken, select.POLLIN)
        if not self._client_gone:
            poller.register(0, select.POLLIN)
        if self._to_client and not self._client_gone:
            poller.register(1, select.POLLOUT)
        reading = self._sources if len(self._to_client) < _MOST_WAITING else {}
        for fd in reading:
            poller.register(fd, select.POLLIN)
        if self._input is not None and self._to_child:
            mask = select.POLLOUT | (select.POLLIN if self._input in reading else 0)
            poller.register(self._input, mask)
        for fd, events in poller.poll(timeout_s * 1000):
            self._handle(fd, events)

    def _handle(self, fd: int, events: int) -> None:
        if fd == self._woken:
            with suppress(BlockingIOError):  # a signal handled already
                os.read(fd, _CHUNK)
            self._reap()
        elif fd == 0:
            self._hear()
        elif fd == 1:
            self._flush()
        else:
            if fd == self._input and events & (select.POLLOUT | select.POLLERR):
                self._feed()
            if fd in self._sources and events & (select.POLLIN | select.POLLHUP | select.POLLERR):
                self._read(fd)

    def _hear(self) -> None:
        """Read the client's frames."""
        try:
            data = os.read(0, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._client_gone = True
            return
        for kind, content in self._decoder.feed(data):
            self._take(kind, content)

    def _take(self, kind: Kind, content: bytes) -> None:
        match kind:
            case Kind.START if self._order is None:
                self._start(Order(**json.loads(content)))
            case Kind.INPUT:
                self._to_child += content
                self._last = content[-1:] or self._last
                self._feed()
            case Kind.END:
                self._input_ended = True
                if self._terminal is not None:  # the first sends an unfinished line, the second is the end of file
                    self._to_child += _VEOF if self._last == b"\n" else _VEOF * 2
                self._feed()
            case Kind.SIZE if self._terminal is not None:
                _resize(self._terminal, *json.loads(content))
            case Kind.SIGNAL:
                self._signal(int(json.loads(content)))
            case _:
                raise WireError(f"A session cannot be sent a frame {kind.name} now.")

    def _feed(self) -> None:
        """Write as much to the command's input as it accepts, and report the number of bytes to the client."""
        taken = 0
        try:
            while self._input is not None and self._to_child:
                count = os.write(self._input, memoryview(self._to_child)[:_CHUNK])
                del self._to_child[:count]
                taken += count
        except BlockingIOError:
            pass
        except OSError:  # the command has closed its input, or has ended
            self._close_input()
        if self._input is None:
            taken += len(self._to_child)
            self._to_child.clear()
        if taken:
            self._say(encode_json(Kind.TAKEN, taken))
        if self._input_ended and not self._to_child and self._terminal is None:
            self._close_input()

    def _close_input(self) -> None:
        if self._input is not None and self._terminal is None:
            os.close(self._input)
        self._input = None

    def _read(self, fd: int) -> None:
        """Pass on output of the command."""
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.EIO:  # the other side of the terminal is closed
                raise
            data = b""
        if data:
            self._say(encode(self._sources[fd], data))
        else:
            del self._sources[fd]
            if fd != self._terminal:
                os.close(fd)

    def _say(self, frame: bytes) -> None:
        self._to_client += frame
        self._flush()

    def _flush(self) -> None:
        try:
            while self._to_client and not self._client_gone:
                del self._to_client[: os.write(1, memoryview(self._to_client)[:_CHUNK])]
        except BlockingIOError:
            pass
        except OSError:
            self._client_gone = True

    # the command --------------------------------------------------------------------------------------------------

    def _start(self, order: Order) -> None:
        self._order = order
        place = find_place(order)
        self._runner = place.runner
        argv = order.argv or [shutil.which("bash", path=place.environment["PATH"]) or "sh"]
        try:
            self._child = self._spawn(argv, place, order)
        except OSError as error:
            self._refuse(argv[0], place, error)
            return
        os.set_blocking(self._input if self._input is not None else 0, False)
        for fd in self._sources:
            os.set_blocking(fd, False)

    def _spawn(self, argv: list[str], place: Place, order: Order) -> subprocess.Popen[bytes]:
        if not order.rows:
            child = subprocess.Popen(
                argv,
                cwd=place.cwd,
                env=place.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
            assert child.stdin and child.stdout and child.stderr
            self._input = os.dup(child.stdin.fileno())
            self._sources = {os.dup(child.stdout.fileno()): Kind.OUTPUT, os.dup(child.stderr.fileno()): Kind.ERRORS}
            for pipe in (child.stdin, child.stdout, child.stderr):
                pipe.close()
            return child
        terminal, theirs = os.openpty()
        try:
            _resize(terminal, order.rows, order.columns)
            child = subprocess.Popen(
                argv,
                cwd=place.cwd,
                env=place.environment,
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
                start_new_session=True,
                preexec_fn=_take_terminal,  # noqa: PLW1509 - this process has one thread
            )
        except BaseException:
            os.close(terminal)
            raise
        finally:
            os.close(theirs)
        self._terminal = self._input = terminal
        self._sources = {terminal: Kind.OUTPUT}
        return child

    def _refuse(self, name: str, place: Place, error: OSError) -> None:
        if not Path(place.cwd).is_dir():
            text, status = f"The working directory of the node, {place.cwd}, is gone.", _NOT_ALLOWED
        elif isinstance(error, FileNotFoundError):
            text, status = f"{name} was not found on the node; its PATH is {place.environment['PATH']}.", _NOT_FOUND
        else:
            text, status = f"{name} cannot be run on the node ({error.strerror}).", _NOT_ALLOWED
        self._say(encode_json(Kind.FAILED, {"status": status, "text": text}))
        self._status = 0

    def _signal(self, number: int) -> None:
        """Send a signal to the command's process group, in a terminal to the foreground process group."""
        if self._child is None or self._status is not None:
            return
        group = self._child.pid if self._terminal is None else os.tcgetpgrp(self._terminal)
        try:
            os.killpg(group, number)
        except (ProcessLookupError, PermissionError):
            pass  # it has just ended, or runs as another user

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if self._child is not None and pid == self._child.pid:
                self._status, self._child.returncode = status, status

    # the end ------------------------------------------------------------------------------------------------------

    def _end_all(self) -> None:
        """End the command's remaining processes: by SIGHUP, as when a terminal hangs up, then by SIGKILL."""
        if not self._descendants():
            return
        for number in (signal.SIGHUP, signal.SIGCONT):
            _signal_each(self._descendants(), number)
        until = time.monotonic() + _HANG_UP_S
        while self._descendants() and time.monotonic() < until:
            self._step(0.02)
            self._reap()
        until += _HANG_UP_S
        while (left := self._descendants()) and time.monotonic() < until:  # those of other users may not end
            _signal_each(left, signal.SIGKILL)
            self._step(0.02)
            self._reap()

    def _drain(self, is_reading: Callable[[], bool]) -> None:
        """Pass on the remaining output, unless the client has disconnected or reads no more."""
        until = time.monotonic() + _DRAIN_S
        while not self._client_gone and (self._to_client or is_reading()):
            before = len(self._to_client)
            self._step(0.05)
            if self._to_client and len(self._to_client) != before:
                until = time.monotonic() + _DRAIN_S
            if not self._to_client and time.monotonic() > until:
                return

    def _descendants(self) -> list[int]:
        """Return the descendants of this process; without /proc only the command, while it runs."""
        if not _PROC.joinpath("self").exists():
            return [self._child.pid] if self._child is not None and self._status is None else []
        parents = _parents()
        found, pending = list[int](), [os.getpid()]
        while pending:
            above = pending.pop()
            children = [pid for pid, parent in parents.items() if parent == above]
            found += children
            pending += children
        return found


def _parents() -> Mapping[int, int]:
    found = {}
    for path in _PROC.glob("[0-9]*"):
        try:
            state, parent = (path / "stat").read_text().rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state not in "ZX":
            found[int(path.name)] = int(parent)
    return found


def _signal_each(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            pass  # it has just ended; or it is another user's (sudo), and ends with its terminal


def _resize(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def main() -> int:
    """Run the command that the client requests."""
    if sys.platform == "linux":
        adopt_orphans()
    return Session().run()


if __name__ == "__main__":
    sys.exit(main())
