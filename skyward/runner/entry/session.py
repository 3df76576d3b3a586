"""`python -m ...session run ORDER [WORD]...`: becomes one command on a node, on this program's own standard streams.

The command gets the environment and the working directory of calls on this node. `... session signal TOKEN NUMBER`
sends a signal to it and to all that it has started, which are known by a variable of their environment.

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
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skyward.model.instance import ENV_VAR
from skyward.runner.entry.relay import pass_bytes
from skyward.system import socket, time

_PROC = Path("/proc")
_SESSION = "SKYWARD_SESSION"  # variable of a command and all that it has started
_START_S = 2.0  # for a command to start that is to get a signal
_CONNECT_S = 10.0
_NOT_FOUND, _NOT_ALLOWED = 127, 126  # exit statuses of shells
_RUNNER, _WORKER = "skyward.runner", "skyward.runner.worker"


@dataclass(frozen=True)
class Order:
    """The request of a client.

    Attributes:
        token: names the command for signals.
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


def find_place(order: Order) -> tuple[str, dict[str, str]]:
    """Return the directory and the environment of calls of the node: of its first worker, else of its runner."""
    found = [(module == _RUNNER, pid, _place_of(pid)) for pid, module in _processes()]
    named = [each for each in found if (each[2].get("job_id"), each[2].get("node")) == (order.pool, order.node)]
    if not named and not order.cwd:  # a container has one node, whatever its number in the pool
        named = found
    environment, cwd = dict(os.environ), order.cwd or str(Path.cwd())
    with suppress(OSError):  # it has just ended; a lost runner is noticed later
        for _, pid, _ in sorted(named, key=lambda each: (each[0], each[2].get("worker", 0), each[1]))[:1]:
            environment, cwd = _environment(pid), str((_PROC / str(pid) / "cwd").readlink())
    own = str(Path(sys.executable).parent)
    paths = [path for path in environment.get("PATH", os.defpath).split(os.pathsep) if path != own]
    return cwd, {**environment, "PATH": os.pathsep.join([own, *paths]), **order.env}


def _processes() -> Iterator[tuple[int, str]]:
    """Yield the runners and workers that run here, with their modules."""
    for path in _PROC.glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            words = (path / "cmdline").read_bytes().split(b"\0")
            if words[1:2] == [b"-m"] and (module := os.fsdecode(words[2])) in (_RUNNER, _WORKER):
                yield int(path.name), module


def _environment(pid: int) -> dict[str, str]:
    entries = (os.fsdecode(each).partition("=") for each in (_PROC / str(pid) / "environ").read_bytes().split(b"\0"))
    return {name: value for name, equals, value in entries if equals}


def _place_of(pid: int) -> dict[str, Any]:
    """Return the place in a pool of a process; empty if it has none, is another user's, or has just ended."""
    try:
        return json.loads(_environment(pid).get(ENV_VAR, "null")) or {}
    except (OSError, ValueError):
        return {}


def run(order: Order, argv: list[str]) -> int:
    """Replace this program by a command, or a shell; return an exit status if that fails."""
    cwd, environment = find_place(order)
    argv = argv or [shutil.which("bash", path=environment["PATH"]) or "sh"]
    if order.size is None:
        with suppress(OSError):  # it has its own session already
            os.setsid()
    else:
        with suppress(OSError):  # `docker exec` sets the size only after the start
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("4H", *order.size, 0, 0))
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
        signal.signal(number, signal.SIG_DFL)
    text, status = f"{argv[0]} was not found on the node; its PATH is {environment['PATH']}.", _NOT_FOUND
    try:
        os.chdir(cwd)
        if hasattr(os, "memfd_create"):  # marks the command even if it gets an empty environment
            os.set_inheritable(os.memfd_create(order.token), True)
        os.execvpe(argv[0], argv, {**environment, _SESSION: order.token})  # noqa: S606 - this is what it is for
    except OSError as error:
        if not Path(cwd).is_dir():
            text, status = f"The working directory of the node, {cwd}, is gone.", _NOT_ALLOWED
        elif not isinstance(error, FileNotFoundError):
            text, status = f"{argv[0]} cannot be run on the node ({error.strerror}).", _NOT_ALLOWED
    sys.stderr.write(f"skyward: {text}\n")
    return status


def send(token: str, number: int) -> int:
    """Send a signal to a command and to all that it has started; return an exit status."""
    until = time.monotonic() + _START_S
    while not (found := _started_with(token)) and time.monotonic() < until:
        time.sleep(0.05)
    for pid in found:
        with suppress(ProcessLookupError, PermissionError):  # it has just ended, or runs as another user
            os.kill(pid, number)
    return 0


def _started_with(token: str) -> set[int]:
    """Return the processes with a command's mark, and those that these have started."""
    marked, parents = set[int](), dict[int, int]()
    for path in _PROC.glob("[0-9]*"):
        with suppress(OSError):  # it has just ended, or is another user's
            pid = int(path.name)
            parents[pid] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            names = [os.readlink(file) for file in (path / "fd").iterdir()]  # noqa: PTH115 - not a path
            if _environment(pid).get(_SESSION) == token or f"/memfd:{token} (deleted)" in names:
                marked.add(pid)
    while more := {pid for pid, parent in parents.items() if parent in marked} - marked:
        marked |= more
    return marked


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

    _, environment = find_place(Order(token="", pool=pool, node=node))
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
    actions: dict[str, Callable[[], int]] = {
        "signal": lambda: send(first, int(rest[0])),
        "debug": lambda: debug(first, int(rest[0])),
        "forward": lambda: forward(int(first)),
        "run": lambda: run(Order(**json.loads(first)), rest),
    }
    return actions[action]()


if __name__ == "__main__":
    sys.exit(main())
