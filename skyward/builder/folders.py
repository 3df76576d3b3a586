"""Folders of builds: the user's cache of small files that save work, and temporary folders, which may hold secrets.

The cache may be deleted at any time. Without a usable one (read-only home, full disk, another user's home, none at all)
everything works as before, only slower, with one warning. Files are written under another name and renamed, so readers
never see partial files.

Temporary folders are private, and removed even if their owner was killed. A folder's owner holds a lock (flock) on the
folder itself while it uses it. The system releases the lock with the process, so a folder without one has no owner, and
the next process that needs a folder removes it.
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
from functools import lru_cache
from pathlib import Path
from typing import Literal

from skyward.builder.events import warn
from skyward.errors import ConfigError

NOWHERE = Path("/nonexistent")  # the home of users without one, as for Debian's accounts
Kind = Literal["build", "lock", "login"]
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_PREFIXES = ("skyward-build-", "skyward-lock-", "skyward-login-")


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


def cache_folder(*parts: str) -> Path | None:
    """Return a folder of the cache, creating it if needed; None if it cannot be used."""
    path = cache_path(*parts)
    if not _is_own():
        return None
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        gone_without(error)
        return None
    return path


def read(path: Path) -> str | None:
    """Return the text of a file in the cache; None if it is missing, unreadable or not text."""
    if not _is_own():
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        gone_without(error)
    except UnicodeDecodeError:  # from another program, or half written before a crash: it is written again
        pass
    return None


def write(path: Path, text: str) -> bool:
    """Store a string in a file of the cache that only this user can read; False if that is not possible."""
    if cache_folder(*path.parent.relative_to(cache_path()).parts) is None:
        return False
    fresh: str | None = None
    try:
        descriptor, fresh = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        Path(fresh).replace(path)
    except OSError as error:
        if fresh is not None:
            Path(fresh).unlink(missing_ok=True)
        gone_without(error)
        return False
    return True


def newest(folder: Path, pattern: str) -> list[Path]:
    """Return the matching files of a cache folder, the last changed first; empty if it cannot be read."""
    ages: dict[Path, float] = {}
    with suppress(OSError):  # `read` reports the reason, and files may disappear meanwhile
        for path in folder.glob(pattern):
            with suppress(OSError):
                ages[path] = path.stat().st_mtime
    return sorted(ages, key=lambda path: ages[path], reverse=True)


def drop_old(folder: Path, kept_s: float = 30 * 86400.0) -> None:
    """Remove files of a cache folder older than `kept_s`, so that it does not grow without limit.

    Other processes write there at the same time; files that disappear meanwhile are ignored.
    """
    with suppress(OSError):
        for path in list(folder.iterdir()):
            with suppress(OSError):
                if path.stat().st_mtime < time.time() - kept_s:
                    path.unlink()


def remove(path: Path) -> None:
    """Remove a file of the cache, if it exists."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        gone_without(error)


def uv_variables() -> dict[str, str]:
    """Return variables that switch off uv's cache if it is not writable; empty if it is."""
    given = os.environ.get("UV_CACHE_DIR")
    folder = Path(given) if given else cache_path().parent / "uv"
    if given or cache_folder() is not None:
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


def _is_own() -> bool:
    """Return whether the cache belongs to this user; otherwise warn that it is not used."""
    reason = _refused(str(cache_path()), os.geteuid())
    if reason:
        gone_without(reason)
    return not reason


@lru_cache(maxsize=16)
def _refused(folder: str, user: int) -> str | None:
    """Return a reason to refuse another user's cache: its content is trusted, and new files in it would be theirs."""
    path = Path(folder)
    there = next((each for each in (path, *path.parents) if os.path.lexists(each)), path)
    owner = os.lstat(there).st_uid
    if owner != user and (there == path or user == 0):  # root, with the home of the user who called it
        return f"{there} belongs to another user (number {owner})"
    return None


def gone_without(reason: str | OSError | NotImplementedError) -> None:
    """Warn once that the cache is not used."""
    if isinstance(reason, OSError):
        reason = reason.strerror or type(reason).__name__
    warn(
        f"the cache {cache_path()} cannot be used: {reason}. Images are locked and built without what is kept there; "
        "set XDG_CACHE_HOME to a folder of yours."
    )


@contextmanager
def scratch_folder(kind: Kind) -> Iterator[Path]:
    """Create a folder that only this user can enter, for the duration of a `with` block.

    Args:
        kind: its purpose, which is part of its name.

    Raises:
        ConfigError: there is no space for it, or no place to create it.
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
    """Remove the folders of ended owners; only this user's own private folders are touched."""
    place = Path(tempfile.gettempdir())
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIXES):
                _remove_ownerless(place / entry.name)


def _owned(kind: Kind) -> tuple[tempfile.TemporaryDirectory[str], int]:
    """Return a new folder and the descriptor that holds its lock."""
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
            for folder, _, _ in os.walk(path):  # files copied into it may be in read-only folders
                Path(folder).chmod(0o700)
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)


def _open(path: Path) -> int | None:
    """Return a descriptor of a directory; None for anything else, including links."""
    with suppress(OSError):
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    return None


def _lock(descriptor: int) -> bool | None:
    """Lock a folder: False if another process holds the lock, None if the file system does not support locks."""
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
