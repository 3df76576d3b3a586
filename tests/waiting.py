"""How tests wait for what nobody announces."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(true: Callable[[], object], within_s: float = 120) -> float:
    """Seconds until something is so; fails if it is not in time."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < within_s, f"not so within {within_s:g} s"
        time.sleep(0.02)
    return time.monotonic() - began
