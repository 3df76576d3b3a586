"""When ranks count as waiting for ever, and that a rank that works never does."""

from __future__ import annotations

from typing import Any

import pytest

from skyward._pool.collective.diagnosis import PROBE_S, STUCK_S, HangDetector

Sample = dict[str, Any]


def sample(**changes: Any) -> Sample:
    """A rank that waits in a collective and does nothing else."""
    return {"place": "all_reduce", "waits": True, "cpu_s": 3.0, "switches": 12, **changes}


def watch(samples: list[Sample]) -> bool:
    """Whether a rank that gave these samples, one per probe, is stuck at the last of them."""
    hang_detector = HangDetector()
    now = 0.0
    for now, given in enumerate(samples):
        hang_detector.note(0, now * PROBE_S, given)
    return hang_detector.lasted_s([0], now * PROBE_S) >= STUCK_S


LONG = int(STUCK_S / PROBE_S) + 1


def test_a_rank_that_has_not_moved_for_long_is_stuck() -> None:
    """And not a moment before."""
    assert watch([sample()] * LONG)
    assert not watch([sample()] * (LONG - 1))


@pytest.mark.parametrize(
    "last",
    [
        sample(place="elsewhere"),
        sample(switches=13),
        sample(cpu_s=4.0),
        sample(waits=False),
        {},
    ],
    ids=["another line", "slept and woke", "used the processor", "in code of the user's", "not in the call"],
)
def test_any_movement_begins_the_wait_anew(last: Sample) -> None:
    """What computes, sleeps in the user's own code, or goes on in any other way is never ended."""
    assert not watch([*[sample()] * (LONG - 1), last])
    assert not watch([*[sample()] * LONG, last, *[last] * (LONG - 2)])


def test_all_ranks_that_are_left_must_be_stuck() -> None:
    """One that works may still release the others."""
    hang_detector = HangDetector()
    for n in range(LONG):
        hang_detector.note(0, n * PROBE_S, sample())
        hang_detector.note(1, n * PROBE_S, sample(cpu_s=3.0 + n))
    now = (LONG - 1) * PROBE_S
    assert hang_detector.lasted_s([0], now) == now
    assert hang_detector.lasted_s([0, 1], now) == 0
    assert hang_detector.lasted_s([0, 2], now) == 0  # nothing has ever been heard of it
    assert hang_detector.lasted_s([], now) == 0
