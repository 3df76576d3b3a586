"""The runs on one machine: their records and files, whether they still run, and how to end them.

`RunPlace` is any machine. `ThisMachine` uses directories below the user's state directory, processes, and containers of
its engine. `SshRuns` is a machine that is reached by SSH, over one connection, whose session is a shell that answers
requests. That needs a POSIX shell and base64 there, sha256sum to fetch files, and the docker command if the driver is a
container. Nothing is installed there and nothing remains: the shell ends with the connection.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from skyward.errors import ConfigError, EngineMissingError, HostLostError, ProviderError
from skyward.model.ssh import SshHost
from skyward.nodes.process_id import ProcessId
from skyward.nodes.run_directory import private_directory
from skyward.records import journal
from skyward.records.journal import Entry
from skyward.records.run import RunRecord, runs_folder
from skyward.runs import DOWN_FILE, ENDED_BY_DOWN
from skyward.ssh.connection import CONNECT_S, SshConnection, connect
from skyward.system import threading

Phase = Literal["running", "ended", "killed", "unknown"]
CHUNK = 1024 * 1024  # maximum bytes of a file per read
RUN_LABEL = "skyward.run"  # of a driver's container; its value is the name of the run
COLLECTED = "collected"  # a file in a run's directory: everything in it has been fetched
ANSWER_S = 8.0  # of silence after which a machine counts as lost
_PATIENT_S = 600.0  # for a checksum of a large file, or a long list of files
_MARK = "skyward-runs "


@dataclass(frozen=True, slots=True)
class RunState:
    """State of a run.

    Attributes:
        phase: "running"; "ended", according to its record; "killed", if nothing of it is left and its end is not
            recorded; "unknown" if its end is not recorded and it cannot be determined whether it runs.
        status: its exit status; None if unknown.
        ended: when it ended, in seconds since 1970; None while unknown.
        reason: why it ended, if the program did not end by itself.
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
        """The state in a few words, for lists."""
        if self.phase == "ended":
            if (self.reason or "").startswith(ENDED_BY_DOWN):
                return "ended by down"
            return "ended" if self.status is None else "done" if self.status == 0 else f"failed ({self.status})"
        return self.phase


@dataclass(frozen=True, slots=True)
class FileFacts:
    """A file of a run.

    Attributes:
        path: relative to the listed directory, with "/" between its parts.
        size: bytes.
    """

    path: str
    size: int


class RunPlace(ABC):
    """The runs on one machine. Paths are relative to its directory of runs and begin with the name of one.

    Every method that queries the machine raises HostLostError if it does not answer; the next call connects again.

    Attributes:
        name: of the machine, as people write it.
        is_here: whether it is this machine.
    """

    name: str
    is_here: bool

    @abstractmethod
    def records(self) -> Sequence[RunRecord]:
        """Return all runs that are recorded there."""

    @abstractmethod
    def segments(self, path: str) -> Sequence[tuple[int, int]]:
        """Return the position of the first byte of each file of a journal, in order, and the number of bytes in it."""

    @abstractmethod
    def read(self, path: str, offset: int = 0, limit: int = CHUNK) -> bytes | None:
        """Return bytes of a file from an offset on; b"" at its end, None if there is no such file."""

    @abstractmethod
    def files(self, path: str) -> Sequence[FileFacts]:
        """Return all regular files below a directory, sorted by path; none if there is no such directory."""

    @abstractmethod
    def checksum(self, path: str) -> str:
        """Return the SHA-256 of a file in hexadecimal; "" if there is no such file."""

    @abstractmethod
    def is_alive(self, record: RunRecord) -> bool | None:
        """Return whether the process or the container of a run exists; None if that is unknown."""

    @abstractmethod
    def signal(self, record: RunRecord, name: Literal["TERM", "KILL"]) -> None:
        """Ask a run to end, or kill it with the processes of its group. Nothing happens if it has ended.

        The request is recorded with the run.
        """

    @abstractmethod
    def mark_collected(self, record: RunRecord) -> None:
        """Record that a client has fetched everything; a rented machine then ends."""

    @abstractmethod
    def close(self) -> None:
        """Close connections; the next request opens another."""

    def record(self, run_id: str) -> RunRecord | None:
        """Return the record of a run; None if there is none of that name."""
        text = self.read(f"{run_id}/run.json")
        try:
            return RunRecord.parse(text) if text else None
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{run_id}/run.json on {self.name} is not the record of a run: {error}.") from error

    def state(self, record: RunRecord) -> RunState:
        """Return the current state of a run."""
        ended = self.end(record.id)
        if ended is not None:
            return ended
        alive = self.is_alive(record)
        if alive is None:
            return RunState("unknown")
        if alive:
            return RunState("running")
        return self.end(record.id) or RunState("killed")  # it may have shut down between the two requests

    def end(self, run_id: str) -> RunState | None:
        """Return how a run ended, according to its record; None if its end is not recorded."""
        text = self.read(f"{run_id}/end.json")
        if not text:
            return None
        try:
            told = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"{run_id}/end.json on {self.name} is not the end of a run: {error}.") from error
        return RunState("ended", told.get("status"), told.get("ended"), told.get("reason"))

    def entries(self, run_id: str, name: str, position: int = 0) -> Iterator[Entry]:
        """Yield entries of a journal of a run, from a position to its current end."""
        return journal.entries(partial(self._bytes, f"{run_id}/{name}", []), position)

    def _bytes(self, path: str, known: list[tuple[int, int]], position: int) -> tuple[int, bytes] | None:
        """Read bytes for `journal.entries`. `known` caches the segments; it is refreshed when they have been read."""
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
            with suppress(FileNotFoundError):  # removed meanwhile, like the oldest of a journal of limited size
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
        with suppress(OSError):  # the run is ended all the same, even if the disk is full
            (self.folder / record.id / DOWN_FILE).touch(mode=0o600)
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
        """Do nothing: there are no connections."""

    def _readable(self, run_id: str) -> RunRecord | None:
        """Return a record for a list; None if it is unreadable (other version, full disk), to list the others."""
        try:
            return self.record(run_id)
        except ConfigError:
            return None


