"""Follows the journal of a run to the run's end: each entry once, in order, across cuts of the connection."""

from __future__ import annotations

from collections.abc import Generator

from skyward.errors import HostLostError
from skyward.records.journal import Entry
from skyward.records.run import RunRecord
from skyward.runs.losses import Losses
from skyward.runs.place import RunPlace, RunState
from skyward.system import time

_SHORTEST_S, _LONGEST_S = 0.05, 0.5  # between two looks at a journal that has nothing new
_LOOK_S = 1.0  # between two looks at whether the run still runs

Follow = Generator[Entry, None, RunState]


def follow(place: RunPlace, record: RunRecord, name: str, losses: Losses, *, position: int = 0) -> Follow:
    """Entries of a journal as they come; what the generator returns is what became of the run.

    Args:
        place: where the run is.
        record: of the run.
        name: of the journal.
        losses: how cuts of the connection are borne.
        position: from which on it is read.

    Raises:
        HostLostError: the machine has not answered for too long.
    """
    pause, looked, state = _SHORTEST_S, 0.0, RunState("running")
    while True:
        try:
            for entry in place.entries(record.id, name, position):
                position, pause = entry.end, _SHORTEST_S
                losses.over()
                yield entry
            if state.is_final:
                return state
            if time.monotonic() - looked >= _LOOK_S or pause == _LONGEST_S:
                looked, state = time.monotonic(), place.state(record)
            losses.over()
        except HostLostError as error:
            losses.note(error)
            continue
        if not state.is_final:  # else what came before the end is still read
            time.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_S)
