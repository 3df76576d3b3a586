r"""Prints the output of nodes: whole lines, each with the node or rank it came from.

A dedicated thread writes, so that a blocked reader never delays results. A file or a pipe receives everything; for a
terminal that cannot keep up, the oldest output is dropped and the number of lines is reported. Of a line that is drawn
again and again (`\r`, a progress bar), the last state is printed, and every few seconds the present one. In a
notebook, all output of a call goes to the cell that made it.
"""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from skyward._pool.display import Cell, harmless, is_terminal, screen
from skyward._pool.signals import LISTEN_S
from skyward.system import threading, time

EVERY_S = 5.0  # between lines with the state of a progress bar
_DRAIN_S = 2.0  # limit for a result's wait for earlier output, and for the wait for a terminal at the pool's end
_SETTLE_S = 1.0  # between checks for unfinished lines
_NO_CALL = 0
_Source = tuple[str, bool, int]
MAX_WAITING = 4 * 1024 * 1024  # characters kept for a terminal
LONGEST_LINE = 64 * 1024 * 1024  # characters; a longer line is broken
_UP = re.compile(r"\x1b\[\d*A")
_MOVE = re.compile(r"\x1b\[[0-9;?]*[A-DG-KST@LMPXfhlsu]")  # moves the cursor or clears; colours are text


class Printer:
    """Prints the output of all nodes of one pool.

    Args:
        quiet: print nothing.
        widest: the longest name of a node or rank, so that all text begins in the same column.
    """

    def __init__(self, *, quiet: bool, widest: str = "") -> None:
        self._quiet, self._width = quiet, len(widest) + 3
        self._waiting: deque[Output] = deque()
        self._size = self._dropped = 0  # characters that wait, and lines that were dropped
        self._changed = threading.Condition()
        self._unfinished: dict[_Source, _Line] = {}
        self._came = self._printed = 0  # counts of outputs
        self._stopped = self._is_hurried = False
        self._thread: threading.Thread | None = None

    @property
    def is_quiet(self) -> bool:
        """True if nothing is printed."""
        return self._quiet

    def put(self, place: str, text: str, *, error: bool, call: int | None = None, cell: Cell | None = None) -> None:
        """Queue text from a node or rank; `place` is its label, `error` is true for its standard error.

        Lines of different calls are not mixed if their `call` is known. The text is printed to `cell`, if given.
        """
        if not self._quiet and text:
            self._add(Output(place, error, call or _NO_CALL, text, cell))

    def end(self, place: str, *, error: bool, call: int) -> None:
        """Mark the end of a call's output to this stream, after an unfinished line or progress."""
        if not self._quiet:
            self._add(Output(place, error, call, ""))

    def drain(self) -> None:
        """Wait until the output received so far is printed, so that a call's output precedes its result."""
        if self._came != self._printed:
            with self._changed:
                came = self._came
                self._changed.wait_for(lambda: self._printed >= came, _DRAIN_S)

    def hurry(self) -> None:
        """Stop `stop` from waiting any longer for a blocked reader."""
        with self._changed:
            self._is_hurried = True
            self._changed.notify_all()

    def stop(self) -> None:
        """Print the remaining output, including unfinished lines, and end the thread.

        Wait until a file or a pipe has received everything, or until `hurry`.
        """
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            thread = self._thread
            if thread is None:
                return
            if not _may_skip():
                # a signal's handler may call hurry
                while not self._changed.wait_for(lambda: self._is_hurried or self._came == self._printed, LISTEN_S):
                    pass
        thread.join(_DRAIN_S)

    def _add(self, item: Output) -> None:
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="skyward-output", daemon=True)
                self._thread.start()
            self._waiting.append(item)
            self._came += 1
            self._size += len(item.text)
            while self._size > MAX_WAITING and len(self._waiting) > 1 and _may_skip():
                lost = self._waiting.popleft()
                self._size -= len(lost.text)
                self._dropped += lost.text.count("\n") or 1
                self._printed += 1
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                limit_s = _SETTLE_S if self._unfinished else None
                self._changed.wait_for(lambda: self._waiting or self._stopped, limit_s)
                if self._stopped and not self._waiting:
                    break
                items, self._waiting, self._size = self._waiting, deque(), 0
                dropped, self._dropped = self._dropped, 0
            if dropped:
                _write(f"[skyward] {dropped} lines were dropped: they came faster than they could be printed\n", True)
            self._print(items)
            with self._changed:
                self._printed += len(items)
                self._changed.notify_all()
        for source in list(self._unfinished):
            self._finish(source)

    # printing: in the thread ---------------------------------------------------------------------------------------

    def _print(self, items: Sequence[Output]) -> None:
        texts: list[str] = []
        error, cell = False, None
        for item in items:
            source = item.place, item.error, item.call
            line = self._unfinished.get(source)
            its_cell = item.cell or (line.cell if line is not None else None)
            if item.error != error or its_cell is not cell:
                _flush(texts, error, cell)
                error, cell = item.error, its_cell
            texts.append(self._labelled(item.place, self._lines(source, item, line)))
        _flush(texts, error, cell)
        now = time.monotonic()
        for source, line in self._unfinished.items():
            if text := line.state(now):
                _write(self._labelled(source[0], text), source[1], line.cell)

    def _lines(self, source: _Source, item: Output, line: _Line | None) -> str:
        """Return the lines that this output completes."""
        if not item.text:
            self._unfinished.pop(source, None)
            return line.finish() if line is not None else ""
        if line is None:
            if item.text.endswith("\n") and "\r" not in item.text and "\x1b" not in item.text:
                return item.text
            line = self._unfinished[source] = _Line(item.cell)
        lines = line.feed(item.text)
        if not line.parts:
            del self._unfinished[source]
        return lines

    def _labelled(self, place: str, lines: str) -> str:
        if not lines:
            return ""
        label = f"[{place}] ".ljust(self._width)
        return label + lines[:-1].replace("\n", f"\n{label}") + "\n"

    def _finish(self, source: _Source) -> None:
        line = self._unfinished.pop(source)
        _write(self._labelled(source[0], line.finish()), source[1], line.cell)


