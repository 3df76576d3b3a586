"""The directories through which a client and its nodes on the same machine talk: one per pool, one below it per node.

Only their owner can open them. A pool's directory names the client that made it, so that what a killed client left is
swept up by the next.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from secrets import token_hex
from typing import Any

from skyward.errors import ProviderError
from skyward.providers.owner import Owner
from skyward.system import time

KEY_FILE = "key"
_OWNER_FILE = "owner"
_PROCESS_FILE = "process"
_PREFIX = "skyward-"
_LONGEST = 107  # characters in the path of a unix socket
_ROOM = 64  # of them, what follows the base: pool, node, name of the socket
_FRESH_S = 60  # a directory this young without an owner is just being made


class PoolDirectory:
    """The directory of one pool.

    Attributes:
        path: where it is; short, because the paths of unix sockets must be.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, pool: str, base: Path) -> PoolDirectory:
        """Make the directory of a pool of this process, below `base`.

        Raises:
            ProviderError: it exists already, or cannot be made.
        """
        path = base / f"{_PREFIX}{pool}"
        try:
            path.mkdir(mode=0o700)
            (path / _OWNER_FILE).write_text(Owner.of(os.getpid()).text)
        except OSError as error:
            raise ProviderError(
                f"The directory {path} of pool {pool} cannot be made ({error.strerror}). Set XDG_RUNTIME_DIR or TMPDIR "
                "to a directory that this user can write to."
            ) from error
        return cls(path)

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

        What names no client, and has anything in it, is none of ours: people call directories "skyward-results".
        """
        try:
            owner = Owner.parse((self.path / _OWNER_FILE).read_text(errors="replace"))
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

    def processes(self) -> Iterator[tuple[dict[str, Any], Owner]]:
        """The nodes that are processes of this machine: what `note_process` wrote of each."""
        for node in self.nodes:
            try:
                about = json.loads((node / _PROCESS_FILE).read_text())
            except (OSError, ValueError):  # of a container; or being made or removed at this moment
                continue
            process = Owner.parse(about.pop("process"))
            if process:
                yield about, process

    def remove(self) -> None:
        """Remove it with everything in it."""
        shutil.rmtree(self.path, ignore_errors=True)


def share(directory: Path, owner: int | None) -> None:
    """Let the programs of a container, into which a node's directory is mounted, use it.

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
    """Write into a node's directory which process it is, so that it is found again."""
    (directory / _PROCESS_FILE).write_text(json.dumps({**about, "process": Owner.of(pid).text}))


def sweep_orphans() -> None:
    """Remove what this user's ended clients left; nodes that still run keep theirs until their lease ends."""
    for directory in pool_directories():
        if directory.is_orphaned() and all(process.is_gone() for _, process in directory.processes()):
            directory.remove()


def pool_directories() -> Iterator[PoolDirectory]:
    """The directories of all of this user's pools on this machine."""
    for base in {runtime_base(), temporary_base()}:
        for path in base.glob(f"{_PREFIX}*"):
            if "-" in path.name.removeprefix(_PREFIX):  # a build's, or somebody else's: no pool is called so
                continue
            try:
                about = path.lstat()  # a link is somebody else's work
            except OSError:  # removed at this moment
                continue
            if stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid():
                yield PoolDirectory(path)


@contextmanager
def private_directory() -> Iterator[Path]:
    """A directory for secrets and sockets of this process, for a while; what a killed one leaves is swept up."""
    directory = PoolDirectory.create(f"{token_hex(4)}.x", runtime_base())
    try:
        yield directory.path
    finally:
        directory.remove()


def runtime_base() -> Path:
    """Where a user's sockets belong: the run-time directory, else the temporary one."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return _short(Path(runtime)) if runtime and os.access(runtime, os.W_OK) else temporary_base()


def temporary_base() -> Path:
    """Where files of any size may lie as well: the temporary directory."""
    return _short(Path(tempfile.gettempdir()))


def _short(base: Path) -> Path:
    """The directory itself, or /tmp where its name leaves no room for a socket's."""
    return base if len(str(base)) <= _LONGEST - _ROOM else Path("/tmp")
