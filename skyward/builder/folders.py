"""Folders of builds: the user's cache of small files that save work, and temporary folders, which may hold secrets.

The cache may be deleted at any time. Without a usable one everything works as before, only slower, with one warning.
Files are written under another name and renamed, so readers never see partial files.

Temporary folders are private, and removed even if their owner was killed: a folder's owner holds a lock (flock) on the
folder itself, which the system releases with the process, and the next process that needs a folder removes those
without a lock.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from skyward.builder.events import warn
from skyward.errors import ConfigError

NOWHERE = Path("/nonexistent")  # the home of users without one, as for Debian's accounts
Kind = Literal["build", "lock", "login"]
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_PREFIXES = ("skyward-build-", "skyward-lock-", "skyward-login-")
_NEW_S = 1.0  # a folder is locked right after it was created


def home() -> Path:
    """Return the user's home directory; a path that does not exist if there is none."""
    try:
        found = Path.home()
    except RuntimeError:  # no HOME, and no account with this user's number
        return NOWHERE
    return found if found.is_absolute() else NOWHERE  # an empty HOME would be the working directory


def cache_path(*parts: str) -> Path:
    """Return the path of a file or folder in the cache, which need not exist."""
    from platformdirs import user_cache_path

    try:
        found = user_cache_path("skyward")
    except RuntimeError:  # no home; other versions keep `~`, which is a folder in the working directory
        found = NOWHERE
    return (found if found.is_absolute() else NOWHERE).joinpath(*parts)


def read(path: Path) -> str | None:
    """Return the text of a file in the cache; None if it is missing, unreadable, another user's, or not text."""
    try:
        return path.read_text(encoding="utf-8") if _is_own(path) else None
    except (OSError, UnicodeDecodeError):
        return None


def write(path: Path, text: str) -> bool:
    """Store a string in a file of the cache that only this user can read; False, with one warning, if not possible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not _is_own(cache_path()):
            raise PermissionError(errno.EPERM, "it belongs to another user")
        descriptor, fresh = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            Path(fresh).replace(path)
        except OSError:
            Path(fresh).unlink(missing_ok=True)
            raise
    except OSError as error:
        warn(
            f"the cache {cache_path()} cannot be used: {error.strerror or type(error).__name__}. Images are locked and "
            "built without what is kept there; set XDG_CACHE_HOME to a folder of yours."
        )
        return False
    return True


def newest(folder: Path, pattern: str) -> list[Path]:
    """Return the matching files of a cache folder, the last changed first; empty if it cannot be read."""
    try:
        return sorted(folder.glob(pattern), key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:  # unreadable, or a file has just been replaced
        return []


def uv_variables() -> dict[str, str]:
    """Return variables that switch off uv's cache if it is not writable; empty if it is."""
    folder = Path(os.environ.get("UV_CACHE_DIR") or cache_path().parent / "uv")
    problem = why_not_writable(folder)
    if problem is None:
        return {}
    warn(f"the cache {folder} of uv cannot be used: {problem}. Packages are looked up without it.")
    return {"UV_NO_CACHE": "1"}


def why_not_writable(folder: Path) -> str | None:
    """Return the reason why a folder, created if needed, is not writable; None if it is."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x" * 4096)
    except OSError as error:
        return error.strerror or type(error).__name__
    return None


def _is_own(path: Path) -> bool:
    return path.stat().st_uid == os.geteuid()


@contextmanager
def scratch_folder(kind: Kind) -> Iterator[Path]:
    """Create a folder that only this user can enter, for the duration of a `with` block.

    Args:
        kind: its purpose, which is part of its name.

    Raises:
        ConfigError: there is no space for it, or no place to create it.
    """
    sweep()
    lock = -1
    try:
        with tempfile.TemporaryDirectory(prefix=f"skyward-{kind}-") as name:
            lock = os.open(name, os.O_RDONLY)
            with suppress(OSError):  # a file system without locks
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield Path(name)
    except OSError as error:
        if lock != -1 and error.errno not in _NO_ROOM:
            raise
        place = tempfile.tempdir or os.environ.get("TMPDIR") or "/tmp"
        raise ConfigError(
            f"A temporary folder could not be created or filled in {place}: {error.strerror or error}. Make "
            "room there, or set TMPDIR to a folder that has some."
        ) from error
    finally:
        if lock != -1:
            os.close(lock)


def sweep() -> None:
    """Remove the folders of ended owners; only this user's own private folders are touched."""
    with suppress(OSError):
        for path in Path(tempfile.gettempdir()).iterdir():
            if path.name.startswith(_PREFIXES):
                with suppress(OSError):
                    _remove_ownerless(path)


def _remove_ownerless(path: Path) -> None:
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        found = os.fstat(lock)
        is_own = found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077
        if is_own and time.time() - found.st_mtime > _NEW_S:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)
