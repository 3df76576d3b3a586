"""The runs on one machine: their records and files, whether they still run, and how to end them.

`RunPlace` is any machine. `ThisMachine` uses directories below the user's state directory. `SshRuns` is a machine that
is reached by SSH, over one connection, whose session is a shell that answers requests. That needs a POSIX shell,
base64 and flock there, and sha256sum to fetch files. Nothing is installed there and nothing remains: the shell ends
with the connection.
"""

from __future__ import annotations

import base64
import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from skyward.errors import HostLostError, ProviderError
from skyward.model.ssh import SshHost
from skyward.nodes.run_directory import private_directory
from skyward.records import journal
from skyward.records.journal import SPAN, Entry
from skyward.records.run import DOWN_FILE, RunFacts, is_held, note, runs_folder
from skyward.runs import ENDED_BY_DOWN
from skyward.ssh.connection import CONNECT_S, SshConnection, connect
from skyward.system import threading

Phase = Literal["running", "ended", "killed", "unknown"]
CHUNK = 1024 * 1024  # maximum bytes of a file per read
RUN_LABEL = "skyward.run"  # of a driver's container; its value is the name of the run
ANSWER_S = 8.0  # of silence after which a machine counts as lost
_PATIENT_S = 600.0  # for a checksum of a large file, or a long list of files
_MARK = "skyward-runs "


@dataclass(frozen=True, slots=True)
class RunState:
    """State of a run.

    Attributes:
        phase: "running"; "ended", according to its record; "killed", if nothing of it is left and its end is not
            recorded; "unknown" if its machine does not answer.
        status: its exit status; None if unknown.
        ended: when it ended, in seconds since 1970; None while unknown.
        reason: why it ended, if the program did not end by itself.
    """

    phase: Phase
    status: int | None = None
    ended: float | None = None
    reason: str | None = None

    @classmethod
    def of(cls, facts: RunFacts) -> RunState:
        """Return the state of a run according to its record."""
        if facts.end is not None:
            return cls("ended", facts.end.get("status"), facts.end.get("t"), facts.end.get("reason"))
        return cls("running" if facts.is_alive else "killed")

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
    def names(self) -> Sequence[str]:
        """Return the names of all runs that are recorded there."""

    @abstractmethod
    def runs(self, *, ended: bool) -> Sequence[RunFacts]:
        """Return what is known of runs there: those that run, or all."""

    @abstractmethod
    def facts(self, run_id: str) -> RunFacts | None:
        """Return what is known of a run; None if there is no record of that name."""

    @abstractmethod
    def is_alive(self, run_id: str) -> bool:
        """Return whether a run is going on."""

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
    def ask_down(self, run_id: str) -> None:
        """Ask a run to end; it is killed if it does not in time. Nothing happens if it has ended."""

    @abstractmethod
    def mark_collected(self, facts: RunFacts) -> None:
        """Record that a client has fetched everything; a rented machine then ends."""

    @abstractmethod
    def close(self) -> None:
        """Close connections; the next request opens another."""

    def state(self, run_id: str) -> RunState:
        """Return the current state of a run; a record that was removed is that of a killed one."""
        facts = self.facts(run_id)
        return RunState("killed") if facts is None else RunState.of(facts)

    def entries(self, run_id: str, name: str, position: int = 0) -> Iterator[Entry]:
        """Yield entries of a journal of a run from a position to its end; an incomplete last line is left for later."""
        number, offset = divmod(position, SPAN)
        rest, follows_gap = b"", False
        while True:
            data = self.read(f"{run_id}/{name}/{number}.jsonl", offset + len(rest))
            if data:
                rest += data
                for entry in journal.parse(rest, number * SPAN + offset):
                    yield Entry(entry.fields, entry.end, follows_gap)
                    follows_gap = False
                whole = rest.rfind(b"\n") + 1
                offset, rest = offset + whole, rest[whole:]
                continue
            if data is None:  # the file was removed, or the journal is empty
                numbers = [journal.number_of(each.path) for each in self.files(f"{run_id}/{name}")]
                later = [each for each in numbers if each is not None and each > number]
                if not later:
                    return
                number, follows_gap = min(later), True
            elif self.read(f"{run_id}/{name}/{number + 1}.jsonl", 0, 1) is None:
                return
            else:
                number += 1
            offset, rest = 0, b""


class ThisMachine(RunPlace):
    """The runs below a directory of this machine; by default those of this user."""

    name = "this machine"
    is_here = True

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or runs_folder()

    def names(self) -> Sequence[str]:
        return sorted(path.parent.name for path in self.folder.glob("[!.]*/run.jsonl"))

    def runs(self, *, ended: bool) -> Sequence[RunFacts]:
        found = [self.facts(name) for name in self.names() if ended or self.is_alive(name)]
        return [each for each in found if each is not None]

    def facts(self, run_id: str) -> RunFacts | None:
        return RunFacts.of(self.folder / run_id)

    def is_alive(self, run_id: str) -> bool:
        return is_held(self.folder / run_id)

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
                with suppress(FileNotFoundError):  # removed meanwhile, like the oldest of a journal of limited size
                    if file.is_file() and not file.is_symlink():
                        found.append(FileFacts(file.relative_to(root).as_posix(), file.stat().st_size))
        return sorted(found, key=lambda each: each.path)

    def checksum(self, path: str) -> str:
        try:
            with (self.folder / path).open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            return ""

    def ask_down(self, run_id: str) -> None:
        (self.folder / run_id / DOWN_FILE).touch(mode=0o600)

    def mark_collected(self, facts: RunFacts) -> None:
        note(self.folder / facts.record.id, "collected")

    def close(self) -> None:
        """Do nothing: there are no connections."""


