"""The user's cache directory: small files that save work and may be deleted at any time.

Without a usable one (read-only home, full disk, another user's home, none at all) everything works as before, only
slower, and one warning says so. Files are written under another name and renamed: readers never see half of one.
"""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from skyward.builder.events import warn

NOWHERE = Path("/nonexistent")  # the home of users without one, as Debian's accounts have it


def home() -> Path:
    """The user's home directory; a path that does not exist where there is none."""
    try:
        found = Path.home()
    except RuntimeError:  # no HOME, and no account of this user's number
        return NOWHERE
    return found if found.is_absolute() else NOWHERE  # an empty HOME would be the working directory


def cache_path(*parts: str) -> Path:
    """The place of a file or folder in the cache, which need not exist."""
    from platformdirs import user_cache_path

    try:
        found = user_cache_path("skyward")
    except RuntimeError:  # no home; other versions leave `~` as it is, which is a folder of the working directory
        found = NOWHERE
    return (found if found.is_absolute() else NOWHERE).joinpath(*parts)


def cache_folder(*parts: str) -> Path | None:
    """A folder of the cache, made if need be; None if it cannot be used."""
    path = cache_path(*parts)
    if reason := _refused(str(cache_path()), os.geteuid()):
        gone_without(reason)
        return None
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        gone_without(error)
        return None
    return path


def read(path: Path) -> str | None:
    """The text of a file of the cache; None if there is none that can be read, or it is no text."""
    if reason := _refused(str(cache_path()), os.geteuid()):
        gone_without(reason)
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        gone_without(error)
    except UnicodeDecodeError:  # of another program, or half written by a machine that went down: it is made anew
        pass
    return None


def write(path: Path, text: str) -> bool:
    """Keep a string in a file of the cache that only this user can read; False if that is not possible."""
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
    """The files of a folder of the cache that match, the one changed last first; none where it cannot be read."""
    ages: dict[Path, float] = {}
    with suppress(OSError):  # `read` says why, and a file may go while this looks
        for path in folder.glob(pattern):
            with suppress(OSError):
                ages[path] = path.stat().st_mtime
    return sorted(ages, key=lambda path: ages[path], reverse=True)


def drop_old(folder: Path, kept_s: float = 30 * 86400.0) -> None:
    """Remove the notes of a folder of the cache that were written longer ago, so that it does not grow for ever.

    Other processes write there at the same time: what goes away meanwhile is left to them.
    """
    with suppress(OSError):
        for path in list(folder.iterdir()):
            with suppress(OSError):
                if path.stat().st_mtime < time.time() - kept_s:
                    path.unlink()


def remove(path: Path) -> None:
    """Remove a file of the cache, if it is there."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        gone_without(error)


def uv_variables() -> dict[str, str]:
    """Variables that switch uv's cache off where it cannot be written; none where it can."""
    given = os.environ.get("UV_CACHE_DIR")
    folder = Path(given) if given else cache_path().parent / "uv"
    if given or cache_folder() is not None:
        problem = why_not_writable(folder)
        if problem is None:
            return {}
        warn(f"the cache {folder} of uv cannot be used: {problem}. Packages are looked up without it.")
    return {"UV_NO_CACHE": "1"}


def why_not_writable(folder: Path) -> str | None:
    """The reason why a folder, made if need be, is not writable; None if it is."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x" * 4096)
    except OSError as error:
        return error.strerror or type(error).__name__
    return None


@lru_cache(maxsize=16)
def _refused(folder: str, user: int) -> str | None:
    """The reason not to use a cache of another user: its content is trusted, and files in it would be theirs."""
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
