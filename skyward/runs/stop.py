"""Ends a run: in order if it does so in time, else at once."""

from __future__ import annotations

from skyward.errors import ProviderError
from skyward.records.run import RunRecord
from skyward.runs.follow import Losses
from skyward.runs.place import RunPlace, RunState
from skyward.system import time

GRACE_S = 10.0  # for a program to end its pools
_KILL_S = 10.0
_LOOK_S = 0.1


def stop(place: RunPlace, record: RunRecord, losses: Losses, *, grace_s: float = GRACE_S) -> RunState:
    """Ask a run to end, and end it at once if it has not done so in time; what became of it.

    Args:
        place: where it is.
        record: of the run.
        losses: how cuts of the connection are borne.
        grace_s: how long it may take to end in order.

    Raises:
        ProviderError: it is still there all the same, or nobody can say whether it is.
        HostLostError: its machine has not answered for too long.
    """
    state = losses.outlast(lambda: place.state(record))
    for signal, limit_s in (("TERM", grace_s), ("KILL", _KILL_S)):
        if state.is_final:
            return state
        losses.outlast(lambda signal=signal: place.signal(record, signal))  # type: ignore[misc]
        deadline = time.monotonic() + limit_s
        while not (state := losses.outlast(lambda: place.state(record))).is_final and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
    if state.is_final:
        return state
    raise ProviderError(
        f"Run {record.id} on {place.name} could not be ended: "
        + ("its engine does not answer." if state.phase == "unknown" else f"it still runs {_KILL_S:g} s after SIGKILL.")
    )
