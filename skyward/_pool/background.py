"""Background threads of a pool: `Timers` for delayed actions, `Callbacks` for user code, which may block."""

from __future__ import annotations

import heapq
import itertools
import sys
import traceback
from collections import deque
from collections.abc import Callable

from skyward.system import Empty, SimpleQueue, threading, time

MOST_THREADS = 32  # when all of them block, later callbacks wait, and nothing else does
_IDLE_S = 5.0  # idle time after which a thread ends
DRAIN_S = 2.0  # how long the end of a pool waits for callbacks that have not returned


class Timers:
    """Calls functions at given times, one after another, in one thread; none of them may block.

    Used for time limits and grace periods; heartbeats have a separate thread.
    """

    def __init__(self) -> None:
        self._asked: SimpleQueue[tuple[float, int, Callable[[], None]] | None] = SimpleQueue()
        self._order = itertools.count()
        self._stopped = False
        threading.Thread(target=self._run, name="skyward-clock", daemon=True).start()

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run `action` in `delay_s` seconds."""
        self._asked.put((time.monotonic() + delay_s, next(self._order), action))

    def stop(self) -> None:
        """Run no further actions."""
        self._stopped = True
        self._asked.put(None)

    def _run(self) -> None:
        due: list[tuple[float, int, Callable[[], None]]] = []
        while not self._stopped:
            left_s = due[0][0] - time.monotonic() if due else None
            if left_s is None or left_s > 0:
                try:
                    asked = self._asked.get(timeout=left_s)
                except Empty:
                    continue
                if asked is not None:
                    heapq.heappush(due, asked)
                continue
            _, _, action = heapq.heappop(due)
            try:
                action()
            except Exception:  # a bug in one action must not disable the time limits of all other calls
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
            del action  # its objects must not live until the next one


class Callbacks:
    """Runs users' callbacks, which may block, fail, and call the pool.

    They are started in order of submission, in as many threads as needed so that none waits for another.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[tuple[str, Callable[[], object]]] = deque()
        self._threads: set[int] = set()
        self._idle = 0
        self._running = 0

    def submit(self, what: str, action: Callable[[], object]) -> None:
        """Run `action` soon. An exception from it is written to standard error, with `what` as its description."""
        with self._changed:
            self._waiting.append((what, action))
            if self._idle >= len(self._waiting):
                self._changed.notify()
                return
            if len(self._threads) >= MOST_THREADS:
                return
            thread = threading.Thread(target=self._run, name="skyward-callback", daemon=True)
            thread.start()

    def drain(self, limit_s: float = DRAIN_S) -> None:
        """Wait at most `limit_s` seconds until all have returned; do not wait when called from a callback."""
        with self._changed:
            if threading.get_ident() not in self._threads:
                self._changed.wait_for(lambda: not (self._waiting or self._running), limit_s)

    def _run(self) -> None:
        with self._changed:
            self._threads.add(threading.get_ident())
        while (taken := self._take()) is not None:
            what, action = taken
            try:
                action()
            except BaseException:  # including SystemExit, which may end only the callback
                _report(what)
            taken = action = None  # type: ignore[assignment]  # release its references before waiting
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def _take(self) -> tuple[str, Callable[[], object]] | None:
        with self._changed:
            self._idle += 1
            found = self._changed.wait_for(lambda: self._waiting, _IDLE_S)
            self._idle -= 1
            if not found:
                self._threads.discard(threading.get_ident())
                return None
            self._running += 1
            return self._waiting.popleft()


def _report(what: str) -> None:
    if sys.stderr is None:  # the program was started without standard error
        return
    try:
        sys.stderr.write(f"skyward: {what} raised an error, which no caller can catch:\n{traceback.format_exc()}")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass  # the program's own error output is closed
