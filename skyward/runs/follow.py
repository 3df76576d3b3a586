"""Operations on a run that survive lost connections to its machine: follow its journal, end it, fetch its files."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

from skyward.errors import HostLostError, ProviderError
from skyward.records import journal
from skyward.records.journal import Entry
from skyward.records.run import GRACE_S, RunFacts
from skyward.runs.find import Run
from skyward.runs.there import FOLDERS, JOURNALS
from skyward.system import time

T = TypeVar("T")
PATIENCE_S = 60.0  # how long a machine may fail to answer before giving up
_RETRY_S = 1.0
_SHORTEST_S, _LONGEST_S = 0.05, 0.5  # between two reads of a journal without new entries
_KILL_S = 20.0  # for it to be gone once that time is over
_END_LOOK_S = 0.1  # between two checks whether it has ended


class Losses:
    """Reports once that a machine does not answer, and once that it answers again.

    Args:
        run: a run on it.
        say: receives the messages.
    """

    def __init__(self, run: Run, say: Callable[[str], None]) -> None:
        self._run, self._say = run, say

    def outlast(self, question: Callable[[], T]) -> T:
        """Return the answer to a request, repeating it until it is answered.

        Raises:
            HostLostError: the machine has not answered for too long.
        """
        since = None
        while True:
            try:
                answer = question()
            except HostLostError as error:
                now = time.monotonic()
                if since is None:
                    since = now
                    self._say(f"{error} Run {self._run.name} may still run there; trying to reach it again.")
                elif now - since > PATIENCE_S:
                    raise HostLostError(
                        f"{self._run.where} has not answered for {now - since:.0f} s. Run {self._run.name} may still "
                        f"run there, or have ended with the machine; the same command tries again. {error}"
                    ) from error
                time.sleep(_RETRY_S)
            else:
                if since is not None:
                    self._say(f"{self._run.where} answers again.")
                return answer


def follow(run: Run, name: str, losses: Losses) -> Generator[Entry, None, RunFacts]:
    """Yield entries of a journal as they arrive; the generator returns what the record then says.

    Args:
        run: the run.
        name: of the journal.
        losses: handles lost connections.

    Raises:
        HostLostError: the machine has not answered for too long.
    """
    position, pause = 0, _SHORTEST_S
    while True:
        is_alive = losses.outlast(lambda: run.refresh(name))
        for entry in journal.entries(run.folder / name, position):
            position, pause = entry.end, _SHORTEST_S
            yield entry
        if not is_alive:
            return run.facts
        time.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_S)


def stop(run: Run, losses: Losses) -> RunFacts:
    """Ask a run to end, which is killed if it does not in time; return what its record then says.

    Raises:
        ProviderError: it still runs.
        HostLostError: its machine has not answered for too long.
    """
    if losses.outlast(run.refresh):
        losses.outlast(run.ask_down)
    deadline = time.monotonic() + GRACE_S + _KILL_S
    while losses.outlast(run.refresh):
        if time.monotonic() > deadline:
            raise ProviderError(f"Run {run.name} on {run.where} could not be ended: its driver does not react.")
        time.sleep(_END_LOOK_S)
    return run.facts


def collect(run: Run, losses: Losses, progress: Callable[[int], None]) -> None:
    """Fetch everything of a run that has ended, so that its machine is no longer needed, which is told so.

    Raises:
        HostLostError: the machine has not answered for too long. What has arrived stays, and is not fetched again.
        ConfigError: it cannot be written here.
    """
    there = run.there
    assert there is not None
    losses.outlast(lambda: run.refresh(*JOURNALS, *FOLDERS, progress=progress))
    run.mark_collected()
    losses.outlast(lambda: there.mark_collected(run.facts.record))
    run.there = None
