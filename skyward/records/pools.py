"""The client's record of its pools, in a run's directory: the output of their nodes, and the pools' events.

A separate thread writes. Reporting never waits for the disk: output that the disk is too slow for is counted and
dropped, and a disk that accepts nothing ends the record, with one warning. Pools do not depend on their records.

The events of a pool are "opening", "opened", "node_ready", "node_lost", "worker_lost", "notice" (a line for users),
"calls" (numbers of calls `running`, `queued`, `done` and `failed`; at most once a second) and "closed".
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from skyward.records.journal import JournalWriter
from skyward.records.run import run_of_process, runs_folder
from skyward.system import threading, time

NODES_BYTES = 256 * 1024**2  # kept of the output of a run's nodes; the oldest is removed first
EVENTS_BYTES = 32 * 1024**2
POOLS = "pools"  # in a run's directory: one file per pool, which contains the name it is kept under, if any
_WAITING = 16 * 1024**2  # characters of output that may wait for the disk; the rest is dropped
_ENTRY = 64 * 1024  # characters of output in one entry
_LINGER_S = 0.02  # how long output is gathered before it is written
_COUNTS_S = 1.0  # between two entries with numbers of calls
_LAST_S = 2.0  # how long closing a pool waits for the disk

Counts = Callable[[], Mapping[str, int]]


class _Output(NamedTuple):
    """Output of a node: the fields of its entry."""

    t: float
    pool: str
    node: int | None
    rank: int | None
    call: int | None
    stream: str
    text: str


class PoolRecord:
    """The record of one pool; any thread may report to it.

    Args:
        pool: identifier of the pool.
        process: this process as `nodes/process_id.py` writes it.
        warn: called once, with a line of text, when recording has failed.
        conceal: masks the secrets in the text of an event.
        name: the name that the pool is kept under, if any.
    """

    def __init__(
        self,
        pool: str,
        process: str,
        warn: Callable[[str], None],
        conceal: Callable[[str], str] = str,
        name: str | None = None,
    ) -> None:
        self._pool, self._conceal = pool, conceal
        _writer.begin(pool, process, warn, name)

    def output(self, text: str, *, node: int, rank: int, call: int | None, error: bool) -> None:
        """Record a node's output: whole lines, or part of one. Secrets have been masked on the node."""
        stream = "err" if error else "out"
        _writer.put(_Output(round(time.time(), 3), self._pool, node, rank, call, stream, text), len(text))

    def event(self, event: str, **fields: Any) -> None:
        """Record an event; strings among the fields are masked."""
        masked = {name: self._conceal(value) if isinstance(value, str) else value for name, value in fields.items()}
        _writer.put({"t": round(time.time(), 3), "pool": self._pool, "event": event, **masked})

    def telling(self, tell: Callable[[str], None]) -> Callable[[str], None]:
        """Return a function that passes a line to `tell` and records it."""

        def told(line: str) -> None:
            tell(line)
            self.event("notice", text=line)

        return told

    def count(self, counts: Counts) -> None:
        """Record the numbers of calls whenever they have changed, at most once a second."""
        _writer.count(self._pool, counts)

    def close(self, error: str = "") -> None:
        """Record the pool's end, and its error if any, and wait briefly until everything is written."""
        closed = {"t": round(time.time(), 3), "pool": self._pool, "event": "closed", "error": self._conceal(error)}
        _writer.end(self._pool, closed)


