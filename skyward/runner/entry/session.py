"""`python -m ...session run ORDER [WORD]...`: runs one command on a node, on this program's own standard streams.

The command gets the environment and the working directory of calls on this node. All processes it has started end with
it, and with the client. Next to it the client runs `... session control TOKEN`, which connects to it: each byte is the
number of a signal for the command, the end of the connection is the end of the client. The answer is the command's
exit status, or "lost" when the node has ended.

`... session forward PORT` connects its standard streams to a port of this node, `... session debug POOL NODE` to the
debugger of a call that is at a breakpoint.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skyward.model.instance import ENV_VAR
from skyward.runner.entry.container import adopt_orphans
from skyward.runner.entry.relay import pass_bytes
from skyward.system import select, socket, time

_PROC = Path("/proc")
_LOOK_S = 1.0  # interval of checks that the node still exists
_HANG_UP_S = 0.5  # between the request to end and the kill
_CONTROL_S = 60.0  # for the client's second program to connect
_CONNECT_S = 10.0
_NOT_FOUND, _NOT_ALLOWED = 127, 126  # exit statuses of shells
_RUNNER, _WORKER = "skyward.runner", "skyward.runner.worker"


@dataclass(frozen=True)
class Order:
    """The request of a client.

    Attributes:
        token: names the socket at which the client's second program connects.
        pool, node: the node whose environment is used.
        size: rows and columns of the terminal; None if there is none.
        env: variables in addition to the node's.
        cwd: working directory if the node's cannot be determined; "" in a container, which has one node.
    """

    token: str
    pool: str
    node: int
    size: tuple[int, int] | None = None
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


def run(order: Order, argv: list[str]) -> int:
    """Run a command, or a shell, until it ends, its client is gone or the node is lost; return its status."""
    path = _socket_path(order.token)
    path.parent.mkdir(mode=0o700)  # other users cannot connect
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(path))
            listener.listen(1)
            return _Command(order, argv, listener).run()
    finally:
        shutil.rmtree(path.parent, ignore_errors=True)


class _Command:
    """One command and the connection of its client."""

    def __init__(self, order: Order, argv: list[str], listener: socket.socket) -> None:
        self._order, self._listener = order, listener
        self._place = find_place(order)
        self._argv = argv or [shutil.which("bash", path=self._place.environment["PATH"]) or "sh"]
        self._control: socket.socket | None = None
        self._until = time.monotonic() + _CONTROL_S
        self._child: subprocess.Popen[bytes] | None = None
        self._is_asked_to_end = self._is_lost = False

    def run(self) -> int:
        woken, wake = socket.socketpair()
        for end in (woken, wake):
            end.setblocking(False)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        # handlers that do nothing, unlike SIG_IGN, are not inherited by the command
        for name in ("SIGCHLD", "SIGINT", "SIGQUIT", "SIGTSTP", "SIGTTOU", "SIGTTIN"):
            signal.signal(signal.Signals[name], lambda *_: None)
        for name in ("SIGTERM", "SIGHUP"):
            signal.signal(signal.Signals[name], self._on_end)
        status = self._start()
        while status is None and not self._is_asked_to_end and not self._is_lost:
            self._look(woken, _LOOK_S)
            status = self._status()
            runner = self._place.runner
            self._is_lost = status is None and runner is not None and not _is_running(runner)
        self._end_all()
        self._answer("lost" if self._is_lost or status is None else str(status))
        return status if status is not None else _NOT_ALLOWED

    def _start(self) -> int | None:
        """Start the command; return a status if that fails."""
        size = self._order.size
        if size is not None:  # `docker exec` sets it only after the start
            with suppress(OSError):
                fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("4H", *size, 0, 0))
        try:
            self._child = subprocess.Popen(
                self._argv, cwd=self._place.cwd, env=self._place.environment, start_new_session=size is None
            )
        except OSError as error:
            return self._refuse(error)
        return None

    def _refuse(self, error: OSError) -> int:
        name, place = self._argv[0], self._place
        if not Path(place.cwd).is_dir():
            text, status = f"The working directory of the node, {place.cwd}, is gone.", _NOT_ALLOWED
        elif isinstance(error, FileNotFoundError):
            text, status = f"{name} was not found on the node; its PATH is {place.environment['PATH']}.", _NOT_FOUND
        else:
            text, status = f"{name} cannot be run on the node ({error.strerror}).", _NOT_ALLOWED
        sys.stderr.write(f"skyward: {text}\n")
        sys.stderr.flush()
        return status

    def _status(self) -> int | None:
        code = self._child.poll() if self._child else None
        return code if code is None or code >= 0 else 128 - code

    def _look(self, woken: socket.socket, timeout_s: float) -> None:
        """Wait for the end of a process, or for the client."""
        client = self._control or self._listener
        if client in select.select([woken, client], [], [], timeout_s)[0]:
            self._hear()
        with suppress(BlockingIOError):
            woken.recv(4096)
        if self._control is None and time.monotonic() > self._until:
            self._is_asked_to_end = True

    def _hear(self) -> None:
        """Accept the client's connection, or read from it."""
        if self._control is None:
            self._control, _ = self._listener.accept()
            return
        try:
            numbers = self._control.recv(4096)
        except OSError:
            numbers = b""
        self._is_asked_to_end |= not numbers
        for number in numbers:
            self._signal(number)

    def _signal(self, number: int) -> None:
        """Send a signal to the command's process group, in a terminal to the foreground process group."""
        assert self._child
        with suppress(ProcessLookupError, PermissionError):  # it has just ended, or runs as another user
            os.killpg(self._child.pid if self._order.size is None else os.tcgetpgrp(0), number)

    def _on_end(self, *_: object) -> None:
        self._is_asked_to_end = True

    def _end_all(self) -> None:
        """End the command's remaining processes: by SIGHUP, as when a terminal hangs up, then by SIGKILL."""
        _signal_each(self._left(), signal.SIGHUP, signal.SIGCONT)
        until = time.monotonic() + _HANG_UP_S
        while self._left() and time.monotonic() < until:
            time.sleep(0.02)
        until += _HANG_UP_S
        while (left := self._left()) and time.monotonic() < until:  # those of other users may not end
            _signal_each(left, signal.SIGKILL)
            time.sleep(0.02)

    def _left(self) -> list[int]:
        """Return the descendants of this process; without /proc only the command, while it runs."""
        if self._child is not None:
            self._child.poll()
        if not _PROC.joinpath("self").exists():
            return [self._child.pid] if self._child is not None and self._child.returncode is None else []
        parents = dict[int, int]()
        for path in _PROC.glob("[0-9]*"):
            with suppress(FileNotFoundError, ProcessLookupError):
                state, parent = (path / "stat").read_text().rpartition(")")[2].split()[:2]
                if state not in "ZX":
                    parents[int(path.name)] = int(parent)
        found, pending = list[int](), [os.getpid()]
        while pending:
            above = pending.pop()
            children = [pid for pid, parent in parents.items() if parent == above]
            found += children
            pending += children
        return found

    def _answer(self, text: str) -> None:
        """Report to the client how the command ended, once its second program has connected."""
        with suppress(OSError):
            if self._control is None:
                self._listener.settimeout(max(0.0, self._until - time.monotonic()))
                self._control, _ = self._listener.accept()
            self._control.sendall(text.encode())
            self._control.close()


