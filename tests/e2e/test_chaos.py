"""Calls on processes, containers and hosts while these are killed, stopped and cut off.

The same calls and faults in every run of the suite; `SEED=n` chooses others, and `CALLS=n` how many: see `make chaos`.
"""

from __future__ import annotations

import os

from scripts.stand.place import Stand
from tests.chaos import places, workload
from tests.chaos.workload import Result

SEED = os.environ.get("SEED", "1")
CALLS = int(os.environ.get("CALLS", "1500"))
INTERVAL_S = 0.5  # between faults, so that the shorter run has some


def check(result: Result) -> None:
    """Nothing is broken; otherwise the seed and the figures are shown."""
    print(f"SEED={SEED}", result.figures)
    assert not result.broken, workload.explained(result, SEED)


def test_calls_on_processes_that_are_killed_and_stopped() -> None:
    """Each call has one outcome, runs as often as it may, and nothing is left."""
    check(workload.run(places.local(), CALLS, SEED, interval_s=INTERVAL_S))


def test_calls_on_containers_that_are_killed_and_stopped() -> None:
    """The same for workers, agents and containers."""
    check(workload.run(places.containers(), CALLS, SEED, extra=[places.long_stop], interval_s=INTERVAL_S))


def test_calls_on_hosts_that_are_cut_off(stand: Stand) -> None:
    """The same for links and SSH servers."""
    check(workload.run(places.three_hosts(stand), CALLS, SEED, interval_s=INTERVAL_S))
