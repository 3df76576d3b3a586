"""Operations on a run that survive lost connections to its machine: follow its journal, end it, fetch its files.

Each entry of a journal is yielded once and in order. Files are compared by checksum: files that were fetched before are
not fetched again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Sequence
from pathlib import Path, PurePosixPath
from typing import TypeVar

from filelock import FileLock

from skyward.errors import ConfigError, HostLostError, ProviderError
from skyward.records import journal
from skyward.records.journal import Entry
from skyward.records.run import GRACE_S, RUN_FILE, RunFacts, folder_of
from skyward.runs.place import FileFacts, RunPlace, RunState, ThisMachine
from skyward.system import time

Progress = Callable[[int], None]  # called with the number of bytes that have arrived
T = TypeVar("T")
PARTS = ("output", "nodes", "saved", "files")
PATIENCE_S = 60.0  # how long a machine may fail to answer before giving up
_RETRY_S = 1.0
_SHORTEST_S, _LONGEST_S = 0.05, 0.5  # between two reads of a journal without new entries
_LOOK_S = 1.0  # between two checks whether the run is still running
_KILL_S = 20.0  # for it to be gone once that time is over
_END_LOOK_S = 0.1  # between two checks whether it has ended
_PART = ".skyward-part"  # suffix of incomplete files
_ATTEMPTS = 3  # for a file that changes while it is read


def follow(place: RunPlace, run: str, name: str, losses: Losses) -> Generator[Entry, None, RunState]:
    """Yield entries of a journal as they arrive; the generator returns the final state of the run.

    Args:
        place: where the run is.
        run: its name.
        name: of the journal.
        losses: handles lost connections.

    Raises:
        HostLostError: the machine has not answered for too long.
    """
    position, pause, looked, state = 0, _SHORTEST_S, 0.0, RunState("running")
    while True:
        try:
            for entry in place.entries(run, name, position):
                position, pause = entry.end, _SHORTEST_S
                losses.over()
                yield entry
            if state.is_final:
                return state
            if time.monotonic() - looked >= _LOOK_S or pause == _LONGEST_S:
                looked = time.monotonic()
                state = state if place.is_alive(run) else place.state(run)
            losses.over()
        except HostLostError as error:
            losses.note(error)
            continue
        if not state.is_final:  # else entries written before the end are still read
            time.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_S)


class Losses:
    """Reports once that a machine does not answer, and once that it answers again.

    Args:
        host: the machine's name.
        run: the run's name.
        say: receives the messages.
    """

    def __init__(self, host: str, run: str, say: Callable[[str], None]) -> None:
        self._host, self._run, self._say = host, run, say
        self._since: float | None = None

    def note(self, error: HostLostError) -> None:
        """Record that it did not answer, and wait a moment before the next attempt.

        Raises:
            HostLostError: it has not answered for too long.
        """
        now = time.monotonic()
        if self._since is None:
            self._since = now
            self._say(f"{error} Run {self._run} may still run there; trying to reach it again.")
        elif now - self._since > PATIENCE_S:
            raise HostLostError(
                f"{self._host} has not answered for {now - self._since:.0f} s. Run {self._run} may still run there, "
                f"or have ended with the machine; the same command tries again. {error}"
            ) from error
        time.sleep(_RETRY_S)

    def over(self) -> None:
        """Record that it has answered."""
        if self._since is not None:
            self._since = None
            self._say(f"{self._host} answers again.")

    def outlast(self, question: Callable[[], T]) -> T:
        """Return the answer to a request, repeating it until it is answered.

        Raises:
            HostLostError: as `note`.
        """
        while True:
            try:
                answer = question()
            except HostLostError as error:
                self.note(error)
                continue
            self.over()
            return answer


def stop(place: RunPlace, run: str, losses: Losses) -> RunState:
    """Ask a run to end, which is killed if it does not in time; return its final state.

    Args:
        place: where it is.
        run: its name.
        losses: handles lost connections.

    Raises:
        ProviderError: it still runs.
        HostLostError: its machine has not answered for too long.
    """
    if losses.outlast(lambda: place.is_alive(run)):
        losses.outlast(lambda: place.ask_down(run))
    deadline = time.monotonic() + GRACE_S + _KILL_S
    while losses.outlast(lambda: place.is_alive(run)):
        if time.monotonic() > deadline:
            raise ProviderError(f"Run {run} on {place.name} could not be ended: its driver does not react.")
        time.sleep(_END_LOOK_S)
    return losses.outlast(lambda: place.state(run))


def fetch(place: RunPlace, path: str, target: Path, losses: Losses, progress: Progress) -> Sequence[FileFacts]:
    """Fetch all files below a directory of a run into a local one; return these files.

    Args:
        place: where the run is.
        path: the directory, beginning with the run's name.
        target: created if missing; files of the same names in it are replaced.
        losses: handles lost connections.
        progress: called with the number of bytes that arrive.

    Raises:
        HostLostError: the machine has not answered for too long. What has arrived stays, and is not fetched again.
        ConfigError: the target cannot be written.
        ProviderError: a name leads out of the directory, or a file keeps changing.
    """
    found = losses.outlast(lambda: place.files(path))
    try:
        for facts in found:
            _fetch_file(place, path, facts, target, losses, progress)
    except OSError as error:
        raise ConfigError(f"What the run has written cannot be put into {target}: {error}.") from error
    return found


def _fetch_file(place: RunPlace, path: str, facts: FileFacts, target: Path, losses: Losses, progress: Progress) -> None:
    own = _below(target, facts.path, place.name)
    own.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    source = f"{path}/{facts.path}"
    if own.is_file() and own.stat().st_size == facts.size and _is_same(place, source, own, losses):
        progress(facts.size)
        return
    part = own.with_name(own.name + _PART)
    for _ in range(_ATTEMPTS):
        _append_rest(place, source, part, losses, progress)
        if _is_same(place, source, part, losses):
            part.replace(own)
            return
        part.unlink()
    raise ProviderError(f"The file {facts.path} on {place.name} changed each time it was read; fetch it later.")


def _append_rest(place: RunPlace, source: str, part: Path, losses: Losses, progress: Progress) -> None:
    """Append the rest of a file to its incomplete copy."""
    with part.open("ab") as file:
        part.chmod(0o600)
        position = file.tell()
        progress(position)
        while data := losses.outlast(lambda: place.read(source, position)):  # noqa: B023 - asked at once
            file.write(data)
            position += len(data)
            progress(len(data))


def _is_same(place: RunPlace, source: str, own: Path, losses: Losses) -> bool:
    with own.open("rb") as file:
        return losses.outlast(lambda: place.checksum(source)) == hashlib.file_digest(file, "sha256").hexdigest()


def _below(target: Path, path: str, host: str) -> Path:
    """Return the local path for a remote file, rejecting names that lead out of the directory."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts:
        raise ProviderError(f"{host} names a file {path!r}, which would lie outside of {target}. Nothing was written.")
    return target.joinpath(*parts)


