"""The record of one run: a directory in the user's state directory with the facts about the run and its journals.

- `runs/ID/run.json`: what was started, by whom and where; written once
- `runs/ID/end.json`: how it ended; absent while it runs, and permanently if it was killed
- `runs/ID/output/`: journal of the program's own output: t, stream ("out", "err"), text
- `runs/ID/nodes/`: journal of the nodes' output: t, pool, node, rank, call, stream, text
- `runs/ID/events/`: journal of its pools: t, pool, event, and fields specific to the event
- `runs/ID/saved/`: values of sky.save
- `runs/ID/files/`: the run's output folder

A process belongs to the run of its driver, or has a run of its own, created when its first pool opens. Old records are
then removed, so that they do not fill the disk.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from skyward.errors import ConfigError
from skyward.system import socket, threading, time

FOLDER_VARIABLE = "SKYWARD_RUN"  # names the directory of the run that a process belongs to
_NOWHERE = Path("/nonexistent")  # the home of users without one, as in Debian's accounts
_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9_.-]{0,80}")
_lock = threading.Lock()
_own: tuple[int, Path] | None = None  # the ID of the process that owns it, and its directory
KEPT_S = 30 * 86400.0  # how long a record is kept after its end,
KEPT_BYTES = 4 * 10**9  # unless all together take more; a full record takes 1.4 GB, and outlives the next run
EVERY_S = 3600.0  # minimum time between two scans of all records: 900 of them take 0.1 s
_REMOVED = ".removed-"  # prefix of directories that are being removed; no run has such a name


@dataclass(frozen=True, slots=True, kw_only=True)
class Rental:
    """The machines rented for a detached run by the process that started it.

    Attributes:
        provider: the provider and its region, as "AWS:us-east-1".
        pool: identifier of the pool that the machines are tagged with.
        keep_s: seconds that the driver's machine stays after the run's end if nobody fetches the results.
    """

    provider: str
    pool: str
    keep_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """The facts about a run that are known when it starts.

    Attributes:
        id: its name: that of the program, and four random characters that make it unique.
        program: the file that runs, or "-m name" for a module.
        arguments: arguments of the program.
        started: seconds since 1970.
        directory: where it was started.
        user: the user who started it, as "name@host".
        pid: its process ID on the host it runs on; None if it runs in a container.
        process: that process in the format of `nodes/process_id.py`, which tells it apart from a later one with the
            same ID.
        place: where its driver runs, seen from the machine with this record: "local" (a process there), "docker" (a
            container there), or "user@host", the host that has the record with the journals.
        key: file of the private key for that host; None for the keys of the SSH agent and configuration.
        known_hosts: file of the only host keys to trust for it; None for those of the SSH configuration.
        detached: whether it continues without the terminal that started it.
        container: name of the driver's container; None if it is a process.
        rented: the machines rented for it; None if they existed before.
    """

    id: str
    program: str
    arguments: Sequence[str] = ()
    started: float
    directory: str
    user: str
    pid: int | None = None
    process: str = ""
    place: str = "local"
    key: str | None = None
    known_hosts: str | None = None
    detached: bool = False
    container: str | None = None
    rented: Rental | None = None

    def write(self, folder: Path) -> None:
        """Write the record to the run's directory, which is created if it is missing."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_json(folder / "run.json", asdict(self))

    @classmethod
    def parse(cls, text: str | bytes) -> RunRecord:
        """Parse the text of a run.json, ignoring fields that later versions have added.

        Raises:
            ValueError, TypeError: the text is not a run record.
        """
        known = {each.name for each in fields(cls)}
        values = json.loads(text)
        rented = values.pop("rented", None)
        found = {name: value for name, value in values.items() if name in known}
        return cls(**found, rented=Rental(**rented) if rented else None)


def state_folder() -> Path:
    """Return the user's directory for persistent data: $XDG_STATE_HOME/skyward, usually ~/.local/state/skyward.

    For users without a home directory, return a path that does not exist.
    """
    from platformdirs import user_state_path

    try:
        found = user_state_path("skyward")
    except RuntimeError:  # no HOME, and no account of this user's number
        return _NOWHERE
    return found if found.is_absolute() else _NOWHERE  # some versions leave `~` unexpanded


def runs_folder() -> Path:
    """Return the directory that contains the records of runs."""
    return state_folder() / "runs"


def folder_of(run_id: str) -> Path:
    """Return the directory of a run, whether or not it exists.

    Raises:
        ConfigError: the name is not valid for a run.
    """
    if not _NAME.fullmatch(run_id):
        raise ConfigError(f"{run_id!r} cannot be the name of a run: letters, digits and -_. only.")
    return runs_folder() / run_id