# One request per line: a word, a path in base64, and the word's arguments. The answer is lines followed by "end", or
# "failed". Paths and contents are sent in base64, so that no name or byte can be misinterpreted.
_SCRIPT = r"""
LC_ALL=C umask 077
runs=${XDG_STATE_HOME:-$HOME/.local/state}/skyward/runs
say() { printf 'skyward-runs %s\n' "$*"; }
pack() { base64 | tr -d '\n'; }
held() { [ -f "$1/lock" ] && ! flock -n -s "$1/lock" true; }
facts() {  # whether it runs is asked first: a run that ends in between has recorded that
    if held "$1"; then alive=yes; else alive=no; fi
    [ ! -f "$1/run.jsonl" ] || say "$alive $(pack <"$1/run.jsonl")"
}
for program in base64 tr head tail wc flock; do
    command -v $program >/dev/null || { say failed "there is no $program on its PATH"; exit; }
done
say ready
while read -r word packed a b; do
    path=$runs/$(printf %s "$packed" | base64 -d; echo .)
    path=${path%.}
    case $word in
    names) for run in "$runs"/*/run.jsonl; do run=${run%/*}; [ ! -d "$run" ] || say "${run##*/}"; done ;;
    runs) for run in "$runs"/*; do if [ "$a" = ended ] || held "$run"; then facts "$run"; fi; done ;;
    facts) facts "$path" ;;
    held) if held "$path"; then say yes; fi ;;
    read) if [ -f "$path" ]; then say "+$(tail -c +$((a + 1)) "$path" | head -c "$b" | pack)"; fi ;;
    files)
        if [ -d "$path" ] && cd "$path"; then
            say "+$(find . -type f -exec sh -c 'for f; do printf "%s %s\0" "$(wc -c <"$f")" "$f"; done' sh {} + | pack)"
            cd /
        fi ;;
    checksum) if [ -f "$path" ]; then say $(sha256sum <"$path"); fi ;;
    down) if [ -d "${path%/*}" ]; then : >"$path"; fi ;;
    collected)  # the lease is that for which a rented machine waited
        if [ -f "$path" ]; then printf '{"event":"collected"}\n' >>"$path"; fi
        [ -z "$a" ] || rm -rf "/run/skyward/$(id -un)/pools/$a.run" ;;
    *) say failed "it does not know the word $word" ;;
    esac
    say end
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

    def names(self) -> Sequence[str]:
        return self._ask("names")

    def runs(self, *, ended: bool) -> Sequence[RunFacts]:
        found = map(_facts, self._ask("runs", "", "ended" if ended else "running", timeout_s=_PATIENT_S))
        return [each for each in found if each is not None]

    def facts(self, run_id: str) -> RunFacts | None:
        return next(map(_facts, self._ask("facts", run_id)), None)

    def is_alive(self, run_id: str) -> bool:
        return bool(self._ask("held", run_id))

    def read(self, path: str, offset: int = 0, limit: int = CHUNK) -> bytes | None:
        return next((base64.b64decode(line[1:]) for line in self._ask("read", path, str(offset), str(limit))), None)

    def files(self, path: str) -> Sequence[FileFacts]:
        data = b"".join(base64.b64decode(line[1:]) for line in self._ask("files", path, timeout_s=_PATIENT_S))
        pairs = (each.decode("utf-8", "surrogateescape").split(" ", 1) for each in data.split(b"\0") if each)
        return sorted((FileFacts(name.removeprefix("./"), int(size)) for size, name in pairs), key=lambda f: f.path)

    def checksum(self, path: str) -> str:
        return next((line.partition(" ")[0] for line in self._ask("checksum", path, timeout_s=_PATIENT_S)), "")

    def ask_down(self, run_id: str) -> None:
        self._ask("down", f"{run_id}/{DOWN_FILE}")

    def mark_collected(self, facts: RunFacts) -> None:
        pool = [facts.record.rented.pool] if facts.record.rented is not None else []
        self._ask("collected", f"{facts.record.id}/run.jsonl", *pool)

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _ask(self, word: str, path: str = "", *more: str, timeout_s: float = ANSWER_S) -> Sequence[str]:
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
                return lines
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


def _facts(line: str) -> RunFacts | None:
    alive, _, packed = line.partition(" ")
    return RunFacts.parse(base64.b64decode(packed), is_alive=alive == "yes")
