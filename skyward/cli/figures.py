"""The figures of open pools: what nodes use. Pools write them only while a command requests them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from skyward._pool.facts import WATCHED, stats_file
from skyward.model.resource import PoolStats
from skyward.records.run import folder_of, local_runs

_LOOK_S = 0.1
_PATIENCE_S = 3.0  # open pools write figures within two seconds


def figures(pools: set[str]) -> list[PoolStats]:
    """Return new figures of those of these pools that programs on this machine have open and that answer in time."""
    since, runs = time.time(), local_runs(ended=False) if pools else []
    waiting = {(folder_of(run.record.id), pool) for run in runs for pool in pools.intersection(run.pools)}
    found: list[PoolStats] = []
    while waiting and time.time() - since < _PATIENCE_S:
        for folder in {folder for folder, _ in waiting}:
            with suppress(OSError):  # the record is being removed
                (folder / WATCHED).touch(mode=0o600)
        for folder, pool in sorted(waiting):
            stats = _read(stats_file(folder, pool))
            if stats is not None and stats.at >= since:
                found.append(stats)
                waiting.remove((folder, pool))
        time.sleep(_LOOK_S if waiting else 0)
    return found


def _read(path: Path) -> PoolStats | None:
    try:
        return PoolStats.from_dict(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError, KeyError):  # there are none yet
        return None


def utilization(gpus: Sequence[Mapping[str, Any]]) -> str:
    """Return the mean utilisation of all GPUs that report it."""
    told = [gpu["utilization"] for gpu in gpus if gpu["utilization"] is not None]
    return f"{sum(told) / len(told):.0%}" if told else "-"
