"""The run directories that a client shares with its nodes on the same machine: one per pool, with one inside per node.

Only their owner can access them. A pool's directory identifies the client that created it, so that the next client can
remove the leftovers of a killed one.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

from skyward.errors import ProviderError, WireError
from skyward.model.instance import KEY_FILE, RUN_DIR_VAR
from skyward.nodes.process_id import ProcessId
from skyward.records.kept_pool import KeptPool, PoolLock, pool_folder, pool_records
from skyward.system import time
from skyward.wire.frames import dial

_OWNER_FILE = "owner"
_NAMED = "name "  # prefix in the owner file of a named pool, whose client may change
_PROCESS_FILE = "process"
_PREFIX = "skyward-"
_LONGEST = 107  # characters in the path of a unix socket
_ROOM = 64  # of these, reserved for what follows the base: pool, node, name of the socket
_KILLED_S = 5.0  # how long killed processes may take to end
_LATE_S = 60  # after the end of kept nodes until their record is removed


class PoolDirectory:
    """The directory of one pool.

    Attributes:
        path: its path, which must be short because those of unix sockets are limited.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, pool: str, base: Path, name: str | None = None) -> PoolDirectory:
        """Create the directory of a pool of this process in `base`.

        Args:
            pool: identifier of the pool.
            base: the parent directory.
            name: name under which the pool may be kept after this process; its directory may exist. None if unnamed.

        Raises:
            ProviderError: it exists already or cannot be created.
        """
        path = base / f"{_PREFIX}{pool}"
        try:
            path.mkdir(mode=0o700, exist_ok=name is not None)
            if not _is_own(path):
                raise ProviderError(
                    f"The directory {path} of pool {pool} is another user's, or opens for others. End the pool with "
                    f"`skyward down {name}`, and let its owner remove that directory."
                )
            owner = ProcessId.of(os.getpid()).text if name is None else f"{_NAMED}{pool_folder(name)}"
            (path / _OWNER_FILE).write_text(owner)
        except OSError as error:
            raise ProviderError(
                f"The directory {path} of pool {pool} cannot be created ({error.strerror}). Set XDG_RUNTIME_DIR or "
                "TMPDIR to a directory that this user can write to."
            ) from error
        return cls(path)

    @property
    def record_folder(self) -> Path | None:
        """The directory of a named pool's record (state directories of clients may differ); None for other pools."""
        try:
            text = (self.path / _OWNER_FILE).read_text(errors="replace")
        except OSError:
            return None
        return Path(text.removeprefix(_NAMED)) if text.startswith(_NAMED) else None

    def serves(self) -> bool:
        """Return whether the agent of one of its nodes is listening."""
        for path in self.path.glob("*/agent.sock"):
            with suppress(WireError):
                dial(path.parent, f"unix:{path.name}").close()
                return True
        return False

    @property
    def pool(self) -> str:
        """Identifier of the pool."""
        return self.path.name.removeprefix(_PREFIX)

    def add(self, node: int, key: bytes) -> Path:
        """Create a directory for a node, with the node's key in a file that only the owner can read."""
        try:
            path = Path(tempfile.mkdtemp(prefix=f"{node}.", dir=self.path))
        except OSError as error:
            raise ProviderError(
                f"The directory of node {node} cannot be created in {self.path} ({error.strerror})."
            ) from error
        with open(os.open(path / KEY_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(key)
        return path

    def keep(self, content: bytes) -> Path:
        """Write a file with this content, which containers can mount until the pool ends; return its path."""
        handle, name = tempfile.mkstemp(dir=self.path)
        with open(handle, "wb") as file:
            file.write(content)
            os.fchmod(handle, 0o644)
        return Path(name)

    def is_orphaned(self) -> bool:
        """Return whether the client that created it has certainly ended.

        A directory that names no client is not a pool's: users may call directories "skyward-results".
        """
        try:
            owner = ProcessId.parse((self.path / _OWNER_FILE).read_text(errors="replace"))
        except OSError:
            return False
        return owner is not None and owner.is_gone()

    def processes(self) -> Iterator[tuple[dict[str, Any], ProcessId]]:
        """Yield the nodes that are processes of this machine, as recorded by `note_process`, with their directories."""
        for node in sorted(self.path.glob("*/")):
            about, process = _noted(node)
            if process:
                yield {**about, "directory": node}, process

    def remove(self) -> None:
        """Remove the directory with everything in it, after ending processes left behind by nodes."""
        remove(self.path)


def share(directory: Path, owner: int | None) -> None:
    """Let the programs of a container access the node's directory that is mounted into it.

    Args:
        directory: the node's directory, from `add`.
        owner: number of the user they run as. None if only the image defines it: the directory is then open to all,
            which in effect adds nobody, since only its owner can access the pool's directory above.
    """
    paths = (directory, directory / KEY_FILE)
    if owner is None:
        for path, mode in zip(paths, (0o777, 0o644), strict=True):
            path.chmod(mode)
    elif owner != os.geteuid():
        for path in paths:
            os.chown(path, owner, -1)


def remove(directory: Path) -> None:
    """Remove the directory of a node or a pool, and kill processes that functions have left behind there.

    The agents of nodes that are processes do the latter, too, unless they were killed. Linux shows which processes have
    the directory in their environment.
    """
    mark, is_left = os.fsencode(f"\0{RUN_DIR_VAR}={directory}"), True
    deadline = time.monotonic() + _KILLED_S
    while is_left and time.monotonic() < deadline:
        is_left = False
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):  # it has ended, or is another user's
                if mark in b"\0" + path.read_bytes() and path.parent.name != str(os.getpid()):
                    os.kill(int(path.parent.name), signal.SIGKILL)
                    is_left = True
    shutil.rmtree(directory, ignore_errors=True)


def note_process(directory: Path, pid: int, **about: Any) -> None:
    """Record a node's process in its directory, so that other clients can find it."""
    (directory / _PROCESS_FILE).write_text(json.dumps({**about, "process": ProcessId.of(pid).text}))


def noted_process(directory: Path) -> ProcessId | None:
    """Return the process of a node, as recorded by `note_process`; None if there is no record."""
    return _noted(directory)[1]


def _noted(directory: Path) -> tuple[dict[str, Any], ProcessId | None]:
    try:
        about = json.loads((directory / _PROCESS_FILE).read_text())
    except (OSError, ValueError):  # the node is a container, or is being created or removed
        return {}, None
    return about, ProcessId.parse(about.pop("process"))


def sweep_orphans() -> None:
    """Remove leftovers of this user's ended clients, except directories of nodes that run until their lease expires."""
    for directory in pool_directories():
        if (folder := directory.record_folder) is not None:
            _sweep_named(directory, folder)
        elif directory.is_orphaned() and all(process.is_gone() for _, process in directory.processes()):
            directory.remove()
    here = {directory.pool for directory in pool_directories()}
    for folder, record in pool_records():
        if record.pool not in here and record.until is not None and time.time() > record.until + _LATE_S:
            _remove_record(folder, record.pool)


def _remove_record(folder: Path, pool: str) -> None:
    """Remove the record of a pool that has ended on other machines, unless a client holds it."""
    lock = PoolLock(folder)
    if lock.acquire(wait=False):
        record = KeptPool.read(folder)
        if record is None or (record.pool == pool and record.until is not None):
            lock.remove()
        lock.release()


def _sweep_named(directory: PoolDirectory, folder: Path) -> None:
    """Remove the leftovers of a named pool, unless a client holds it or its nodes still run."""
    record = KeptPool.read(folder)
    if record is not None and record.until is not None and time.time() < record.until:
        return
    lock = PoolLock(folder)
    if folder.exists() and not lock.acquire(wait=False):
        return
    try:
        if not directory.serves():
            directory.remove()
            record = KeptPool.read(folder)
            if record is None or record.pool == directory.pool:
                lock.remove()
    finally:
        lock.release()


def pool_directories() -> Iterator[PoolDirectory]:
    """Yield the directories of all of this user's pools on this machine."""
    for base in {runtime_base(), temporary_base()}:
        for path in base.glob(f"{_PREFIX}*"):
            if "-" in path.name.removeprefix(_PREFIX):  # a build's or another program's: no pool has such a name
                continue
            try:
                about = path.lstat()  # links are not followed
            except OSError:  # removed meanwhile
                continue
            if stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid():
                yield PoolDirectory(path)


def _is_own(path: Path) -> bool:
    """Return whether only this user can access a directory: others may know the name of one that was kept."""
    about = path.lstat()
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o077


@contextmanager
def private_directory() -> Iterator[Path]:
    """Create a temporary directory for this process's secrets and sockets; a later client removes a killed one's."""
    directory, owner = PoolDirectory.create(f"{token_hex(4)}.x", runtime_base()), os.getpid()
    try:
        yield directory.path
    finally:
        if os.getpid() == owner:  # a forked child must not remove it
            directory.remove()


def runtime_base() -> Path:
    """Return the directory for a user's sockets: $XDG_RUNTIME_DIR, else the temporary directory."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return _short(Path(runtime)) if runtime and os.access(runtime, os.W_OK) else temporary_base()


def temporary_base() -> Path:
    """Return the directory for sockets and for files of any size: the temporary directory."""
    return _short(Path(tempfile.gettempdir()))


def _short(base: Path) -> Path:
    """Return the directory itself, or /tmp if its path is too long to append a socket's name."""
    return base if len(str(base)) <= _LONGEST - _ROOM else Path("/tmp")
