"""Removes old records of runs, so that they do not fill the disk."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from skyward.records.run import RunRecord, runs_folder, state_folder
from skyward.system import socket, time

KEPT_S = 30 * 86400.0  # after its end a record is kept so long,
KEPT_BYTES = 4 * 10**9  # unless all together take more; one that is full takes 1.4 GB, and outlives the next run
EVERY_S = 3600.0  # a process that opens a pool looks at all records no more often: 900 of them take 0.1 s
_REMOVED = ".removed-"  # begins the name of what is being removed; a run's name does not begin so


@dataclass(frozen=True, slots=True)
class _Old:
    folder: Path
    written: float  # when anything of it was last written
    size: int
    is_over: bool


def prune_at_times() -> None:
    """Remove old records, unless a process of this user has done so within the hour."""
    mark = state_folder() / "pruned"
    with suppress(OSError):
        if time.time() - mark.stat().st_mtime < EVERY_S:
            return
    with suppress(OSError):  # a directory that is not there, or cannot be written, holds few records
        mark.touch(mode=0o600)
    prune()


def prune(*, kept_s: float = KEPT_S, kept_bytes: int = KEPT_BYTES) -> None:
    """Remove records of runs that have ended: those too old, and the oldest where all together take too much room.

    What cannot be removed, because another process removes it or the disk is read-only, is left.

    Args:
        kept_s: how long records are kept after they were last written.
        kept_bytes: how much all together may take. A run that is not known to have ended counts and stays.
    """
    found = sorted(_records(), key=lambda each: each.written)
    total = sum(each.size for each in found)
    for each in found:
        is_old = time.time() - each.written > kept_s
        if each.is_over and (is_old or total > kept_bytes):
            total -= each.size
            _remove(each.folder)


def _records() -> Iterator[_Old]:
    folder = runs_folder()
    if not folder.is_dir():
        return
    for run in list(folder.iterdir()):
        if run.name.startswith(_REMOVED):  # by a process that was killed meanwhile
            shutil.rmtree(run, ignore_errors=True)
        elif run.is_dir():
            with suppress(OSError):  # removed meanwhile
                yield _facts(run)


def _facts(run: Path) -> _Old:
    facts = [Path(folder, name).lstat() for folder, _, names in os.walk(run) for name in names]
    facts.append(run.stat())
    written = max(each.st_mtime for each in facts)
    return _Old(run, written, sum(each.st_size for each in facts), _is_over(run, written))


def _is_over(run: Path, written: float) -> bool:
    """Whether a run is known to have ended, or has long been silent and its process is not there."""
    if (run / "end.json").exists():
        return True
    try:
        record = RunRecord.parse((run / "run.json").read_bytes())
    except (OSError, ValueError, TypeError):
        return time.time() - written > KEPT_S
    if record.pid is not None and _is_of_here(record):
        return not Path(f"/proc/{record.pid}").exists()
    return time.time() - written > KEPT_S


def _is_of_here(record: RunRecord) -> bool:
    """Whether its process would be seen here: a home may be that of several machines, and of containers."""
    with suppress(OSError):
        namespace = str(Path("/proc/self/ns/pid").readlink())
        return record.process.endswith(f",{namespace}") and record.user.endswith(f"@{socket.gethostname()}")
    return False


def _remove(run: Path) -> None:
    """Out of sight at once, then piece by piece."""
    with suppress(OSError):
        hidden = run.with_name(f"{_REMOVED}{run.name}-{secrets.token_hex(2)}")
        run.rename(hidden)
        shutil.rmtree(hidden, ignore_errors=True)