def size_there(place: RunPlace, run: str, losses: Losses) -> int:
    """Return the number of bytes that `collect` fetches."""
    listed = (losses.outlast(lambda part=part: place.files(f"{run}/{part}")) for part in PARTS)  # type: ignore[misc]
    return sum(facts.size for files in listed for facts in files)


def collect(place: RunPlace, facts: RunFacts, losses: Losses, progress: Progress) -> ThisMachine:
    """Fetch the journals, values and files of a run that has ended, so that its machine is no longer needed.

    The machine is notified at the end. If interrupted or called again, it continues where it stopped.

    Args:
        place: where the run has ended.
        facts: what its record there says; this machine has a record of it as well.
        losses: handles lost connections.
        progress: called with the number of bytes that arrive.

    Raises:
        HostLostError: the machine has not answered for too long.
        ConfigError: it cannot be written here.
    """
    here, run = ThisMachine(), facts.record.id
    folder = folder_of(run)
    with FileLock(folder / ".collect.lock", mode=0o600):
        known = here.facts(run)
        if known is not None and known.is_collected:
            return here
        for part in PARTS:
            fetch(place, f"{run}/{part}", folder / part, losses, progress)
        text = b""
        while more := losses.outlast(lambda: place.read(f"{run}/{RUN_FILE}", len(text))):  # noqa: B023 - asked at once
            text += more
        entries = [entry.fields for entry in journal.parse(text) if entry.fields.get("event") != "started"]
        journal.append(folder / RUN_FILE, *entries, {"event": "collected"})
    losses.outlast(lambda: place.mark_collected(facts))
    return here