def new_id(program: str) -> str:
    """Return a new name for a run of this program: "train-4f2a" for train.py."""
    stem = re.sub("[^A-Za-z0-9_]+", "-", Path(program.removeprefix("-m ")).stem).strip("-_")[:40] or "run"
    return f"{stem}-{secrets.token_hex(2)}"


def write_json(path: Path, value: Any) -> None:
    """Write a file atomically: other processes may read it at any time."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(2)}")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(json.dumps(value, indent=1) + "\n")
    draft.replace(path)


def run_of_process(process: str) -> Path:
    """Return the directory of this process's run: the one that SKYWARD_RUN names, or else one for this process alone.

    When the process ends, `end.json` is written there if possible.

    Args:
        process: this process in the format of `nodes/process_id.py`.

    Raises:
        OSError: it cannot be created.
    """
    global _own
    if given := os.environ.get(FOLDER_VARIABLE):
        return Path(given)
    with _lock:
        if _own is None or _own[0] != os.getpid():
            _own = os.getpid(), _new_run(process)
            atexit.register(_note_end, *_own)
        return _own[1]


def _new_run(process: str) -> Path:
    prune_at_times()
    program = _program()
    name = new_id(program)
    folder = runs_folder() / name
    RunRecord(
        id=name,
        program=program,
        arguments=tuple(sys.argv[1:]),
        started=round(time.time(), 3),
        directory=str(Path.cwd()),
        user=f"{_user()}@{socket.gethostname()}",
        pid=os.getpid(),
        process=process,
    ).write(folder)
    return folder


def _user() -> str:
    import getpass  # only a process with a run of its own needs it

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the container runs as a user number without an account; OSError since Python 3.13
        return str(os.getuid())


def _program() -> str:
    """Return the program that runs in this process, in the format of `RunRecord.program`."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name:
        return f"-m {spec.name.removesuffix('.__main__')}"
    return sys.argv[0] if sys.argv and sys.argv[0] not in ("", "-c", "-") else "python"


def _note_end(process: int, folder: Path) -> None:
    """Record that this process has ended. Its exit status is not known yet, unless an exception ends it."""
    if os.getpid() != process or not folder.is_dir():
        return
    error = getattr(sys, "last_value", None)
    failed = error is not None and not hasattr(sys, "ps1")
    end = {
        "status": 1 if failed else None,
        "ended": round(time.time(), 3),
        "reason": type(error).__name__ if failed else None,
    }
    try:
        write_json(folder / "end.json", end)
    except OSError as problem:
        if sys.stderr is not None:
            sys.stderr.write(f"skyward: the end of this run could not be recorded: {problem}\n")


@dataclass(frozen=True, slots=True)
class _Old:
    folder: Path
    written: float  # when any part of it was last written
    size: int
    is_over: bool


def prune_at_times() -> None:
    """Remove old records, unless a process of this user has done so within the past hour."""
    mark = state_folder() / "pruned"
    with suppress(OSError):
        if time.time() - mark.stat().st_mtime < EVERY_S:
            return
    with suppress(OSError):  # a directory that is missing or read-only contains few records
        mark.touch(mode=0o600)
    prune()


def prune(*, kept_bytes: int = KEPT_BYTES) -> None:
    """Remove the records of ended runs: those that are too old, and the oldest if all together take too much space.

    Records that cannot be removed, because another process removes them or the disk is read-only, are skipped.

    Args:
        kept_bytes: limit for all records together. Runs that are not known to have ended count, but are not removed.
    """
    found = sorted(_records(), key=lambda each: each.written)
    total = sum(each.size for each in found)
    for each in found:
        is_old = time.time() - each.written > KEPT_S
        if each.is_over and (is_old or total > kept_bytes):
            total -= each.size
            _remove(each.folder)


def _records() -> Iterator[_Old]:
    folder = runs_folder()
    if not folder.is_dir():
        return
    for run in list(folder.iterdir()):
        if run.name.startswith(_REMOVED):  # by a process that was killed before it finished
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
    """Return whether a run has ended: that is recorded, its process is gone, or nothing was written for KEPT_S."""
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
    """Return whether its process would be visible here: machines and containers may share a home directory."""
    with suppress(OSError):
        namespace = str(Path("/proc/self/ns/pid").readlink())
        return record.process.endswith(f",{namespace}") and record.user.endswith(f"@{socket.gethostname()}")
    return False


def _remove(run: Path) -> None:
    """Hide the record at once by renaming it, then remove it file by file."""
    with suppress(OSError):
        hidden = run.with_name(f"{_REMOVED}{run.name}-{secrets.token_hex(2)}")
        run.rename(hidden)
        shutil.rmtree(hidden, ignore_errors=True)
