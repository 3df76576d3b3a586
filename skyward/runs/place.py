"""The runs on one machine: what they have recorded, their files, whether they still run, and their ends.

`RunPlace` is any machine; `ThisMachine` has directories below the user's state directory, processes, and containers of
its engine. `ssh_runs` has those that are reached by SSH.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from skyward.errors import ConfigError, EngineMissingError
from skyward.nodes.process_id import ProcessId
from skyward.records import journal
from skyward.records.journal import Entry
from skyward.records.run import RunRecord, runs_folder

Phase = Literal["running", "ended", "killed", "unknown"]
CHUNK = 1024 * 1024  # bytes of a file that are read at once
RUN_LABEL = "skyward.run"  # of a driver's container; its value is the name of the run
COLLECTED = "collected"  # a file in a run's directory: everything of it has been fetched


@dataclass(frozen=True, slots=True)
class RunState:
    """What is known of a run now.

    Attributes:
        phase: "running"; "ended", as its record says; "killed", if nothing of it is left and it has not said how it
            ended; "unknown" where it has not, and nobody can say whether it runs.
        status: its exit status; None where it has told none.
        ended: when it ended, in seconds since 1970; None while that is not known.
        reason: why it ended, where that is not the program's own doing.
    """

    phase: Phase
    status: int | None = None
    ended: float | None = None
    reason: str | None = None

    @property
    def is_final(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self.phase in ("ended", "killed")

    @property
    def text(self) -> str:
        """In a few words, for lists."""
        if self.phase == "ended":
            return "ended" if self.status is None else "done" if self.status == 0 else f"failed ({self.status})"
        return self.phase


@dataclass(frozen=True, slots=True)
class FileFacts:
    """A file of a run.

    Attributes:
        path: below the directory that was asked for, with "/" between its parts.
        size: bytes.
    """

    path: str
    size: int


class RunPlace(ABC):
    """The runs on one machine. Paths are relative to its directory of runs and begin with the name of one.

    Every method that asks the machine raises HostLostError when it does not answer; asked again, it is connected anew.

    Attributes:
        name: of the machine, as people write it.
        is_here: whether it is this machine.
    """

    name: str
    is_here: bool

    @abstractmethod
    def records(self) -> Sequence[RunRecord]:
        """All runs that are recorded there."""

    @abstractmethod
    def segments(self, path: str) -> Sequence[tuple[int, int]]:
        """The position of the first byte of each file of a journal, in order, and the bytes in it."""

    @abstractmethod
    def read(self, path: str, offset: int = 0, limit: int = CHUNK) -> bytes | None:
        """Bytes of a file from an offset on; b"" at its end, None if there is no such file."""

    @abstractmethod
    def files(self, path: str) -> Sequence[FileFacts]:
        """All plain files below a directory, by their paths; none if there is no such directory."""

    @abstractmethod
    def checksum(self, path: str) -> str:
        """The SHA-256 of a file in hexadecimal; "" if there is no such file."""

    @abstractmethod
    def is_alive(self, record: RunRecord) -> bool | None:
        """Whether the process or the container of a run is there; None where that cannot be known."""

    @abstractmethod
    def signal(self, record: RunRecord, name: Literal["TERM", "KILL"]) -> None:
        """Ask a run to end, or end it at once with the processes of its group. Nothing happens if it has ended."""

    @abstractmethod
    def mark_collected(self, record: RunRecord) -> None:
        """Note beside a run's record that a client has fetched everything; a rented machine then goes."""

    @abstractmethod
    def close(self) -> None:
        """Let go of connections; the next question makes another."""

    def record(self, run_id: str) -> RunRecord | None:
        """What is known of a run; None if there is none of that name."""
        text = self.read(f"{run_id}/run.json")
        try:
            return RunRecord.parse(text) if text else None
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{run_id}/run.json on {self.name} is not the record of a run: {error}.") from error

    def state(self, record: RunRecord) -> RunState:
        """What became of a run so far."""
        ended = self.end(record.id)
        if ended is not None:
            return ended
        alive = self.is_alive(record)
        if alive is None:
            return RunState("unknown")
        if alive:
            return RunState("running")
        return self.end(record.id) or RunState("killed")  # it may have ended in order between the two questions

    def end(self, run_id: str) -> RunState | None:
        """How a run has ended, as its record says; None if that says nothing."""
        text = self.read(f"{run_id}/end.json")
        if not text:
            return None
        try:
            told = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"{run_id}/end.json on {self.name} is not the end of a run: {error}.") from error
        return RunState("ended", told.get("status"), told.get("ended"), told.get("reason"))

    def entries(self, run_id: str, name: str, position: int = 0) -> Iterator[Entry]:
        """Entries of a journal of a run, from a position to the end of what is there now."""
        return journal.entries(partial(self._bytes, f"{run_id}/{name}", []), position)

    def _bytes(self, path: str, known: list[tuple[int, int]], position: int) -> tuple[int, bytes] | None:
        """For `journal.entries`. `known` are the segments as they were seen; they are asked for when that is read."""
        for again in (False, True):
            if again or not known:
                known[:] = self.segments(path)
            for start, size in known:
                if start + size <= position:
                    continue
                data = self.read(f"{path}/{start:020}.jsonl", max(0, position - start))
                if data:
                    return max(start, position), data
        return None


