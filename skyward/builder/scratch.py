"""Temporary folders of builds, which may hold secrets: private, and removed even if their owner was killed.

A folder's owner holds a lock (flock) on the folder itself for as long as it uses it. The system ends that lock with the
process, so a folder without one has no owner, and the next process that needs a folder removes it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from skyward.errors import ConfigError

Kind = Literal["build", "lock", "login"]
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_PREFIXES = ("skyward-build-", "skyward-lock-", "skyward-login-")


@contextmanager
def scratch_folder(kind: Kind) -> Iterator[Path]:
    """A folder that only this user can enter, for the time of a `with` block.

    Args:
        kind: what it is for, which is part of its name.

    Raises:
        ConfigError: there is no room for it, or no place where it can be made.
    """
    try:
        sweep()
        folder, lock = _owned(kind)
    except OSError as error:
        raise _no_place(error) from error
    try:
        with folder:
            yield Path(folder.name)
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise _no_place(error) from error
        raise
    finally:
        os.close(lock)


def _no_place(error: OSError) -> ConfigError:
    place = tempfile.tempdir or os.environ.get("TMPDIR") or "/tmp"
    return ConfigError(
        f"A folder for temporary files could not be made or filled in {place}: {error.strerror or error}. Make room "
        "there, or set TMPDIR to a folder that has some."
    )


def sweep() -> None:
    """Remove the folders of owners that are gone. What is not this user's own private folder is not touched."""
    place = Path(tempfile.gettempdir())
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIXES):
                _remove_ownerless(place / entry.name)


def _owned(kind: Kind) -> tuple[tempfile.TemporaryDirectory[str], int]:
    """A new folder and the descriptor that holds its lock."""
    while True:
        folder = tempfile.TemporaryDirectory(prefix=f"skyward-{kind}-")
        lock = _open(Path(folder.name))
        if lock is not None:
            if _lock(lock) is not False and _is_at(lock, folder.name):
                return folder, lock
            os.close(lock)
        folder.cleanup()  # another process swept it before it was locked


def _remove_ownerless(path: Path) -> None:
    lock = _open(path)
    if lock is None:
        return
    try:
        found = os.fstat(lock)
        is_own = found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077
        if is_own and _lock(lock) and _is_at(lock, path):
            for folder, _, _ in os.walk(path):  # what was copied into it may be in folders that nobody may write to
                Path(folder).chmod(0o700)
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)


def _open(path: Path) -> int | None:
    """A descriptor of a directory; None for anything else, a link included."""
    with suppress(OSError):
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    return None


def _lock(descriptor: int) -> bool | None:
    """Lock a folder: False if another has it, None where the file system knows no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_at(descriptor: int, path: Path | str) -> bool:
    with suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    return False
