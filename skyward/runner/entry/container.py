"""Operations in a container that exists before its node: starting a runner, and restoring it for the next client.

Processes, files and System V IPC objects are restored.
"""

from __future__ import annotations

import ctypes
import errno
import os
import pwd
import random
import re
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from skyward.model.instance import CHANNEL_VAR, ENV_VAR, KEY_FILE, RUN_DIR_VAR, SETTINGS_VAR
from skyward.model.rights import ACCOUNT, HOME
from skyward.runner.children import wait_unreaped
from skyward.system import socket, time


class NotCleanError(Exception):
    """Something left behind by a client cannot be removed; the message names it."""


_PORTS = (10_000, 20_000)  # below the kernel's ephemeral ports
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PROC = Path("/proc")
_SHM = "/dev/shm"
_QUEUES = "/dev/mqueue"
_FOR_ALL = ("/tmp", "/var/tmp", _SHM, _QUEUES)
_INITS = ("docker-init", "tini", "dumb-init", "catatonit", "podman-init")  # names of init programs of containers
_END_S = 5.0
_STEP_S = 0.02
_IPC_RMID = 0
_OCTAL = re.compile(r"\\(\d{3})")


# the runner -----------------------------------------------------------------------------------------------------------


def start_runner(
    order: Mapping[str, Any],
    run_dir: Path,
    environment: Mapping[str, str],
    channel: str = "",
    stdout: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start the runner of a node, in a session of its own.

    Args:
        order: the node's settings, as `skyward.nodes.node.Launch.order` writes them.
        run_dir: the node's run directory.
        environment: the variables to which those of the order are added.
        channel: identifier of the encrypted channel that clients connect through, hexadecimal; empty if there is none.
        stdout: destination of its output, as for `subprocess.Popen`.
    """
    with open(os.open(run_dir / KEY_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(bytes.fromhex(order["key"]))
    own = {ENV_VAR: order["compute_pool"], SETTINGS_VAR: order["runner"], RUN_DIR_VAR: str(run_dir)}
    if channel:
        own[CHANNEL_VAR] = channel
    return subprocess.Popen(
        [sys.executable, "-m", "skyward.runner"],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=None if stdout is None else subprocess.STDOUT,
        env={**environment, **_account_variables(), **order["env"], **own},
        start_new_session=True,
    )


def _account_variables() -> dict[str, str]:
    """Return name and home for a user without an account in the image, as many libraries look them up; else nothing."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return {"HOME": HOME, "USER": ACCOUNT, "LOGNAME": ACCOUNT}
    return {}


def end_group_with(runner: subprocess.Popen[bytes]) -> None:
    """Wait until a runner has ended, then kill everything it has started."""
    wait_unreaped(runner.pid)
    kill_group(runner)


def kill_group(runner: subprocess.Popen[bytes]) -> None:
    """Kill a runner and everything it has started; do nothing if they have ended."""
    try:
        os.killpg(runner.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def exit_status(runner: subprocess.Popen[bytes]) -> int:
    """Wait for a runner's end and return its exit status as shells do: 128 plus the number for signals."""
    code = runner.wait()
    return 128 - code if code < 0 else code


def free_port() -> int:
    """Return a port on which nothing listens, for frameworks to agree on."""
    while True:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
            try:
                sock.bind(("", random.randrange(*_PORTS)))  # noqa: S311 - not for security
            except OSError:
                continue
            return int(sock.getsockname()[1])


def gain_no_privileges() -> None:
    """Prevent this process and all it starts from gaining privileges through programs, permanently: prctl(2).

    Raises:
        OSError: the kernel refuses.
    """
    _prctl(_PR_SET_NO_NEW_PRIVS, "PR_SET_NO_NEW_PRIVS")


def adopt_orphans() -> None:
    """Make processes that lose their parent children of this process, whatever their session.

    Raises:
        OSError: the kernel refuses.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, "PR_SET_CHILD_SUBREAPER")


def _prctl(option: int, name: str) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({name}) failed")


def children() -> list[int]:
    """Return the children of the main thread, which orphans are; none if the system does not report them."""
    try:
        return list(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))
    except OSError:
        return []


def end_descendants() -> None:
    """Kill everything that this process's programs have started, including daemons: see `adopt_orphans`."""
    deadline = time.monotonic() + _END_S
    while time.monotonic() < deadline and (pids := children()):
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError, PermissionError):
                pass  # it has just ended


# files ----------------------------------------------------------------------------------------------------------------


def places() -> tuple[Path, ...]:
    """Return where functions write: working directory, home, directories for temporary files, shared memory."""
    own = (Path.cwd(), Path(os.environ.get("HOME", "/")))
    return tuple(dict.fromkeys(path for path in (*own, *map(Path, _FOR_ALL)) if path != Path("/")))


def files() -> dict[str, int]:
    """Return all files where functions write, with their change time in nanoseconds; 0 for directories."""
    return {path: _changed(about) for path, about in _walk()}


def volumes() -> list[str]:
    """Return the mounts in and below the places where functions write; they are not cleaned.

    They outlast the container or are shared. Only the shared memory and message queues that the engine has created for
    this container are cleaned.
    """
    own = [str(path) for path in places()]
    for_this_one = (_SHM, _QUEUES) if _has_own_ipc() else ()
    points = [point for point in mounts() if point not in for_this_one]
    return [point for point in points if any(point == place or point.startswith(f"{place}/") for place in own)]


def remove_files(known: Mapping[str, int], keep: Collection[str]) -> None:
    """Remove files added or changed since `files` returned `known`, except those in `keep`.

    Raises:
        NotCleanError: something cannot be removed.
    """
    for path, about in list(_walk()):
        if known.get(path) != _changed(about) and path not in keep:
            _remove(path)


def _changed(about: os.stat_result) -> int:
    return 0 if stat.S_ISDIR(about.st_mode) else about.st_ctime_ns


def _walk() -> Iterator[tuple[str, os.stat_result]]:
    """Yield everything in the places, directories before their content; volumes and links are not followed."""
    left = volumes()
    pending = [str(path) for path in places() if path.is_dir() and str(path) not in left]
    seen = {*pending, *left}
    while pending:
        for entry in _entries(pending.pop()):
            if entry.path in seen:
                continue
            try:
                about = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # removed meanwhile
            yield entry.path, about
            if stat.S_ISDIR(about.st_mode):
                seen.add(entry.path)
                pending.append(entry.path)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        if Path(folder).stat().st_uid == os.geteuid() and not os.access(folder, os.R_OK | os.X_OK):
            Path(folder).chmod(0o700)
        return list(os.scandir(folder))
    except (FileNotFoundError, PermissionError):
        return []  # removed meanwhile; or of another user, so that functions cannot have written there


def _remove(path: str) -> None:
    try:
        if Path(path).is_dir() and not Path(path).is_symlink():
            for folder, _, _ in os.walk(path):
                Path(folder).chmod(0o700)
            shutil.rmtree(path)
        else:
            Path(path).unlink()
    except FileNotFoundError:
        pass  # removed with its directory
    except OSError as error:
        raise NotCleanError(f"{path} cannot be removed ({error.strerror}).") from error


def mounts() -> dict[str, str]:
    """Return the mount points of this process, with the name of what is mounted there."""
    found = {}
    for line in (_PROC / "self/mountinfo").read_text().splitlines():
        words, _, rest = line.partition(" - ")
        found[_OCTAL.sub(lambda code: chr(int(code[1], 8)), words.split()[4])] = rest.split()[1]
    return found


# processes ------------------------------------------------------------------------------------------------------------


def is_alone() -> bool:
    """Return whether only this process runs in its container, besides init and processes started by the engine.

    To be called before the first client. If the container shares the machine's processes (`pid: host`), or there is no
    container, other processes must not be ended.
    """
    parents = _parents()
    own = _line(os.getpid(), parents)
    by_init = all((_PROC / str(pid) / "comm").read_text().strip() in _INITS for pid in own[1:])
    return own[-1] == 1 and by_init and all(pid in own or _line(pid, parents)[-1] != 1 for pid in parents)


def end_processes() -> None:
    """Kill every process of this container except this one, init, and those started by the engine.

    The latter are clients that request the container, and a person's shell: their parent is outside of the container.
    All processes started by a client's programs are killed, whatever their session and current parent.

    Raises:
        NotCleanError: some do not end.
    """
    deadline = time.monotonic() + _END_S
    while left := _clients():
        for pid in left:
            _kill(pid)
        if time.monotonic() > deadline:
            raise NotCleanError(f"processes do not end: {', '.join(map(str, left))}.")
        time.sleep(_STEP_S)


def _clients() -> list[int]:
    """Return the processes that a client has left behind."""
    parents = _parents(of_gone=1)  # else a program that keeps forking and exiting would never be seen
    own = _line(os.getpid(), parents)
    return [pid for pid in parents if pid not in own and _line(pid, parents)[-1] == 1]


def _line(pid: int, parents: Mapping[int, int]) -> list[int]:
    """Return a process and its ancestors, up to init or to one started by the engine."""
    line = [pid]
    while (parent := parents.get(line[-1], 0)) and parent not in line:
        line.append(parent)
    return line


def _parents(of_gone: int = 0) -> dict[int, int]:
    """Return the parent of each process that has not ended, 0 if the parent is not in this container.

    Args:
        of_gone: the parent to return for processes that end meanwhile.
    """
    found = {}
    for pid in (int(path.name) for path in _PROC.iterdir() if path.name.isdecimal()):
        try:
            state, parent = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            found[pid] = of_gone
            continue
        if state not in "ZX":
            found[pid] = int(parent)
        elif int(parent) == os.getpid():
            os.waitpid(pid, os.WNOHANG)  # needed in a container without init
    return found


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # it has just ended; or it is another user's, which is reported if it does not end


# System V IPC ---------------------------------------------------------------------------------------------------------


def remove_ipc() -> None:
    """Remove all System V shared memory, semaphores and message queues that belong to the container.

    Raises:
        NotCleanError: one cannot be removed.
    """
    if not _has_own_ipc():
        return
    libc = ctypes.CDLL(None, use_errno=True)
    for kind, remove, *rest in (
        ("shm", libc.shmctl, _IPC_RMID, None),
        ("sem", libc.semctl, 0, _IPC_RMID),
        ("msg", libc.msgctl, _IPC_RMID, None),
    ):
        for line in (_PROC / "sysvipc" / kind).read_text().splitlines()[1:]:
            number = int(line.split()[1])
            if remove(number, *rest) and ctypes.get_errno() not in (errno.EINVAL, errno.EIDRM):  # just removed
                raise NotCleanError(f"System V {kind} {number} cannot be removed ({os.strerror(ctypes.get_errno())}).")


def _has_own_ipc() -> bool:
    """Return whether shared memory, semaphores and queues belong to this container alone: no `ipc: host`.

    The engine names the /dev/shm that it creates for a container "shm".
    """
    return mounts().get(_SHM) == "shm"
