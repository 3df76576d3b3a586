"""A container that is there before its node: starts a runner in it, and restores it for the next client.

Restored are processes, files and System V IPC objects.
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
    """Something that a client has left cannot be removed; the message names it."""


_PORTS = (10_000, 20_000)  # below those that the kernel gives to connections, and those where Swarm tasks listen
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
        order: what the node is to be, as `skyward.nodes.node.Launch.order` writes it.
        run_dir: the node's run directory.
        environment: the variables to which those of the order are added.
        channel: what names the encrypted channel that clients come through, hexadecimal; empty if there is none.
        stdout: where its output goes, as `subprocess.Popen` takes it.
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
    """Name and home for a user that the image has only a number for, which many libraries look up; else nothing."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return {"HOME": HOME, "USER": ACCOUNT, "LOGNAME": ACCOUNT}
    return {}


def end_group_with(runner: subprocess.Popen[bytes]) -> None:
    """Wait until a runner has ended, and end what it has started."""
    wait_unreaped(runner.pid)
    kill_group(runner)


def kill_group(runner: subprocess.Popen[bytes]) -> None:
    """End a runner and what it has started; nothing happens if they have ended."""
    try:
        os.killpg(runner.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def exit_status(runner: subprocess.Popen[bytes]) -> int:
    """The exit status of a runner as shells give it: 128 and the number for signals. Waits for its end."""
    code = runner.wait()
    return 128 - code if code < 0 else code


def free_port() -> int:
    """A port on which nothing listens, for what frameworks agree on."""
    while True:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
            try:
                sock.bind(("", random.randrange(*_PORTS)))  # noqa: S311 - guards nothing
            except OSError:
                continue
            return int(sock.getsockname()[1])


def gain_no_privileges() -> None:
    """Let neither this process nor any it starts gain privileges by the programs it runs: prctl(2), for good.

    Raises:
        OSError: the kernel refuses.
    """
    _prctl(_PR_SET_NO_NEW_PRIVS, "PR_SET_NO_NEW_PRIVS")


def adopt_orphans() -> None:
    """Have processes that lose their parent become this process' children, whatever session they have gone to.

    Raises:
        OSError: the kernel refuses.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, "PR_SET_CHILD_SUBREAPER")


def _prctl(option: int, name: str) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({name}) failed")


# files ----------------------------------------------------------------------------------------------------------------


def places() -> tuple[Path, ...]:
    """Where functions write: working directory, home, directories for temporary files, shared memory."""
    own = (Path.cwd(), Path(os.environ.get("HOME", "/")))
    return tuple(dict.fromkeys(path for path in (*own, *map(Path, _FOR_ALL)) if path != Path("/")))


def files() -> dict[str, int]:
    """All files where functions write, with the time of their last change in nanoseconds; 0 for directories."""
    return {path: _changed(about) for path, about in _walk()}


def volumes() -> list[str]:
    """The mounts where functions write, and below: they outlast the container or are shared, and are not cleaned.

    Only the shared memory and the message queues that the engine has made for this container are cleaned.
    """
    own = [str(path) for path in places()]
    for_this_one = (_SHM, _QUEUES) if _has_own_ipc() else ()
    points = [point for point in mounts() if point not in for_this_one]
    return [point for point in points if any(point == place or point.startswith(f"{place}/") for place in own)]


def remove_files(known: Mapping[str, int], keep: Collection[str]) -> None:
    """Remove files that were added or changed since `files` gave `known`, except for `keep`.

    Raises:
        NotCleanError: something cannot be removed.
    """
    for path, about in list(_walk()):
        if known.get(path) != _changed(about) and path not in keep:
            _remove(path)


def _changed(about: os.stat_result) -> int:
    return 0 if stat.S_ISDIR(about.st_mode) else about.st_ctime_ns


def _walk() -> Iterator[tuple[str, os.stat_result]]:
    """Everything in the places, directories before what is in them; volumes and links are not entered."""
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
        return []  # removed meanwhile; or of another user, and functions cannot have written there either


def _remove(path: str) -> None:
    try:
        if Path(path).is_dir() and not Path(path).is_symlink():
            for folder, _, _ in os.walk(path):
                Path(folder).chmod(0o700)
            shutil.rmtree(path)
        else:
            Path(path).unlink()
    except FileNotFoundError:
        pass  # with the directory that it was in
    except OSError as error:
        raise NotCleanError(f"{path} cannot be removed ({error.strerror}).") from error


def mounts() -> dict[str, str]:
    """The mount points of this process, and the name of what is mounted there."""
    found = {}
    for line in (_PROC / "self/mountinfo").read_text().splitlines():
        words, _, rest = line.partition(" - ")
        found[_OCTAL.sub(lambda code: chr(int(code[1], 8)), words.split()[4])] = rest.split()[1]
    return found


# processes ------------------------------------------------------------------------------------------------------------


def is_alone() -> bool:
    """Whether only this process runs in its container, besides its init and what the engine has started there.

    To be asked before the first client. Where the container shares the machine's processes (`pid: host`), or there is
    no container, other processes must not be ended.
    """
    parents = _parents()
    own = _line(os.getpid(), parents)
    by_init = all((_PROC / str(pid) / "comm").read_text().strip() in _INITS for pid in own[1:])
    return own[-1] == 1 and by_init and all(pid in own or _line(pid, parents)[-1] != 1 for pid in parents)


def end_processes() -> None:
    """End every process of this container except this one, init, and what the engine has started there.

    The latter are clients that ask for the container, and a person's shell: their parent is outside of the container.
    What a client's programs have started ends, whatever its session and its parent now.

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
    """The processes that a client has left."""
    parents = _parents(of_gone=1)  # else a program that forks and exits again and again would never be seen
    own = _line(os.getpid(), parents)
    return [pid for pid in parents if pid not in own and _line(pid, parents)[-1] == 1]


def _line(pid: int, parents: Mapping[int, int]) -> list[int]:
    """A process and its ancestors, up to init or to one that the engine has started."""
    line = [pid]
    while (parent := parents.get(line[-1], 0)) and parent not in line:
        line.append(parent)
    return line


def _parents(of_gone: int = 0) -> dict[int, int]:
    """The parent of each process that has not ended, 0 where that is not in this container.

    Args:
        of_gone: the parent to give for processes that end meanwhile.
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
            os.waitpid(pid, os.WNOHANG)  # in a container without an init of its own
    return found


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # it has just ended; or is another user's, and is reported if it does not end


# System V IPC ---------------------------------------------------------------------------------------------------------


def remove_ipc() -> None:
    """Remove all shared memory, semaphores and message queues of System V that belong to the container.

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
            if remove(number, *rest) and ctypes.get_errno() not in (errno.EINVAL, errno.EIDRM):  # it has just gone
                raise NotCleanError(f"System V {kind} {number} cannot be removed ({os.strerror(ctypes.get_errno())}).")


def _has_own_ipc() -> bool:
    """Whether shared memory, semaphores and queues belong to this container alone, as without `ipc: host`.

    The engine calls the /dev/shm that it makes for a container shm.
    """
    return mounts().get(_SHM) == "shm"
