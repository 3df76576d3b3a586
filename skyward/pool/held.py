"""Tells, once, when open streams hold all slots of a pool while a call waits: often the same thread opened them all."""

from __future__ import annotations

import math
from collections.abc import Iterable

from skyward.pool.task import Task
from skyward.pool.worker import WorkerLink

HELD_S = 2.0  # for how long that has to last


class StreamWatch:
    """Looks at a pool's workers at regular times."""

    def __init__(self) -> None:
        self._since: float | None = None

    def look(self, now: float, first_waiting: Task | None, workers: Iterable[WorkerLink]) -> str:
        """What to say now, if anything; under the dispatcher's lock."""
        slots, running = 0, list[Task]()
        for worker in workers:
            slots += worker.slots
            running += list(worker.outstanding.values())[: worker.slots]
        if first_waiting is None or not slots or len(running) < slots or any(task.stream is None for task in running):
            self._since = None
            return ""
        self._since = since = now if self._since is None else self._since
        if now - since < HELD_S:
            return ""
        self._since = math.inf  # until that has changed
        return (
            f"{first_waiting.function.name}() waits for a slot: all {slots} slots of the pool are held by open streams."
            " Take their items to the end or close them, or open the pool with more slots (concurrency=, nodes=)."
        )
