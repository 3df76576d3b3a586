"""Operations on a run that may be on another machine: follow its journal, end it, fetch its files."""

from __future__ import annotations

from collections.abc import Iterator
from shutil import copytree

from skyward.errors import ProviderError
from skyward.records import journal
from skyward.records.journal import Entry
from skyward.records.run import GRACE_S, WRITTEN_FOLDER, RunFacts, note
from skyward.runs.find import Run
from skyward.runs.shared_folder import shared_folder
from skyward.runs.there import FOLDERS, JOURNALS
from skyward.system import time

_SHORTEST_S, _LONGEST_S = 0.05, 0.5  # between two reads of a journal without new entries
_KILL_S = 20.0  # for it to be gone once that time is over
_END_LOOK_S = 0.1  # between two checks whether it has ended


def follow(run: Run, name: str) -> Iterator[Entry]:
    """Yield entries of a journal as they arrive, until the run ends."""
    position, pause = 0, _SHORTEST_S
    while True:
        is_alive = run.refresh(name)
        for entry in journal.entries(run.folder / name, position):
            position, pause = entry.end, _SHORTEST_S
            yield entry
        if not is_alive:
            return
        time.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_S)


def stop(run: Run) -> RunFacts:
    """Ask a run to end, which is killed if it does not in time; return what its record then says.

    Raises:
        ProviderError: it still runs.
    """
    if run.refresh():
        run.ask_down()
    deadline = time.monotonic() + GRACE_S + _KILL_S
    while run.refresh():
        if time.monotonic() > deadline:
            raise ProviderError(f"Run {run.name} on {run.where} could not be ended: its driver does not react.")
        time.sleep(_END_LOOK_S)
    return run.facts


def collect(run: Run) -> None:
    """Fetch everything of a run that has ended, so that its machine is no longer needed, which is told so.

    What has arrived when this fails stays, and is not fetched again.

    Raises:
        ConfigError: it cannot be written here.
    """
    there = run.there
    assert there is not None
    run.refresh(*JOURNALS, *FOLDERS)
    record, written = run.facts.record, run.folder / WRITTEN_FOLDER
    if (
        record.rented is not None and written.is_dir()
    ):  # the run's folder ends with its machine; the next run is sent it
        copytree(written, shared_folder(record, run.folder), dirs_exist_ok=True)
    note(run.folder, "collected")
    there.mark_collected(record)
    run.there = None
