"""A node in standby: what a container of a compose file runs, and what makes it the node of a pool for a while.

`python -m skyward.runner.standby` waits. A pool's client runs `... standby take` beside it, through the engine: that
it can do so proves that it may, since whoever commands the engine commands the container. It gets the node for itself
or learns that another has it, and then hands over, on standard input, what the node is to be. When that input ends,
however its client ended, the node ends at once and is free again.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

from skyward.runner.account import account_variables
from skyward.runner.config import KEY_FILE, RUN_DIR_VAR, SETTINGS_VAR
from skyward.system import socket, threading, time

LEASE_VAR = "SKYWARD_STANDBY_LEASE"  # seconds nobody may have the node before its container ends; empty: any time
GREETING = "skyward-standby "  # what the line starts with that says that the node is the client's
EXIT_TAKEN = 75  # another client has the node
_LOCK = Path(tempfile.gettempdir()) / "skyward-standby.lock"
_PATIENCE_S = 1.0  # `wait` looks for a moment whether the node is taken, and a client before this one may just end
_STEP_S = 0.05
_END_S = 5.0
_PR_SET_CHILD_SUBREAPER = 36


def wait() -> int:
    """Do nothing until asked to end, or until nobody has had the node for its lease."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
    lease_s = float(os.environ.get(LEASE_VAR) or 0)
    if not lease_s:
        signal.pause()
    taken = time.monotonic()
    while time.monotonic() - taken < lease_s:
        time.sleep(lease_s / 4)
        with _LOCK.open("a") as lock:
            if not _lock(lock):
                taken = time.monotonic()
    return 0


def take() -> int:
    """Be the node that standard input describes, until it ends."""
    lock = _LOCK.open("a")
    deadline = time.monotonic() + _PATIENCE_S
    while not _lock(lock):
        if time.monotonic() > deadline:
            return EXIT_TAKEN
        time.sleep(_STEP_S)
    _become_reaper()
    run_dir = Path(tempfile.mkdtemp(prefix="skyward-"))
    try:
        _say(f"{GREETING}{json.dumps({'run_dir': str(run_dir), 'port': _free_port()})}\n")
        line = sys.stdin.buffer.readline()
        return _be(json.loads(line), run_dir) if line else 0
    finally:
        _end_descendants()
        shutil.rmtree(run_dir, ignore_errors=True)


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


def _lock(lock: IO[str]) -> bool:
    """Whether the node is now this process's own, until it ends or closes the file."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
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
