"""What nodes print, printed here: whole lines, each with the node or rank it came from.

A thread of its own writes, so that a stopped terminal never holds up results; what does not fit into its bounded
buffer is dropped, oldest first, and counted.
"""

from __future__ import annotations

import sys
from collections import deque

from skyward.system import threading

MAX_WAITING = 4 * 1024 * 1024  # characters held back for a slow terminal
_DRAIN_S = 2.0  # how long a result waits for the output that came before it


class Printer:
    """Prints the output of all nodes of one pool."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._waiting: deque[tuple[str, bool, str]] = deque()
        self._size = 0
        self._dropped = 0
        self._changed = threading.Condition()
        self._partial: dict[tuple[str, bool], str] = {}
        self._busy = False
        self._stopped = False
        self._thread: threading.Thread | None = None

    def put(self, place: str, text: str, *, error: bool) -> None:
        """Take text from a node or rank, as lines shall name it; `error` for its standard error."""
        if self._quiet:
            return
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="skyward-output", daemon=True)
                self._thread.start()
            self._waiting.append((place, error, text))
            self._size += len(text)
            while self._size > MAX_WAITING and len(self._waiting) > 1:
                _, _, lost = self._waiting.popleft()
                self._size -= len(lost)
                self._dropped += lost.count("\n") or 1
            self._changed.notify_all()

    def drain(self) -> None:
        """Wait until what has arrived is printed; the output of a call comes before its result that way."""
        if self._waiting or self._busy:
            with self._changed:
                self._changed.wait_for(lambda: not self._waiting and not self._busy, _DRAIN_S)

    def stop(self) -> None:
        """Print what is left, unfinished lines included, and end the thread."""
        self.drain()
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(_DRAIN_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting or self._stopped)
                if not self._waiting:
                    break
                self._busy = True  # before the queue is emptied: drain() looks at both without the lock
                items, dropped = list(self._waiting), self._dropped
                self._waiting.clear()
                self._size = self._dropped = 0
            if dropped:
                _write(f"[skyward] {dropped} lines were dropped: they came faster than they could be printed\n", True)
            for place, error, text in items:
                self._print(place, error, text)
        for (place, error), rest in self._partial.items():
            _write(f"[{place}] {rest}\n", error)

    def _print(self, place: str, error: bool, text: str) -> None:
        text = self._partial.pop((place, error), "") + text
        whole, newline, rest = text.rpartition("\n")
        if "\r" in rest:  # a progress bar redraws its line: show each state as it comes
            whole, newline, rest = (whole + newline + rest).rstrip("\r"), "\n", ""
        if rest:
            self._partial[place, error] = rest
        if newline:
            lines = (line.rsplit("\r", 1)[-1] for line in whole.split("\n"))
            _write("".join(f"[{place}] {line}\n" for line in lines), error)


def _write(text: str, error: bool) -> None:
    stream = sys.stderr if error else sys.stdout
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):
        pass  # the program's own output is closed; nobody is left to tell
