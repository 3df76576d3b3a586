"""The figures of open pools: what nodes use. Pools write them only while a command requests them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from skyward._pool.facts import EVERY_S, WATCHED, stats_file
from skyward.model.resource import GpuStats, PoolStats
from skyward.records.run import folder_of, local_runs

_UNITS = ("", "K", "M", "G", "T", "P")
_LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class OpenPool:
    """A pool that a run on this machine may have open."""

    folder: Path
    pool: str

    def read(self) -> PoolStats | None:
        """Return its figures; None while there are none."""
        try:
            return PoolStats.from_dict(json.loads(stats_file(self.folder, self.pool).read_bytes()))
        except (OSError, ValueError, TypeError, KeyError):
            return None


def open_pools() -> Iterator[OpenPool]:
    """Yield the pools of this machine's active runs."""
    for facts in local_runs(ended=False):
        for pool in sorted(facts.pools):
            yield OpenPool(folder_of(facts.record.id), pool)


def figures(pools_now: Callable[[], Sequence[OpenPool]], since: float, patience_s: float) -> list[PoolStats]:
    """Return the figures that pools have written since a moment; open pools do so within two seconds.

    Args:
        pools_now: returns the pools to query.
        since: seconds since 1970.
        patience_s: how long to wait for the first figures; the remaining pools get only 2.5 intervals.
    """
    began = time.monotonic()
    while True:
        pools = pools_now()
        _watch(pools)
        found = [stats for pool in pools if (stats := pool.read()) is not None and stats.at >= since]
        waited_s = time.monotonic() - began
        if len(found) == len(pools) or waited_s > patience_s or (found and waited_s > 2.5 * EVERY_S):
            return found
        time.sleep(_LOOK_S)


def _watch(pools: Sequence[OpenPool]) -> None:
    """Request figures for the next seconds."""
    for folder in {pool.folder for pool in pools}:
        try:
            (folder / WATCHED).touch(mode=0o600)
        except OSError:
            continue  # the record is being removed


def utilization(gpus: Sequence[GpuStats]) -> str:
    """Return the mean utilisation of all GPUs that report it."""
    told = [gpu.utilization for gpu in gpus if gpu.utilization is not None]
    return f"{sum(told) / len(told):.0%}" if told else "-"


def size_text(value: float | None) -> str:
    """Format a number of bytes in four or five characters: "1.2G"; 1K is 1000."""
    if value is None:
        return "-"
    for unit in _UNITS:
        if value < 999.5:
            return f"{value:.1f}{unit}" if value < 9.95 and unit else f"{value:.0f}{unit}"
        value /= 1000
    return f"{value:.0f}E"
