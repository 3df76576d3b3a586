"""Brings everything of a run that has ended on another machine into this machine's record of it."""

from __future__ import annotations

from filelock import FileLock

from skyward.errors import ProviderError
from skyward.records.run import RunRecord, folder_of
from skyward.runs.fetch import Progress, fetch
from skyward.runs.losses import Losses
from skyward.runs.place import RunPlace
from skyward.runs.this_machine import COLLECTED, ThisMachine

PARTS = ("output", "nodes", "events", "saved", "files")


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
