"""The client's record of its pools, in a run's directory: the output of their nodes, and the pools' events.

A disk that accepts nothing ends the record, with one warning: pools do not depend on their records.

The events of a pool are "opening", "opened", "node_ready", "node_lost", "worker_lost", "notice" (a line for users),
"calls" (numbers of calls `running`, `queued`, `done` and `failed`) and "closed".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from skyward.records import journal
from skyward.records.run import local_runs, note, run_of_process, runs_folder
from skyward.system import threading, time

NODES_BYTES = 256 * 1024**2  # kept of the output of a run's nodes; the oldest is removed first
COUNTS_S = 1.0  # between two entries with numbers of calls;
_COUNTS_SHARE = 0.001  # of the pool's age if that is longer
_warned = threading.Lock()  # held once a warning was shown

Counts = Callable[[], Mapping[str, int]]


class Clock(Protocol):
    """Calls functions later."""

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run `action` in `delay_s` seconds."""


class PoolRecord:
    """The record of one pool; any thread may report to it.

    Args:
        pool: identifier of the pool.
        warn: called once, with a line of text, when recording has failed.
        conceal: masks the secrets in the text of an event.
        name: the name that the pool is kept under, if any.
    """

    def __init__(
        self, pool: str, warn: Callable[[str], None], conceal: Callable[[str], str] = str, name: str | None = None
    ) -> None:
        self._pool, self._warn, self._conceal, self._name = pool, warn, conceal, name
        self._began = time.monotonic()
        self._counts: Counts | None = None
        self._counted: Mapping[str, int] = {}
        self._is_closed = self._failed = False

    def output(self, text: str, *, node: int, rank: int, call: int | None, error: bool) -> None:
        """Record a node's output: whole lines, or part of one. Secrets have been masked on the node."""
        place = {"pool": self._pool, "node": node, "rank": rank, "call": call}
        entry = {"t": round(time.time(), 3), **place, "stream": "err" if error else "out", "text": text}
        self._write(lambda: journal.extend(run_of_process() / "nodes", entry, NODES_BYTES))

    def event(self, event: str, **fields: Any) -> None:
        """Record an event; strings among the fields are masked."""
        masked = {name: self._conceal(value) if isinstance(value, str) else value for name, value in fields.items()}
        named = {"name": self._name} if event == "opening" and self._name else {}
        self._write(lambda: note(run_of_process(), event, pool=self._pool, **named, **masked))

    def telling(self, tell: Callable[[str], None]) -> Callable[[str], None]:
        """Return a function that passes a line to `tell` and records it."""

        def told(line: str) -> None:
            tell(line)
            self.event("notice", text=line)

        return told

    def count(self, counts: Counts, clock: Clock) -> None:
        """Record the numbers of calls whenever they have changed, at most once a second."""

        def look() -> None:
            if not self._is_closed:
                self._count()
                clock.after(max(COUNTS_S, (time.monotonic() - self._began) * _COUNTS_SHARE), look)

        self._counts = counts
        clock.after(COUNTS_S, look)

    def close(self, error: str = "") -> None:
        """Record the last numbers of calls and the pool's end, with its error if any."""
        self._is_closed = True
        self._count()
        self.event("closed", error=error)

    def _count(self) -> None:
        found = self._counts() if self._counts is not None else {}
        if found != self._counted:
            self._counted = dict(found)
            self.event("calls", **found)

    def _write(self, write: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            write()
        except (OSError, ValueError) as error:  # ValueError: a path that no system call accepts
            self._failed = True
            if _warned.acquire(blocking=False):
                self._warn(
                    f"nothing more is recorded of this program's pools: {runs_folder()} cannot be written to "
                    f"({error}). The pools go on."
                )


def runs_of_pool(name: str, *, exactly: bool = False) -> tuple[str, Sequence[str]] | None:
    """Return the latest pool recorded here under this name, or the only one whose identifier has this prefix.

    The result is its identifier and the names of the runs that have held it, oldest first; None if there is none.
    """
    known = [
        (opened, kept_as, pool, facts.record.id)
        for facts in local_runs(ended=True)
        for pool, (opened, kept_as) in facts.pools.items()
    ]
    latest = {pool: kept_as for _, kept_as, pool, _ in sorted(known)}
    named = [pool for _, kept_as, pool, _ in sorted(known) if kept_as == latest[pool] == name]
    begun = [pool for pool in latest if (pool == name if exactly else pool.startswith(name))]
    if not name or not (named or len(begun) == 1):
        return None
    chosen = named[-1] if named else begun[0]
    return chosen, [run for _, _, pool, run in sorted(known) if pool == chosen]
