"""A minute of `make chaos`: the same workloads, faults, soak and mutated bytes, a tenth or less of each.

The same calls and faults in every run of the suite; `SEED=n` chooses others, as `make chaos` does by chance.
"""

from __future__ import annotations

import os

from scripts.stand.place import Stand
from tests.chaos import collective, fuzz, places, soak, workload
from tests.chaos.workload import Result

SEED = os.environ.get("SEED", "1")
CALLS, ROUNDS, FRAMES, HANDSHAKES, SOAK = 1500, 3, 20_000, 100_000, 0.1
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
    check(workload.run(places.containers(), CALLS, SEED, interval_s=INTERVAL_S))


def test_calls_on_hosts_that_are_cut_off(stand: Stand) -> None:
    """The same for links and SSH servers."""
    check(workload.run(places.three_hosts(stand), CALLS, SEED, interval_s=INTERVAL_S))


def test_a_group_of_ranks_under_kills() -> None:
    """Each round has the right sums of one group, or is lost and says so."""
    check(collective.run(ROUNDS, SEED))


def test_nothing_grows() -> None:
    """Memory, descriptors and threads of client, agents and workers, over calls, errors, streams and pools."""
    check(soak.run(SOAK))


def test_mutated_frames_and_handshakes() -> None:
    """Nothing crashes, nothing is unpickled before authentication, no length makes anybody take memory."""
    check(fuzz.run(SEED, FRAMES, HANDSHAKES))
