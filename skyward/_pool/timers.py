"""One thread that runs things later: time limits, grace periods. Heartbeats have one of their own."""

from __future__ import annotations

import heapq
import itertools
import sys
from collections.abc import Callable

from skyward.system import threading, time


class Timers:
    """Calls functions at given times, one after the other; none of them may block."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._stopped = False
        threading.Thread(target=self._run, name="skyward-clock", daemon=True).start()

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run `action` in `delay_s` seconds."""
        with self._changed:
            heapq.heappush(self._due, (time.monotonic() + delay_s, next(self._order), action))
            self._changed.notify()

    def stop(self) -> None:
        """Run nothing any more."""
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._stopped and (not self._due or self._due[0][0] > time.monotonic()):
                    self._changed.wait(self._due[0][0] - time.monotonic() if self._due else None)
                if self._stopped:
                    return
                _, _, action = heapq.heappop(self._due)
            try:
                action()
            except Exception:  # a bug in one of them must not stop the time limits of all other calls
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
