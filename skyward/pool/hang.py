"""Ranks that wait for one that will not come, told from ranks that work.

A rank that has returned while others still run is nothing unusual. It is only when all of these sit in a framework's
code that waits for other ranks, and not one of them has moved for a while, that nobody is left who could release them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

PROBE_S = 1.0  # between two looks at the ranks that still run
STUCK_S = 10.0  # how long none of them may have moved
_SPENT = 0.02  # of one processor: what a process that only waits may use


class Stillness:
    """For how long each rank has waited without moving, from the samples that its worker gives of it."""

    def __init__(self) -> None:
        self._since: dict[int, tuple[float, dict[str, Any]]] = {}  # when it was first seen where it is, and that sample
        self._last: dict[int, float] = {}

    def note(self, rank: int, now: float, sample: dict[str, Any]) -> None:
        """A worker has told where its call is (`runner.stacks.describe`)."""
        self._last[rank] = now
        since = self._since.get(rank)
        if not sample.get("waits"):
            self._since.pop(rank, None)
        elif since is None or _moved(since[1], sample, now - since[0]):
            self._since[rank] = now, sample

    def lasted_s(self, ranks: Collection[int], now: float) -> float:
        """For how long all of these have waited. One whose worker does not answer is taken to work."""
        if not ranks or any(rank not in self._since or now - self._last[rank] > 2 * PROBE_S for rank in ranks):
            return 0.0
        return min(self._last[rank] - self._since[rank][0] for rank in ranks)


def _moved(before: dict[str, Any], after: dict[str, Any], elapsed_s: float) -> bool:
    if before["place"] != after["place"] or before["switches"] != after["switches"]:
        return True
    spent: float = after["cpu_s"] - before["cpu_s"]
    return spent > _SPENT * (elapsed_s + 1.0)
