"""Fetches files of a run, or all of one that has ended elsewhere: what was fetched before is not fetched again.

Each file is compared by its checksum.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from filelock import FileLock

from skyward.errors import ConfigError, ProviderError
from skyward.records.run import RunRecord, folder_of
from skyward.runs.follow import Losses
from skyward.runs.place import COLLECTED, FileFacts, RunPlace, ThisMachine

_PART = ".skyward-part"  # what is there of a file that is not complete
_ATTEMPTS = 3  # at a file that changes while it is read

Progress = Callable[[int], None]  # is told of bytes that have arrived
PARTS = ("output", "nodes", "events", "saved", "files")


def fetch(place: RunPlace, path: str, target: Path, losses: Losses, progress: Progress) -> Sequence[FileFacts]:
    """Bring all files below a directory of a run into one of this machine; these files.

    Args:
        place: where the run is.
        path: the directory, which begins with the run's name.
        target: made when it is missing; files of the same names in it are replaced.
        losses: how cuts of the connection are borne.
        progress: told of what arrives.

    Raises:
        HostLostError: the machine has not answered for too long. What has arrived stays, and is not fetched again.
        ConfigError: the target cannot be written.
        ProviderError: a name leads out of the directory, or a file changes all the time.
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
    """Read a file from where its part ends."""
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
    """The place here of a file there; another machine's names do not lead out of the directory."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts:
        raise ProviderError(f"{host} names a file {path!r}, which would lie outside of {target}. Nothing was written.")
    return target.joinpath(*parts)


def size_there(place: RunPlace, record: RunRecord, losses: Losses) -> int:
    """Bytes that `collect` brings."""
    listed = (losses.outlast(lambda part=part: place.files(f"{record.id}/{part}")) for part in PARTS)  # type: ignore[misc]
    return sum(facts.size for files in listed for facts in files)


def collect(place: RunPlace, record: RunRecord, losses: Losses, progress: Progress) -> ThisMachine:
    """Bring the journals, values and files of a run here; the machine is not needed for it any more.

    The machine is told at the end. Interrupted, or called again, it goes on where it was.

    Args:
        place: where the run has ended.
        record: of the run, of which this machine has one as well.
        losses: how cuts of the connection are borne.
        progress: told of bytes that arrive.

    Raises:
        HostLostError: the machine has not answered for too long.
        ConfigError: there is no room for it here.
        ProviderError: it has not ended.
    """
    here, folder = ThisMachine(), folder_of(record.id)
    with FileLock(folder / ".collect.lock", mode=0o600):
        if here.read(f"{record.id}/{COLLECTED}") is not None:
            return here
        end = losses.outlast(lambda: place.read(f"{record.id}/end.json"))
        if end is None:
            raise ProviderError(f"Run {record.id} on {place.name} has not ended; its results are fetched after that.")
        for part in PARTS:
            fetch(place, f"{record.id}/{part}", folder / part, losses, progress)
        (folder / "end.json").write_bytes(end)
        here.mark_collected(record)
    losses.outlast(lambda: place.mark_collected(record))
    return here