class ThisMachine(RunPlace):
    """The runs below a directory of this machine; by default those of this user."""

    name = "this machine"
    is_here = True

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or runs_folder()

    def records(self) -> Sequence[RunRecord]:
        if not self.folder.is_dir():
            return []
        found = (self._readable(path.parent.name) for path in sorted(self.folder.glob("*/run.json")))
        return [record for record in found if record is not None]

    def segments(self, path: str) -> Sequence[tuple[int, int]]:
        found = []
        for start, file in journal.segments(self.folder / path):
            with suppress(FileNotFoundError):  # removed meanwhile, as the oldest of a journal of limited size are
                found.append((start, file.stat().st_size))
        return found

    def read(self, path: str, offset: int = 0, limit: int = CHUNK) -> bytes | None:
        try:
            with (self.folder / path).open("rb") as file:
                file.seek(offset)
                return file.read(limit)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def files(self, path: str) -> Sequence[FileFacts]:
        root, found = self.folder / path, []
        for folder, _, names in os.walk(root):
            for name in names:
                file = Path(folder) / name
                if file.is_file() and not file.is_symlink():
                    found.append(FileFacts(file.relative_to(root).as_posix(), file.stat().st_size))
        return sorted(found, key=lambda each: each.path)

    def checksum(self, path: str) -> str:
        try:
            with (self.folder / path).open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            return ""

    def is_alive(self, record: RunRecord) -> bool | None:
        if record.container is not None:
            try:
                return bool(_containers(record))
            except EngineMissingError:
                return None
        process = ProcessId.parse(record.process)
        return None if process is None else not process.is_gone()

    def signal(self, record: RunRecord, name: Literal["TERM", "KILL"]) -> None:
        if record.container is not None:
            from skyward.engine import Engine

            for found in _containers(record):
                Engine.connect().signal(str(found["Id"]), f"SIG{name}")
            return
        process = ProcessId.parse(record.process)
        if process is None:
            raise ConfigError(f"The record of run {record.id} names no process. End it where it was started.")
        with suppress(ProcessLookupError):
            if process.is_gone():
                return
            if name == "KILL" and os.getpgid(process.pid) == process.pid:
                os.killpg(process.pid, signal.SIGKILL)
            else:
                os.kill(process.pid, signal.Signals[f"SIG{name}"])

    def mark_collected(self, record: RunRecord) -> None:
        (self.folder / record.id / COLLECTED).touch(mode=0o600)

    def close(self) -> None:
        """There is nothing to let go of."""

    def _readable(self, run_id: str) -> RunRecord | None:
        """A record for a list; one of another version, or of a full disk, does not hide the others."""
        try:
            return self.record(run_id)
        except ConfigError:
            return None


def _containers(record: RunRecord) -> Sequence[Mapping[str, Any]]:
    """The driver's container while it runs."""
    from skyward.engine import Engine

    found = Engine.connect().containers(f"{RUN_LABEL}={record.id}", state="running")
    return [each for each in found if f"/{record.container}" in (each.get("Names") or ())]