def _containers(record: RunRecord) -> Sequence[Mapping[str, Any]]:
    """Return the driver's container while it runs."""
    from skyward.engine import Engine

    found = Engine.connect().containers(f"{RUN_LABEL}={record.id}", state="running")
    return [each for each in found if f"/{record.container}" in (each.get("Names") or ())]


# One request per line: a word, a path in base64, and the word's arguments. The answer is lines followed by "end", or
# "failed". Paths and contents are sent in base64, so that no name or byte can be misinterpreted.
_SCRIPT = r"""
LC_ALL=C umask 077
runs=${XDG_STATE_HOME:-$HOME/.local/state}/skyward/runs
say() { printf 'skyward-runs %s\n' "$*"; }
pack() { base64 | tr -d '\n'; }
sock=/var/run/docker.sock
case ${DOCKER_HOST:-} in unix://*) sock=${DOCKER_HOST#unix://} ;; esac
own=${XDG_RUNTIME_DIR:-/run/user/$(id -u)}/docker.sock
if [ ! -S "$sock" ] && [ -S "$own" ]; then sock=$own; fi
engine() { docker -H "unix://$sock" "$@" 2>/dev/null; }
running() {  # the driver's container: of this name, and of this run
    engine ps -q --no-trunc --filter "name=^/$1\$" --filter "label=skyward.run=$2"
}
there() {  # whether a process still is the one that started at this time; its group is in $group
    read -r stat 2>/dev/null <"/proc/$1/stat" || return 1
    since=$2
    set -- ${stat##*) }
    group=$3
    case $1 in [ZX]) return 1 ;; esac
    [ "${20}" = "$since" ]
}
mark() { if [ -d "${path%/*}" ]; then : >"$path"; fi; }
for program in base64 tr head tail wc; do
    command -v $program >/dev/null || { say failed "there is no $program on its PATH"; exit; }
done
say ready
while read -r word packed a b c; do
    path=$runs/$(printf %s "$packed" | base64 -d; echo .)
    path=${path%.}
    case $word in
    records)
        for file in "$runs"/*/run.json; do [ -f "$file" ] && say "$(pack <"$file")"; done
        say end ;;
    segments)
        for file in "$path"/*.jsonl; do [ -f "$file" ] && say "${file##*/}" $(wc -c <"$file"); done
        say end ;;
    read)
        if [ -f "$path" ]; then say "+$(tail -c +$((a + 1)) "$path" | head -c "$b" | pack)"; fi
        say end ;;
    files)
        if [ -d "$path" ] && cd "$path"; then
            say "+$(find . -type f -exec sh -c 'for f; do printf "%s %s\0" "$(wc -c <"$f")" "$f"; done' sh {} + | pack)"
            cd /
        fi
        say end ;;
    checksum)
        if [ -f "$path" ]; then say $(sha256sum <"$path"); fi
        say end ;;
    process) if there "$a" "$b"; then say yes; else say no; fi; say end ;;
    container) if id=$(running "$a" "$b"); then say ${id:-no}; else say unknown; fi; say end ;;
    end-process)
        mark
        if there "$a" "$b"; then
            if [ "$c" = KILL ] && [ "$group" = "$a" ]; then kill -KILL "-$a"; else kill "-$c" "$a"; fi
        fi 2>/dev/null
        say end ;;
    end-container)
        mark
        if id=$(running "$a" "$b") && [ -n "$id" ]; then engine kill --signal "$c" "$id" >/dev/null; fi
        say end ;;
    collected)
        mark
        [ -z "$a" ] || rm -rf "/run/skyward/$(id -un)/pools/$a.run"  # the lease for which the machine waited
        say end ;;
    *) say failed "it does not know the word $word" ;;
    esac
done
"""


