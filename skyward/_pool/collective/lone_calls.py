"""Notes on calls of single ranks that wait in a framework, most likely for the other ranks, which do not run them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from skyward._pool.collective.diagnosis import PROBE_S, STUCK_S, HangDetector, StackFrame, excerpt
from skyward._pool.dispatcher import Dispatcher
from skyward._pool.task import Task
from skyward.system import time


class LoneCalls:
    """Watches the calls of single ranks in a group. The clock calls `look` every `PROBE_S`.

    It only says so, once for each function, since a call may as well wait for a long computation on a device.

    Args:
        dispatcher: that of the pool.
        tell: prints a permanent line.
    """

    def __init__(self, dispatcher: Dispatcher, tell: Callable[[str], None]) -> None:
        self._dispatcher, self._tell = dispatcher, tell
        self._hang_detector = HangDetector()
        self._told = set[str]()

    def look(self, running: Sequence[Task]) -> None:
        """Take the answers to the last look, and ask again where the calls are.

        Args:
            running: all calls that run in the group.
        """
        now = time.monotonic()
        if any(task.broadcast is not None for task in running):
            return  # it may come to where these wait; if it cannot, it ends with an error
        self._hang_detector.drop_others({task.id for task in running})
        for task in running:
            self._hang_detector.note(task.id, now, task.sample)
        if self._hang_detector.lasted_s([task.id for task in running], now) >= STUCK_S:
            for task in running:
                self._note(task)
        for task in running:
            task.sample = {}
        self._dispatcher.ask_where(task for task in running if now - task.sent_at >= PROBE_S)

    def _note(self, task: Task) -> None:
        name = task.function.name
        if name not in self._told:
            self._told.add(name)
            frames = excerpt([StackFrame(*frame) for frame in task.sample["frames"]])
            self._tell(
                f"{name}() has waited on {task.place} for {STUCK_S:g} s, and was called on that rank only. If it waits "
                f"for the others, call it with @: `{name}(...) @ pool`. It is here:\n{frames}"
            )
