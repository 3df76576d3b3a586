"""The runs on this machine: directories below the user's state directory, processes, and containers of its engine."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from skyward.errors import ConfigError, EngineMissingError
from skyward.nodes.process_id import ProcessId
from skyward.records import journal
from skyward.records.run import RunRecord, runs_folder
from skyward.runs.place import CHUNK, FileFacts, RunPlace

RUN_LABEL = "skyward.run"  # of a driver's container; its value is the name of the run
COLLECTED = "collected"  # a file in a run's directory: everything of it has been fetched


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
