"""How tests wait for what nobody announces, and take times on a machine that others use as well."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(true: Callable[[], object], within_s: float = 60) -> float:
    """Seconds until something is so; fails if it is not in time."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < within_s, f"not so within {within_s:g} s"
        time.sleep(0.02)
    return time.monotonic() - began


def least_s(run: Callable[[], object], enough_s: float, tries: int = 8) -> float:
    """The least seconds that a few tries took, up to the first that took no more than enough.

    For what takes its time by itself, where a try that is slow has met with what else the machine does.
    """
    taken: list[float] = []
    while len(taken) < tries and (not taken or taken[-1] >= enough_s):
        began = time.perf_counter()
        run()
        taken.append(time.perf_counter() - began)
    return min(taken)
