"""A node in standby: what a container of a compose file runs, and what makes it the node of a pool for a while.

`python -m skyward.runner.standby` waits. A pool's client runs `... standby take` beside it, through the engine: that
it can do so proves that it may, since whoever commands the engine commands the container. It gets the node for itself
or learns that another has it, and then hands over, on standard input, what the node is to be. When that input ends,
however its client ended, the node ends at once. `wait` then makes the container what it was, and the node is free.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from skyward.runner import cleaning
from skyward.runner.account import account_variables
from skyward.runner.config import KEY_FILE, RUN_DIR_VAR, SETTINGS_VAR
from skyward.system import select, socket, threading, time

LEASE_VAR = "SKYWARD_STANDBY_LEASE"  # seconds nobody may have the node before its container ends; empty: any time
GREETING = "skyward-standby "  # what the line starts with that says that the node is the client's
EXIT_TAKEN = 75  # another client has the node
_SOCKET = Path(tempfile.gettempdir()) / "skyward-standby.sock"  # where `wait` is asked for the node
_KNOWN = Path(tempfile.gettempdir()) / "skyward-standby.json"  # the files of the container before any client's
_YOURS, _TAKEN = b"y", b"t"
_PATIENCE_S = 1.0  # a client before may just end
_START_S = 10.0  # how long `wait` may take to start on a busy machine
_STEP_S = 0.05
_END_S = 5.0
_PR_SET_CHILD_SUBREAPER = 36


def wait() -> int:
    """Give the node to one client after another, until asked to end, or until nobody has had it for its lease.

    Each client finds the container as the first did: what the one before has left running, in files or in shared memory
    goes. If that cannot be done the container ends, rather than be given on.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
    try:
        clean = _cleaner()
        _SOCKET.unlink(missing_ok=True)  # of a container that has been started again
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(_SOCKET))
            listener.listen(128)
            while (client := _next_client(listener)) is not None:
                with client:
                    _serve(client, listener)
                clean()
                if not _SOCKET.is_socket():
                    raise cleaning.NotCleanError(f"{_SOCKET}, where clients ask for the node, has been removed.")
    except cleaning.NotCleanError as error:
        _say(f"skyward: The container ends: what its last client has left cannot go. {error}\n")
        return 1
    return 0


def _cleaner() -> Callable[[], None]:
    """What makes the container what it is now, or was when it was started for the first time."""
    if not cleaning.is_alone():
        _say("skyward: This is not all that runs in a container of its own: what clients leave here is not removed.\n")
        return lambda: None
    try:
        known = json.loads(_KNOWN.read_text())
    except FileNotFoundError:
        known = cleaning.files()

    def clean() -> None:
        cleaning.end_processes()
        cleaning.remove_files(known, keep=(str(_SOCKET), str(_KNOWN)))
        cleaning.remove_ipc()
        _KNOWN.write_text(json.dumps(known))

    clean()
    return clean


def _next_client(listener: socket.socket) -> socket.socket | None:
    """Whoever asks for the node next; None when nobody has for the lease."""
    listener.settimeout(float(os.environ.get(LEASE_VAR) or 0) or None)
    try:
        client, _ = listener.accept()
    except TimeoutError:
        return None
    client.setblocking(True)
    return client


def _serve(client: socket.socket, listener: socket.socket) -> None:
    """Let a client have the node until it ends; others that ask meanwhile are told so, after a moment."""
    if not _tell(client, _YOURS):
        return
    both = select.poll()
    both.register(client, select.POLLIN)
    both.register(listener, select.POLLIN)
    while all(number != client.fileno() for number, _ in both.poll()):
        other, _ = listener.accept()
        with other:
            ends = select.poll()
            ends.register(client, select.POLLIN)
            if not ends.poll(_PATIENCE_S * 1000):  # the one before may just end
                _tell(other, _TAKEN)


def take() -> int:
    """Be the node that standard input describes, until it ends."""
    with _ask() as wait:
        if wait is None:
            return EXIT_TAKEN
        _become_reaper()
        run_dir = Path(tempfile.mkdtemp(prefix="skyward-"))
        try:
            facts = {"run_dir": str(run_dir), "port": _free_port(), "volumes": cleaning.volumes()}
            _say(f"{GREETING}{json.dumps(facts)}\n")
            line = sys.stdin.buffer.readline()
            return _be(json.loads(line), run_dir) if line else 0
        finally:
            _end_descendants()
            shutil.rmtree(run_dir, ignore_errors=True)


@contextmanager
def _ask() -> Iterator[socket.socket | None]:
    """Have the node for as long as this connection to `wait` is open; None if another client has it."""
    deadline = time.monotonic() + _START_S
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            try:
                sock.connect(str(_SOCKET))
                answer = sock.recv(1)
            except OSError as error:
                if time.monotonic() > deadline:
                    raise SystemExit(f"Nothing waits at {_SOCKET} in this container: {error}") from error
                answer = b""  # it has just been started
            if answer == _YOURS:
                yield sock
                return
        if answer == _TAKEN:
            yield None
            return
        time.sleep(_STEP_S)  # also when the client before has just gone


def _be(order: dict[str, Any], run_dir: Path) -> int:
    """Run the node's runner; its exit status, 128 and the number for signals."""
    with open(os.open(run_dir / KEY_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(bytes.fromhex(order["key"]))
    own = {"COMPUTE_POOL": order["compute_pool"], SETTINGS_VAR: order["runner"], RUN_DIR_VAR: str(run_dir)}
    runner = subprocess.Popen(
        [sys.executable, "-m", "skyward.runner"],
        stdin=subprocess.DEVNULL,
        env={**os.environ, **account_variables(), **order["env"], **own},
        start_new_session=True,
    )
    threading.Thread(target=_end_with_input, args=(runner,), daemon=True).start()
    os.waitid(os.P_PID, runner.pid, os.WEXITED | os.WNOWAIT)
    _kill_group(runner)  # what it started goes too
    code = runner.wait()
    return 128 - code if code < 0 else code


def _end_with_input(runner: subprocess.Popen[bytes]) -> None:
    """End the runner and all it started when the client is gone (a thread)."""
    while os.read(0, 4096):
        pass
    _kill_group(runner)


def _kill_group(runner: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(runner.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _become_reaper() -> None:
    """Have what loses its parent become this process's child, whatever session it has gone to."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_descendants() -> None:
    """End what the runner has started, daemons included: each one's children become ours."""
    deadline = time.monotonic() + _END_S
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    while time.monotonic() < deadline and (pids := children.read_text().split()):
        for pid in map(int, pids):
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError, PermissionError):
                pass  # it has just ended


def _tell(client: socket.socket, answer: bytes) -> bool:
    """Whether somebody was there to be told."""
    try:
        client.sendall(answer)
    except OSError:
        return False
    return True


def _free_port() -> int:
    """A port on which nothing listens, outside the range that the kernel gives to connections."""
    while True:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
            try:
                sock.bind(("", random.randrange(20_000, 30_000)))  # noqa: S311 - guards nothing
            except OSError:
                continue
            return int(sock.getsockname()[1])


def _say(text: str) -> None:
    os.write(1, text.encode())


if __name__ == "__main__":
    sys.exit(take() if sys.argv[1:] == ["take"] else wait())
