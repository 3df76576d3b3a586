"""The record of one run: a directory in the user's state directory.

- `runs/ID/run.jsonl`: one object per line with `t` and `event`: "started" with the facts of `RunRecord`, the events of
  its pools, "ended" with its status; on the machine that started a run elsewhere also "collected"
- `runs/ID/there.jsonl`: of a run on another machine, what was fetched of run.jsonl there
- `runs/ID/lock`: locked by its driver, or by the program itself, for as long as that lives
- `runs/ID/down`: exists once the run is to end
- `runs/ID/output/`: journal of the program's own output: t, stream ("out", "err"), text
- `runs/ID/nodes/`: journal of the nodes' output: t, pool, node, rank, call, stream, text
- `runs/ID/saved/`: values of sky.save
- `runs/ID/files/`: the run's output folder
- `runs/ID/written/`: of a run in a container that has ended, what it has written in its directory
- `folders/NAME/`: that directory, which runs share, see `skyward.runs.shared_folder`
- `home/`: the home directory of runs in containers

A process belongs to the run of its driver, or has a run of its own, created when its first pool opens. Old records are
then removed, so that they do not fill the disk.
"""

from __future__ import annotations

import atexit
import fcntl
import io
import json
import os
import re
import secrets
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from skyward.errors import ConfigError
from skyward.records import journal
from skyward.system import socket, threading, time