class SshRuns(RunPlace):
    """The runs of a user on a machine. It connects on the first request, and after a loss on the next one.

    Attributes:
        host: the machine.

    Raises:
        HostLostError: it does not answer.
        ProviderError: it lacks a required program.
    """

    is_here = False

    def __init__(self, host: SshHost) -> None:
        self.name, self.host = host.name, host
        self._lock = threading.Lock()  # one request at a time
        self._connection: SshConnection | None = None
        self._held = ExitStack()

    def records(self) -> Sequence[RunRecord]:
        found = []
        for line in self._ask("records"):
            try:
                found.append(RunRecord.parse(base64.b64decode(line)))
            except (ValueError, TypeError):
                continue  # another version, or a full disk: list the others all the same
        return found

    def segments(self, path: str) -> Sequence[tuple[int, int]]:
        pairs = (line.split() for line in self._ask("segments", path))
        return sorted((int(name.removesuffix(".jsonl")), int(size)) for name, size in pairs)

    def read(self, path: str, offset: int = 0, limit: int = CHUNK) -> bytes | None:
        return self._unpacked(self._ask("read", path, str(offset), str(limit)))

    def files(self, path: str) -> Sequence[FileFacts]:
        data = self._unpacked(self._ask("files", path, timeout_s=_PATIENT_S)) or b""
        pairs = (each.decode("utf-8", "surrogateescape").split(" ", 1) for each in data.split(b"\0") if each)
        return sorted((FileFacts(name.removeprefix("./"), int(size)) for size, name in pairs), key=lambda f: f.path)

    def checksum(self, path: str) -> str:
        return next(self._ask("checksum", path, timeout_s=_PATIENT_S), "").partition(" ")[0]

    def is_alive(self, record: RunRecord) -> bool | None:
        if record.container is not None:
            said = next(self._ask("container", "", record.container, record.id), "unknown")
            return None if said == "unknown" else said != "no"
        pid, started = _process(record)
        return next(self._ask("process", "", pid, started)) == "yes" if pid else None

    def signal(self, record: RunRecord, name: Literal["TERM", "KILL"]) -> None:
        down = f"{record.id}/{DOWN_FILE}"
        if record.container is not None:
            words = ("end-container", down, record.container, record.id, name)
        else:
            pid, started = _process(record)
            if not pid:
                raise ConfigError(f"The record of run {record.id} on {self.name} names no process. End it there.")
            words = ("end-process", down, pid, started, name)
        list(self._ask(*words, timeout_s=_PATIENT_S))

    def mark_collected(self, record: RunRecord) -> None:
        pool = [record.rented.pool] if record.rented is not None else []
        list(self._ask("collected", f"{record.id}/{COLLECTED}", *pool))

    def close(self) -> None:
        with self._lock:
            self._drop()

    @staticmethod
    def _unpacked(lines: Iterator[str]) -> bytes | None:
        line = next(lines, None)
        return None if line is None else base64.b64decode(line[1:])

    def _ask(self, word: str, path: str = "", *more: str, timeout_s: float = ANSWER_S) -> Iterator[str]:
        """Return the lines of an answer."""
        with self._lock:
            try:
                connection = self._connected()
                # "." stands for no path: the shell's `read` merges blanks
                packed = base64.b64encode(path.encode("utf-8", "surrogateescape")).decode() or "Lg=="
                connection.send(" ".join((word, packed, *more)))
                lines = []
                while (line := self._hear(connection, timeout_s)) != "end":
                    if line.startswith("failed"):
                        raise ProviderError(f"{self.name} could not do `{word}`: {line[7:]}.")
                    lines.append(line)
                return iter(lines)
            except BaseException:
                self._drop()  # the rest of the answer must not be taken for the answer to another request
                raise

    def _connected(self) -> SshConnection:
        if self._connection is None:
            folder = self._held.enter_context(private_directory())
            self._connection = connection = connect(self.host, folder, "sh", "-c", _SCRIPT)
            said = self._hear(connection, 2 * CONNECT_S)
            if said != "ready":
                raise ProviderError(f"Runs on {self.name} cannot be read: {said.removeprefix('failed ')}.")
        return self._connection

    def _hear(self, connection: SshConnection, timeout_s: float) -> str:
        """Return the shell's next line, without its mark.

        Raises:
            HostLostError: none came in time.
        """
        said = connection.wait_marked(_MARK, timeout_s)
        if said is not None:
            return said
        why = connection.problem if connection.ended.is_set() else f"It said nothing for {timeout_s:g} s."
        raise HostLostError(f"{self.name} does not answer. {why}")

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.kill()
        self._held.close()


def _process(record: RunRecord) -> tuple[str, str]:
    """Return id and start time of a run's process; two empty strings if the record names none."""
    pid, _, rest = record.process.partition(",")
    started = rest.partition(",")[0]
    return (pid, started) if pid.isdigit() and started.isdigit() else ("", "")
