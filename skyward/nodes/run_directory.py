"""The run directories that a client shares with its nodes on the same machine: one per pool, one below it per node.

Only their owner can open them. A pool's directory names the client that made it, so that the next client can remove
what a killed one left.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from secrets import token_hex
from typing import Any

from skyward.errors import ProviderError, WireError
from skyward.model.instance import KEY_FILE
from skyward.nodes.process_id import ProcessId
from skyward.records.kept_pool import KeptPool, PoolLock, pool_folder, pool_records
from skyward.system import time
from skyward.wire.frames import dial

_OWNER_FILE = "owner"
_NAMED = "name "  # start of what an owner file says of a pool with a name, whose client may change
_PROCESS_FILE = "process"
_PREFIX = "skyward-"
_LONGEST = 107  # characters in the path of a unix socket
_ROOM = 64  # of these, for what follows the base: pool, node, name of the socket
_FRESH_S = 60  # an empty directory younger than this may be one that is being made


class PoolDirectory:
    """The directory of one pool.

    Attributes:
        path: where it is; short, because the paths of unix sockets must be.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, pool: str, base: Path, name: str | None = None) -> PoolDirectory:
        """Make the directory of a pool of this process, below `base`.

        Args:
            pool: identifier of the pool.
            base: where.
            name: that of a pool which may be kept when this process has ended; its directory may be there already.

        Raises:
            ProviderError: it exists already, or cannot be made.
        """
        path = base / f"{_PREFIX}{pool}"
        try:
            path.mkdir(mode=0o700, exist_ok=name is not None)
            if not _is_own(path):
                raise ProviderError(
                    f"The directory {path} of pool {pool} is another user's, or opens for others. End the pool with "
                    f"`skyward down {name}`, and have that directory removed."
                )
            owner = ProcessId.of(os.getpid()).text if name is None else f"{_NAMED}{pool_folder(name)}"
            (path / _OWNER_FILE).write_text(owner)
        except OSError as error:
            raise ProviderError(
                f"The directory {path} of pool {pool} cannot be made ({error.strerror}). Set XDG_RUNTIME_DIR or TMPDIR "
                "to a directory that this user can write to."
            ) from error
        return cls(path)

    @property
    def record_folder(self) -> Path | None:
        """Where the record of a pool with a name is: each client's state directory may be another; None without one."""
        try:
            text = (self.path / _OWNER_FILE).read_text(errors="replace")
        except OSError:
            return None
        return Path(text.removeprefix(_NAMED)) if text.startswith(_NAMED) else None

    def serves(self) -> bool:
        """Whether the agent of one of its nodes listens."""
        for path in self.path.glob("*/agent.sock"):
            with suppress(WireError):
                dial(path.parent, f"unix:{path.name}").close()
                return True
        return False

    @property
    def pool(self) -> str:
        """Identifier of the pool."""
        return self.path.name.removeprefix(_PREFIX)

    @property
    def nodes(self) -> tuple[Path, ...]:
        """The directories of the pool's nodes."""
        return tuple(p for p in sorted(self.path.glob("*")) if p.is_dir())

    def add(self, node: int, key: bytes) -> Path:
        """A fresh directory for a node, with the node's key in a file that only the owner can read."""
        names = (str(node) if again == 0 else f"{node}.{again}" for again in count())  # a replaced node leaves its own
        for name in names:
            path = self.path / name
            try:
                path.mkdir(mode=0o700)
            except FileExistsError:
                continue
            except OSError as error:
                raise ProviderError(
                    f"The directory {path} of node {node} cannot be made ({error.strerror})."
                ) from error
            break
        with open(os.open(path / KEY_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(key)
        return path

    def keep(self, content: bytes) -> Path:
        """A file with this content, which containers can mount, for as long as the pool lives."""
        handle, name = tempfile.mkstemp(dir=self.path)
        with open(handle, "wb") as file:
            file.write(content)
            os.fchmod(handle, 0o644)
        return Path(name)

    def is_orphaned(self) -> bool:
        """Whether the client that made it has certainly ended.

        A directory that names no client and is not empty is not ours: people call directories "skyward-results".
        """
        try:
            owner = ProcessId.parse((self.path / _OWNER_FILE).read_text(errors="replace"))
            if owner:
                return owner.is_gone()
        except FileNotFoundError:
            pass
        except OSError:
            return False
        try:
            unused = all(path.name == _OWNER_FILE for path in self.path.iterdir())
            return unused and time.time() - self.path.stat().st_mtime > _FRESH_S
        except OSError:  # removed at this moment
            return False

    def processes(self) -> Iterator[tuple[dict[str, Any], ProcessId]]:
        """The nodes that are processes of this machine, as `note_process` has recorded them."""
        for _, about, process in self.processes_by_path():
            yield about, process

    def processes_by_path(self) -> Iterator[tuple[Path, dict[str, Any], ProcessId]]:
        """The same, with the directory of each."""
        for node in self.nodes:
            about, process = _noted(node)
            if process:
                yield node, about, process

    def remove(self) -> None:
        """Remove it with everything in it."""
        shutil.rmtree(self.path, ignore_errors=True)


def share(directory: Path, owner: int | None) -> None:
    """Let the programs of a container use the node's directory that is mounted into it.

    Args:
        directory: of the node, as `add` made it.
        owner: number of the user that they run as. None where only the image can tell: then everybody may use it, which
            here means nobody else, since the pool's directory above it opens for its owner only.
    """
    paths = (directory, directory / KEY_FILE)
    if owner is None:
        for path, mode in zip(paths, (0o777, 0o644), strict=True):
            path.chmod(mode)
    elif owner != os.geteuid():
        for path in paths:
            os.chown(path, owner, -1)


def note_process(directory: Path, pid: int, **about: Any) -> None:
    """Record a node's process in its directory, so that other clients can find it."""
    (directory / _PROCESS_FILE).write_text(json.dumps({**about, "process": ProcessId.of(pid).text}))


def noted_process(directory: Path) -> ProcessId | None:
    """The process of a node, as `note_process` has recorded it; None where there is no record."""
    return _noted(directory)[1]


def _noted(directory: Path) -> tuple[dict[str, Any], ProcessId | None]:
    try:
        about = json.loads((directory / _PROCESS_FILE).read_text())
    except (OSError, ValueError):  # a container's; or being made or removed at this moment
        return {}, None
    return about, ProcessId.parse(about.pop("process"))


def sweep_orphans() -> None:
    """Remove what this user's ended clients left; nodes that still run keep theirs until their lease ends."""
    for directory in pool_directories():
        if (folder := directory.record_folder) is not None:
            _sweep_named(directory, folder)
        elif directory.is_orphaned() and all(process.is_gone() for _, process in directory.processes()):
            directory.remove()
    here = {directory.pool for directory in pool_directories()}
    for folder, record in pool_records():
        if record.pool not in here and record.until is not None and time.time() > record.until + _FRESH_S:
            _remove_record(folder, record.pool)


def _remove_record(folder: Path, pool: str) -> None:
    """Remove the record of a pool that has ended on other machines, if no client has it."""
    lock = PoolLock(folder)
    if lock.acquire(wait=False):
        record = KeptPool.read(folder)
        if record is None or (record.pool == pool and record.until is not None):
            lock.remove()
        lock.release()


def _sweep_named(directory: PoolDirectory, folder: Path) -> None:
    """Remove what is left of a pool with a name, if no client has it and its nodes have ended."""
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
    """The directories of all of this user's pools on this machine."""
    for base in {runtime_base(), temporary_base()}:
        for path in base.glob(f"{_PREFIX}*"):
            if "-" in path.name.removeprefix(_PREFIX):  # a build's, or another program's: no pool has such a name
                continue
            try:
                about = path.lstat()  # a link is not ours
            except OSError:  # removed at this moment
                continue
            if stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid():
                yield PoolDirectory(path)


def _is_own(path: Path) -> bool:
    """Whether a directory opens for this user alone; the name of a pool's that was kept is known to others."""
    about = path.lstat()
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o077


@contextmanager
def private_directory() -> Iterator[Path]:
    """A temporary directory for secrets and sockets of this process; the next client removes that of a killed one."""
    directory, owner = PoolDirectory.create(f"{token_hex(4)}.x", runtime_base()), os.getpid()
    try:
        yield directory.path
    finally:
        if os.getpid() == owner:  # a forked child that ends takes nothing from this process
            directory.remove()


def runtime_base() -> Path:
    """The directory for a user's sockets: $XDG_RUNTIME_DIR, else the temporary directory."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return _short(Path(runtime)) if runtime and os.access(runtime, os.W_OK) else temporary_base()


def temporary_base() -> Path:
    """The directory for sockets and for files of any size: the temporary directory."""
    return _short(Path(tempfile.gettempdir()))


def _short(base: Path) -> Path:
    """The directory itself, or /tmp where its path leaves no room for a socket's name."""
    return base if len(str(base)) <= _LONGEST - _ROOM else Path("/tmp")