def _signal_each(pids: list[int], *numbers: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):  # sudo's end with their terminal
            for number in numbers:
                os.kill(pid, number)


def control(token: str) -> int:
    """Connect standard input and output to the session with this token."""
    until = time.monotonic() + _CONTROL_S
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(str(_socket_path(token)))
            break
        except OSError:
            sock.close()
            if time.monotonic() > until:
                return 1
            time.sleep(0.02)
    pass_bytes(sock)
    return 0


def _socket_path(token: str) -> Path:
    return Path(tempfile.gettempdir()) / f".skyward-{token}" / "s"


def forward(port: int) -> int:
    """Connect standard input and output to a port of this node."""
    try:
        sock = socket.create_connection(("localhost", port), _CONNECT_S)
    except OSError as error:
        sys.stderr.write(f"skyward: nothing answers at port {port} of the node ({error.strerror or error})\n")
        return 1
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    pass_bytes(sock)
    return 0


def debug(pool: str, node: int) -> int:
    """Connect standard input and output to a debugger of this node."""
    from skyward.runner.debugger import sockets_in

    environment = find_place(Order(token="", pool=pool, node=node)).environment
    for path in sorted(sockets_in(environment).glob("*")):
        if _place_of(int(path.name.partition("-")[0])).get("node") not in (node, None):
            continue  # another node's, of plain processes
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(str(path))
        except OSError:  # its process was killed
            sock.close()
            continue
        pass_bytes(sock)
        return 0
    sys.stderr.write("skyward: no call of this node is at a breakpoint\n")
    return 1


def main() -> int:
    """Do what the client's command line asks for."""
    action, first, *rest = sys.argv[1:]
    others: dict[str, Callable[[], int]] = {
        "control": lambda: control(first),
        "debug": lambda: debug(first, int(rest[0])),
        "forward": lambda: forward(int(first)),
    }
    if action in others:
        return others[action]()
    if sys.platform == "linux":
        adopt_orphans()
    return run(Order(**json.loads(first)), rest)


if __name__ == "__main__":
    sys.exit(main())
