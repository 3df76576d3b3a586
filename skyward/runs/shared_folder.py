"""The folder of a detached run on another machine: it stands there for the directory in which the run was started here.

Later runs from the same directory share it, so they find the files that earlier ones have written. In a container it is
at the path that the directory has here.
"""

from __future__ import annotations

import filecmp
import hashlib
import json
import os
import re
import shutil
import stat
from contextlib import suppress
from pathlib import Path

from skyward.errors import ConfigError
from skyward.records.run import LOCK_FILE, WRITTEN_FOLDER, RunRecord, write_json


def shared_folder(record: RunRecord, run: Path) -> Path:
    """Return the path of a run's folder: one for all runs that a user starts in one directory of one machine.

    Args:
        record: of the run.
        run: the run's directory on the machine that the folder is on.
    """
    word = re.sub("[^A-Za-z0-9_.-]+", "-", Path(record.directory).name)[:40]
    digest = hashlib.sha256(f"{record.user}:{record.directory}".encode()).hexdigest()[:12]
    return run.parents[1] / "folders" / f"{word}-{digest}"


def fill(folder: Path, sent: Path, program: str) -> None:
    """Move the files that a run of a program was sent to its folder, and remove those of its earlier runs.

    A file stays as it is if it is the same, since other runs may use it, or if the program has changed it and it is not
    sent again.

    Raises:
        ConfigError: the folder cannot be written.
    """
    lists = folder.with_name(f"{folder.name}.sent")
    try:
        known = json.loads(lists.read_text()) if lists.exists() else {}  # by program: when each file was written
        paths = {str(path.relative_to(sent)): path for path in sent.rglob("*") if path.is_file()}
        gone, known[program] = known.get(program, {}), {}
        for name, path in paths.items():
            target = folder / name
            is_same = target.is_file() and target.stat().st_mode == path.stat().st_mode
            if not (is_same and filecmp.cmp(path, target, shallow=False)):
                target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                path.replace(target)
            known[program][name] = target.stat().st_mtime_ns
        for name in gone.keys() - {each for names in known.values() for each in names}:
            if (folder / name).is_file() and (folder / name).stat().st_mtime_ns == gone[name]:
                (folder / name).unlink()
        write_json(lists, known)
        shutil.rmtree(sent)
    except OSError as error:
        raise ConfigError(f"The files of this run could not be put into {folder}: {error}.") from error


def keep_written(folder: Path, run: Path) -> None:
    """Add what was written in a folder since the start of a run to its record; compiled modules are left out."""
    since = (run / LOCK_FILE).stat().st_ctime_ns
    for parent, _, names in os.walk(folder):
        for path in (Path(parent, name) for name in names if Path(parent).name != "__pycache__"):
            with suppress(FileNotFoundError):  # a process that the program has left removes it
                found = path.lstat()
                if stat.S_ISREG(found.st_mode) and found.st_ctime_ns > since:
                    copy = run / WRITTEN_FOLDER / path.relative_to(folder)
                    copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                    os.link(path, copy)