MODULE = "-m "  # prefix of the program if it is a module
FOLDER_VARIABLE = "SKYWARD_RUN"  # names the directory of the run that a process belongs to
RUN_FILE, LOCK_FILE, DOWN_FILE = "run.jsonl", "lock", "down"
THERE_FILE = "there.jsonl"  # what was fetched of run.jsonl on another machine
ENDED_BY_DOWN = "ended by `skyward down`"
WRITTEN_FOLDER = "written"
RUN_BYTES = 4 * 1024**2  # of run.jsonl, after which only the end is recorded
GRACE_S = 10.0  # time for a program to end its pools
COUNTS = ("running", "queued", "done", "failed")
KEPT_S = 30 * 86400.0  # how long a record is kept after its end,
KEPT_BYTES = 4 * 10**9  # unless all together take more
EVERY_S = 86400.0  # between two scans of all records
_LOOK_S = 0.5  # between two checks for DOWN_FILE
_NOWHERE = Path("/nonexistent")  # the home of users without one, as in Debian's accounts
_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9_.-]{0,80}")
_lock = threading.Lock()
_own: tuple[int, Path] | None = None  # the ID of the process that owns it, and its directory


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
    place: str = "local"
    key: str | None = None
    known_hosts: str | None = None
    detached: bool = False
    container: str | None = None
    rented: Rental | None = None

    @classmethod
    def starting(cls, run_id: str, program: str, arguments: Sequence[str], user: str) -> Self:
        """Return the record of a run that starts now in this process's working directory."""
        started, directory = round(time.time(), 3), str(Path.cwd())
        return cls(
            id=run_id, program=program, arguments=list(arguments), started=started, directory=directory, user=user
        )

    @property
    def is_module(self) -> bool:
        """Whether its program is a module."""
        return self.program.startswith(MODULE)

    @property
    def words(self) -> tuple[str, ...]:
        """The command-line arguments of `python`."""
        start = ("-m", self.program.removeprefix(MODULE)) if self.is_module else (self.program,)
        return (*start, *self.arguments)

    @property
    def is_pointer(self) -> bool:
        """Whether the run is on another machine, which has the record with the journals."""
        return self.place not in ("local", "docker")

    def write(self, folder: Path) -> None:
        """Begin the record in the run's directory, which is created if it is missing."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        note(folder, "started", **asdict(self))

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Return the record with these fields, ignoring those that later versions have added.

        Raises:
            TypeError: they are not those of a run.
        """
        found = {each.name: values[each.name] for each in fields(cls) if each.name in values}
        return cls(**{**found, "rented": Rental(**found["rented"]) if found.get("rented") else None})


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a record says about its run so far.

    Attributes:
        record: what was known when it started.
        events: all entries of the record.
        is_alive: whether a process still writes the record; None if that is unknown.
    """

    record: RunRecord
    events: Sequence[Mapping[str, Any]]
    is_alive: bool | None = None

    @classmethod
    def parse(cls, text: bytes, *, is_alive: bool | None = None) -> Self | None:
        """Read the content of run.jsonl; None if it does not begin with the record of a run."""
        events = [entry.fields for entry in journal.parse(io.BytesIO(text))]
        try:
            return cls(RunRecord.of(events[0]), events, is_alive)
        except (TypeError, IndexError):
            return None

    @classmethod
    def of(cls, folder: Path) -> Self | None:
        """Read the record in a run's directory; None if there is none."""
        is_alive = is_held(folder)  # asked first: a run that ends in between has recorded that
        found = [folder / name for name in (RUN_FILE, THERE_FILE) if (folder / name).is_file()]
        try:
            return cls.parse(b"".join(each.read_bytes() for each in found), is_alive=is_alive)
        except OSError:
            return None

    def _all(self, event: str) -> Sequence[Mapping[str, Any]]:
        return [each for each in self.events if each.get("event") == event]

    @property
    def pools(self) -> Mapping[str, tuple[float, str]]:
        """When each of its pools was opened, and the name that it is kept under or "", by identifier."""
        opened = self._all("opening")
        return {str(each.get("pool")): (float(each.get("t", 0.0)), str(each.get("name", ""))) for each in opened}

    @property
    def calls(self) -> Mapping[str, int]:
        """The latest numbers of its pools' calls, by the names in COUNTS."""
        latest = {each.get("pool"): each for each in self._all("calls")}
        return {name: sum(int(each.get(name, 0)) for each in latest.values()) for name in COUNTS} if latest else {}

    @property
    def places(self) -> Mapping[str, Sequence[str]]:
        """Where the nodes of each of its pools are, by identifier, as `--at` of commands takes it."""
        return {str(each.get("pool")): each["at"] for each in self.events if each.get("at")}

    @property
    def is_collected(self) -> bool:
        """Whether the record here has everything of a run on another machine."""
        return bool(self._all("collected"))

    @property
    def end(self) -> Mapping[str, Any] | None:
        """The fields of its end: status, reason, and t; None if that is not recorded."""
        return next(reversed(self._all("ended")), None)

    @property
    def phase(self) -> str:
        """Its state: "running", "ended", "killed" if its end is not recorded, "unknown" if its machine is lost."""
        if self.end is not None:
            return "ended"
        return "unknown" if self.is_alive is None else "running" if self.is_alive else "killed"

    @property
    def is_final(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self.phase in ("ended", "killed")

    @property
    def status(self) -> int | None:
        """Its exit status; None if unknown."""
        return None if self.end is None else self.end.get("status")

    @property
    def ended(self) -> float | None:
        """When it ended, in seconds since 1970; None while unknown."""
        return None if self.end is None else self.end.get("t")

    @property
    def reason(self) -> str:
        """Why it ended, if the program did not end by itself; else ""."""
        return str((self.end or {}).get("reason") or "")

    @property
    def state(self) -> str:
        """The state in a few words, for lists."""
        if self.phase != "ended":
            return "machine lost" if self.phase == "unknown" else self.phase
        if self.reason.startswith(ENDED_BY_DOWN):
            return "ended by down"
        return "ended" if self.status is None else "done" if self.status == 0 else f"failed ({self.status})"


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


def local_runs(*, ended: bool) -> list[RunFacts]:
    """Return what the records on this machine say of runs: those that run here, or all."""
    folders = sorted(path.parent for path in runs_folder().glob(f"[!.]*/{RUN_FILE}"))
    found = [RunFacts.of(folder) for folder in folders if ended or is_held(folder)]
    return [each for each in found if each is not None]


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
    stem = re.sub("[^A-Za-z0-9_]+", "-", Path(program.removeprefix(MODULE)).stem).strip("-_")[:40] or "run"
    return f"{stem}-{secrets.token_hex(2)}"


def check_kept(path: Path, what: str) -> None:
    """Check that a path outlives this process's run, which may be in a container.

    Args:
        path: of a file or directory.
        what: what is to be kept there, for the message.

    Raises:
        ConfigError: it ends with the container.
    """
    run = os.environ.get(FOLDER_VARIABLE)
    facts = RunFacts.of(Path(run)) if run else None
    if facts is None or facts.record.container is None:
        return
    kept = (facts.record.directory, os.environ.get("HOME", facts.record.directory))
    if not any(path.resolve().is_relative_to(each) for each in kept):
        raise ConfigError(
            f"{what} names {path}, which would be gone with the container of this detached run. Name a path below "
            f"{facts.record.directory}: later runs find it, and `skyward result` fetches it."
        )


def write_json(path: Path, value: Any) -> None:
    """Write a file atomically: other processes may read it at any time."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(2)}")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(json.dumps(value, indent=1) + "\n")
    draft.replace(path)


def note(folder: Path, event: str, **about: Any) -> None:
    """Append an event to a run's record.

    Raises:
        OSError: it could not be written.
    """
    limit = None if event in ("started", "ended", "collected") else RUN_BYTES
    journal.append(folder / RUN_FILE, {"t": round(time.time(), 3), "event": event, **about}, limit)


def hold(folder: Path) -> None:
    """Lock a run for as long as this process lives, which shows that the run has not ended.

    Raises:
        OSError: the directory cannot be written.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    fcntl.flock(handle, fcntl.LOCK_EX)
    copies = [handle]

    def let_go() -> None:  # a forked child is not the run
        if copies:
            os.close(copies.pop())

    os.register_at_fork(after_in_child=let_go)


def is_held(folder: Path) -> bool:
    """Return whether the process that holds a run lives."""
    try:
        handle = os.open(folder / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def watch_down(folder: Path, send: Callable[[int], object]) -> None:
    """Send SIGTERM once the run is to end, and SIGKILL if it still runs after GRACE_S; from a thread."""

    def watch() -> None:
        while not (folder / DOWN_FILE).exists():
            time.sleep(_LOOK_S)
        send(signal.SIGTERM)
        time.sleep(GRACE_S)
        send(signal.SIGKILL)

    threading.Thread(target=watch, name="skyward-down", daemon=True).start()


def run_of_process() -> Path:
    """Return the directory of this process's run: the one that SKYWARD_RUN names, or else one for this process alone.

    The end of the process is recorded there if possible.

    Raises:
        OSError: it cannot be created.
    """
    global _own
    if given := os.environ.get(FOLDER_VARIABLE):
        return Path(given)
    with _lock:
        if _own is None or _own[0] != os.getpid():
            _own = os.getpid(), _new_run()
            atexit.register(_note_end, *_own)
        return _own[1]


def _new_run() -> Path:
    prune_at_times()
    program = _program()
    name = new_id(program)
    folder = runs_folder() / name
    hold(folder)
    RunRecord.starting(name, program, sys.argv[1:], f"{_user()}@{socket.gethostname()}").write(folder)
    own = os.getpid()
    watch_down(folder, lambda number: os.kill(own, number))
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
        return f"{MODULE}{spec.name.removesuffix('.__main__')}"
    return sys.argv[0] if sys.argv and sys.argv[0] not in ("", "-c", "-") else "python"


def _note_end(process: int, folder: Path) -> None:
    """Record that this process has ended. Its exit status is not known yet, unless an exception ends it."""
    if os.getpid() != process or not folder.is_dir():
        return
    error = getattr(sys, "last_value", None)
    failed = error is not None and not hasattr(sys, "ps1")
    try:
        note(folder, "ended", status=1 if failed else None, reason=type(error).__name__ if failed else None)
    except OSError as problem:
        if sys.stderr is not None:
            sys.stderr.write(f"skyward: the end of this run could not be recorded: {problem}\n")


def prune_at_times() -> None:
    """Remove old records, unless a process of this user has done so within a day."""
    mark = state_folder() / "pruned"
    with suppress(OSError):
        if time.time() - mark.stat().st_mtime < EVERY_S:
            return
    with suppress(OSError):  # a directory that is missing or read-only contains few records
        mark.touch(mode=0o600)
    prune()


def prune(*, kept_bytes: int = KEPT_BYTES) -> None:
    """Remove the records of ended runs: those that are too old, and the oldest if all together take too much space.

    A record that cannot be removed, because another process removes it or the disk is read-only, is skipped.

    Args:
        kept_bytes: limit for all records together.
    """
    total = 0
    for written, run in sorted(((_written(run), run) for run in runs_folder().glob("*")), reverse=True):
        if is_held(run):
            continue
        facts = RunFacts.of(run)
        # a pointer without the record of its run: that may still run elsewhere
        is_known = facts is not None and (facts.is_collected or not facts.record.is_pointer)
        with suppress(OSError):  # removed meanwhile
            total += sum(path.lstat().st_size for path in run.rglob("*")) if is_known else 0
        if time.time() - written > KEPT_S or (is_known and total > kept_bytes):
            shutil.rmtree(run, ignore_errors=True)


def _written(run: Path) -> float:
    for path in (run / RUN_FILE, run):
        with suppress(OSError):
            return path.stat().st_mtime
    return 0.0