class _Writer:
    """The thread that writes the records of this process's pools, which runs while one of them is open."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards the attributes below
        self._waiting: deque[_Output | dict[str, Any]] = deque()
        self._size = self._dropped = 0
        self._pools: dict[str, Counts | None] = {}  # open pools
        self._names: dict[str, str] = {}  # names that pools are kept under, or ""
        self._busy = self._failed = False
        self._thread: threading.Thread | None = None
        self._warn: Callable[[str], object] = str
        self._process = ""
        self._hurry = threading.Event()  # set while a caller waits until everything is written
        # used by the thread only
        self._folder = Path()
        self._journals: dict[str, JournalWriter] = {}
        self._counted: dict[str, Mapping[str, int]] = {}  # what was last recorded, by pool
        self._count_at = 0.0

    def begin(self, pool: str, process: str, warn: Callable[[str], None], name: str | None) -> None:
        """Register a pool that is about to open."""
        with self._changed:
            self._names[pool] = name or ""
            self._pools[pool], self._process, self._warn = None, process, warn
            if self._thread is None and not self._failed:
                self._thread = threading.Thread(target=self._run, name="skyward-record", daemon=True)
                self._thread.start()

    def count(self, pool: str, counts: Counts) -> None:
        """Record the pool's counts from now on."""
        with self._changed:
            self._pools[pool] = counts

    def put(self, entry: _Output | dict[str, Any], size: int = 0) -> None:
        """Queue an entry, which has `size` characters of output; never blocks."""
        with self._changed:
            if self._failed:
                return
            if size and self._size + size > _WAITING:
                self._dropped += size
                return
            self._waiting.append(entry)
            self._size += size
            if len(self._waiting) == 1:
                self._changed.notify_all()

    def end(self, pool: str, entry: dict[str, Any]) -> None:
        """Record a pool's last entry, and wait briefly until its record is written."""
        with self._changed:
            counts = self._pools.get(pool)
        last = counts() if counts is not None else None
        with self._changed:
            if pool not in self._pools or self._failed:
                return
            if last is not None:
                self._waiting.append(_counts_entry(pool, last))
            self._waiting.append(entry)
            del self._pools[pool]
            self._hurry.set()
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._thread is None or not (self._waiting or self._busy), _LAST_S)

    def _run(self) -> None:
        try:
            self._open()
            while self._wait():
                self._count()
                self._hurry.wait(_LINGER_S)
                self._write()
        except (OSError, ValueError) as error:  # ValueError: a path that no system call accepts
            with self._changed:
                self._failed, self._thread = True, None
                self._waiting.clear()
                self._changed.notify_all()
            self._warn(
                f"nothing more is recorded of this program's pools: {self._folder} cannot be written to ({error}). "
                "The pools go on."
            )

    def _open(self) -> None:
        self._folder = runs_folder()  # shown in the warning if the run's own directory cannot be created
        self._folder = run_of_process(self._process)
        for name, limit in (("nodes", NODES_BYTES), ("events", EVENTS_BYTES)):
            self._journals[name] = JournalWriter(self._folder / name, limit=limit, shared=True)
        (self._folder / POOLS).mkdir(mode=0o700, exist_ok=True)

    def _wait(self) -> bool:
        """Wait for entries or the next count of calls; return False when everything is written and no pool is open."""
        with self._changed:
            self._busy = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._waiting or not self._pools, _COUNTS_S)
            if not self._waiting and not self._pools:
                for journal in self._journals.values():
                    journal.close()
                self._thread = None
                self._hurry.clear()
                self._changed.notify_all()
                return False
            self._busy = True
            return True

    def _count(self) -> None:
        now = time.monotonic()
        if now < self._count_at:
            return
        self._count_at = now + _COUNTS_S
        with self._changed:
            pools = dict(self._pools)
        self._counted = {pool: known for pool, known in self._counted.items() if pool in pools}
        for pool, counts in pools.items():
            found = counts() if counts is not None else None
            if found is not None and found != self._counted.get(pool):
                self._counted[pool] = found
                self.put(_counts_entry(pool, found))

    def _write(self) -> None:
        with self._changed:
            entries, dropped = list(self._waiting), self._dropped
            self._waiting.clear()
            self._size = self._dropped = 0
            if not self._pools:
                self._hurry.clear()
        printed = [entry for entry in entries if isinstance(entry, _Output)]
        events = [entry for entry in entries if not isinstance(entry, _Output)]
        for entry in events:
            if entry["event"] == "opening":
                (self._folder / POOLS / entry["pool"]).write_text(self._names[entry["pool"]])
        if dropped:
            said = f"skyward: {dropped} characters are missing here: they came faster than the disk takes them\n"
            printed.append(_Output(round(time.time(), 3), "", None, None, None, "err", said))
        self._journals["nodes"].extend(entry._asdict() for entry in _merged(printed))
        self._journals["events"].extend(events)


def _merged(entries: Iterable[_Output]) -> Iterator[_Output]:
    """Merge consecutive entries of the same call and stream, which allows writing thousands of lines a second."""
    for _, alike in groupby(entries, lambda entry: entry[1:-1]):
        first, texts, size = None, list[str](), 0
        for entry in alike:
            if first is not None and size >= _ENTRY:
                yield first._replace(text="".join(texts))
                first, texts, size = None, [], 0
            first = first or entry
            texts.append(entry.text)
            size += len(entry.text)
        if first is not None:
            yield first._replace(text="".join(texts))


def _counts_entry(pool: str, counts: Mapping[str, int]) -> dict[str, Any]:
    return {"t": round(time.time(), 3), "pool": pool, "event": "calls", **counts}


def runs_of_pool(name: str, *, exactly: bool = False) -> tuple[str, Sequence[str]] | None:
    """Return the latest pool recorded here under this name, or the only one whose identifier has this prefix.

    The result is its identifier and the names of the runs that have held it, oldest first; None if there is none.
    """
    paths = [path for path in runs_folder().glob(f"*/{POOLS}/*") if not path.parents[1].name.startswith(".")]
    known: dict[str, list[Path]] = {}
    for path in sorted(paths, key=_touched):
        known.setdefault(path.name, []).append(path)
    named = [pool for pool, runs in known.items() if _pool_name(runs[-1]) == name]
    begun = [pool for pool in known if (pool == name if exactly else pool.startswith(name))]
    if not name or not (named or len(begun) == 1):
        return None
    pool = named[-1] if named else begun[0]
    return pool, [path.parents[1].name for path in known[pool]]


def _touched(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # the record was removed meanwhile
        return 0.0


def _pool_name(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError):  # removed meanwhile, or not text
        return ""


_writer = _Writer()


def _after_fork() -> None:
    """Start a new record in a forked process: the old one is the parent's."""
    global _writer
    _writer = _Writer()


os.register_at_fork(after_in_child=_after_fork)
