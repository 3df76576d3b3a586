"""Follows the journal of a run to its end, each entry once and in order, across cuts of the connection; ends a run."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

from skyward.errors import HostLostError, ProviderError
from skyward.records.journal import Entry
from skyward.records.run import RunRecord
from skyward.runs.place import RunPlace, RunState
from skyward.system import time

_SHORTEST_S, _LONGEST_S = 0.05, 0.5  # between two looks at a journal that has nothing new
_LOOK_S = 1.0  # between two looks at whether the run still runs
PATIENCE_S = 60.0  # without an answer of the machine, after which it is given up
_RETRY_S = 1.0
T = TypeVar("T")
GRACE_S = 10.0  # for a program to end its pools
_KILL_S = 10.0
_END_LOOK_S = 0.1  # between two looks at whether it has ended


def follow(place: RunPlace, record: RunRecord, name: str, losses: Losses) -> Generator[Entry, None, RunState]:
    """Entries of a journal as they come; what the generator returns is what became of the run.

    Args:
        place: where the run is.
        record: of the run.
        name: of the journal.
        losses: how cuts of the connection are borne.

    Raises:
        HostLostError: the machine has not answered for too long.
    """
    position, pause, looked, state = 0, _SHORTEST_S, 0.0, RunState("running")
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


class Losses:
    """Says once that a machine does not answer, and once that it answers again.

    Args:
        host: the machine's name.
        run: the run's name.
        say: is told, in sentences.
    """

    def __init__(self, host: str, run: str, say: Callable[[str], None]) -> None:
        self._host, self._run, self._say = host, run, say
        self._since: float | None = None

    def note(self, error: HostLostError) -> None:
        """It was asked and did not answer; it may be asked again when this returns, a moment later.

        Raises:
            HostLostError: that has taken too long.
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
        """It has answered."""
        if self._since is not None:
            self._since = None
            self._say(f"{self._host} answers again.")

    def outlast(self, question: Callable[[], T]) -> T:
        """The answer to a question, which is asked until it is answered.

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
            time.sleep(_END_LOOK_S)
    if state.is_final:
        return state
    raise ProviderError(
        f"Run {record.id} on {place.name} could not be ended: "
        + ("its engine does not answer." if state.phase == "unknown" else f"it still runs {_KILL_S:g} s after SIGKILL.")
    )
