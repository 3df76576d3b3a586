"""The usage of open pools of this machine's runs: pools write it while a command asks for it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from skyward._pool.stats import EVERY_S, WATCHED, stats_file
from skyward.model.stats import GpuStats, PoolStats
from skyward.nodes.process_id import ProcessId
from skyward.records.pools import POOLS
from skyward.records.run import RunRecord, runs_folder

_UNITS = ("", "K", "M", "G", "T", "P")
_LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class OpenPool:
    """A pool that a run of this machine may have open."""

    run: str
    folder: Path
    pool: str

    def read(self) -> PoolStats | None:
        """Its figures, None while there are none."""
        try:
            return PoolStats.from_dict(json.loads(stats_file(self.folder, self.pool).read_bytes()))
        except (OSError, ValueError, TypeError, KeyError):
            return None


def open_pools(name: str | None) -> Iterator[OpenPool]:
    """The pools of runs that have not ended, as far as can be told: all, or one by its identifier or its run's name."""
    for run, folder in open_runs():
        for each in sorted((folder / POOLS).glob("*")):
            if name is None or name in {each.name, run}:
                yield OpenPool(run, folder, each.name)


def open_runs() -> Iterator[tuple[str, Path]]:
    """The names and directories of runs of this machine that have not ended, as far as can be told."""
    for path in sorted(runs_folder().glob("*/run.json")):
        if (path.parent / "end.json").exists():
            continue
        try:
            record = RunRecord.parse(path.read_bytes())
        except (OSError, ValueError, TypeError):
            continue  # it is being written, or removed
        process = ProcessId.parse(record.process or "")
        if process is None or not process.is_gone():
            yield record.id, path.parent


def figures(
    pools_now: Callable[[], Sequence[OpenPool]], since: float, patience_s: float
) -> list[tuple[OpenPool, PoolStats]]:
    """The pools that have given figures since a moment; those that are open give some within two seconds.

    Args:
        pools_now: the pools that are asked.
        since: seconds since 1970.
        patience_s: how long the first figures are waited for; of the others only 2.5 s.
    """
    began = time.monotonic()
    while True:
        pools = pools_now()
        watch(pools)
        found = [(pool, stats) for pool in pools if (stats := pool.read()) is not None and stats.at >= since]
        waited_s = time.monotonic() - began
        if len(found) == len(pools) or waited_s > patience_s or (found and waited_s > 2.5 * EVERY_S):
            return found
        time.sleep(_LOOK_S)


def watch(pools: Sequence[OpenPool]) -> None:
    """Ask for figures for the next seconds."""
    for folder in {pool.folder for pool in pools}:
        try:
            (folder / WATCHED).touch(mode=0o600)
        except OSError:
            continue  # the record is being removed


def utilization(gpus: Sequence[GpuStats]) -> str:
    """The mean of all GPUs that tell it."""
    told = [gpu.utilization for gpu in gpus if gpu.utilization is not None]
    return f"{sum(told) / len(told):.0%}" if told else "-"


def size_text(value: float | None) -> str:
    """A number of bytes in four characters or five: "1.2G"; 1K is 1000."""
    if value is None:
        return "-"
    for unit in _UNITS:
        if value < 999.5:
            return f"{value:.1f}{unit}" if value < 9.95 and unit else f"{value:.0f}{unit}"
        value /= 1000
    return f"{value:.0f}E"