@dataclass(slots=True)
class _Line:
    """The unfinished line of a source, and when its state was last printed."""

    cell: Cell | None
    parts: list[str] = field(default_factory=list)
    length: int = 0
    told_at: float = field(default_factory=time.monotonic)
    told: str = ""

    def feed(self, text: str) -> str:
        """Add text and return the lines that it finishes."""
        whole, newline, rest = text.replace("\r\n", "\n").rpartition("\n")
        lines = ""
        if newline:
            found = ("".join(self.parts) + whole).split("\n")
            shown = [(line, _last(line)) for line in found if not _UP.search(line)]
            lines = "".join(f"{last}\n" for line, last in shown if last or not line)
            redrawn = _UP.search(found[-1])  # such as one of several bars, of which the program draws another now
            self.parts = found[-1:] if redrawn else []
        last_state = rest.rpartition("\r")[2]
        if last_state and len(last_state) < len(rest):
            self.parts, rest = [], f"\r{last_state}"
        if rest:
            self.parts.append(rest)
        self.length = sum(map(len, self.parts)) if newline or last_state != rest else self.length + len(rest)
        return lines + self.finish() if self.length > LONGEST_LINE else lines

    def state(self, now: float) -> str:
        """Return the present state of a progress bar, as a line, if it is time to print one and it has changed."""
        if now - self.told_at < EVERY_S or not any("\r" in part for part in self.parts):
            return ""
        self.told_at = now
        state = _last("".join(self.parts))
        if not state.strip() or state == self.told:
            return ""
        self.told = state
        return f"{state}\n"

    def finish(self) -> str:
        """Remove the unfinished line and return it."""
        text, self.parts, self.length = _last("".join(self.parts)), [], 0
        return f"{text}\n" if text.strip() else ""


def _last(line: str) -> str:
    """Return what is left on a terminal of a line that was drawn several times."""
    drawn = _MOVE.sub("", line)
    return drawn.rstrip("\r").rpartition("\r")[2].rstrip() if "\r" in drawn else drawn


def _flush(texts: list[str], error: bool, cell: Cell | None) -> None:
    if text := "".join(texts):
        _write(text, error, cell)
    texts.clear()


def _may_skip() -> bool:
    """Return whether both streams are terminals, on which output may be dropped."""
    return is_terminal(sys.stdout) and is_terminal(sys.stderr)


def _write(text: str, error: bool, cell: Cell | None = None) -> None:
    stream = sys.stderr if error else sys.stdout
    if stream is None or not text:
        return
    try:
        (cell or screen).write(stream, harmless(text) if is_terminal(stream) else text)
    except (OSError, ValueError):
        pass  # the program's own output is closed


class Output(NamedTuple):
    """Output of a node or rank, and the notebook cell it belongs to (or None). Empty text marks the end of a call."""

    place: str
    error: bool
    call: int
    text: str
    cell: Cell | None = None
