r"""Prints the output of nodes: whole lines, each with the node or rank it came from.

A dedicated thread writes, so that a blocked reader never delays results; what waits for it is kept in memory. Of a
line that is drawn again and again (`\r`, a progress bar), the last state is printed, and every few seconds the present
one. In a notebook, all output of a call goes to the cell that made it.
"""

from __future__ import annotations

import itertools
import re
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from skyward._pool.display import Cell, harmless, is_terminal, screen
from skyward._pool.signals import LISTEN_S
from skyward.system import Empty, SimpleQueue, threading, time

EVERY_S = 5.0  # between lines with the state of a progress bar
_DRAIN_S = 2.0  # limit for a result's wait for earlier output
_SETTLE_S = 1.0  # between checks for unfinished lines
_NO_CALL = 0
_Source = tuple[str, bool, int]
_LONGEST_LINE = 1024 * 1024  # characters; a longer line is broken
_UP = re.compile(r"\x1b\[\d*A")  # drawn by several bars, each in a line of its own
_MOVE = re.compile(r"\x1b\[[0-9;?]*[A-DG-KST@LMPXfhlsu]")  # moves the cursor or clears; colours are text


class Printer:
    """Prints the output of all nodes of one pool.

    Args:
        quiet: print nothing.
        widest: the longest name of a node or rank, so that all text begins in the same column.
    """

    def __init__(self, *, quiet: bool, widest: str = "") -> None:
        self._quiet, self._width = quiet, len(widest) + 3
        self._waiting: SimpleQueue[Output | SimpleQueue[None]] = SimpleQueue()  # a queue is told when it is its turn
        self._unfinished: dict[_Source, _Line] = {}
        self._numbers = itertools.count(1)
        self._came = self._printed = 0  # counts of outputs
        self._ended: SimpleQueue[None] = SimpleQueue()
        self._stopped = False
        self._starting = threading.RLock()
        self._thread: threading.Thread | None = None

    @property
    def is_quiet(self) -> bool:
        """True if nothing is printed."""
        return self._quiet

    def put(self, place: str, text: str, *, error: bool, call: int | None = None, cell: Cell | None = None) -> None:
        """Queue text from a node or rank; `place` is its label, `error` is true for its standard error.

        Lines of different calls are not mixed if their `call` is known. The text is printed to `cell`, if given.
        """
        if text:
            self._add(Output(place, error, call or _NO_CALL, text, cell))

    def end(self, place: str, *, error: bool, call: int) -> None:
        """Mark the end of a call's output to this stream, after an unfinished line or progress."""
        self._add(Output(place, error, call, ""))

    def drain(self) -> None:
        """Wait until the output received so far is printed, so that a call's output precedes its result."""
        if self._came != self._printed and threading.current_thread() is not self._thread:
            printed: SimpleQueue[None] = SimpleQueue()
            self._waiting.put(printed)
            with suppress(Empty):
                printed.get(timeout=_DRAIN_S)

    def hurry(self) -> None:
        """Stop `stop` from waiting any longer for a blocked reader."""
        self._ended.put(None)

    def stop(self) -> None:
        """Print the remaining output, including unfinished lines, and end the thread. Wait for that until `hurry`."""
        self._stopped = True
        self._waiting.put(self._ended)
        while self._thread is not None:
            with suppress(Empty):  # a signal's handler may call hurry
                self._ended.get(timeout=LISTEN_S)
                return

    def _add(self, item: Output) -> None:
        if self._quiet:
            return
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="skyward-output", daemon=True)
                    self._thread.start()
        self._came = next(self._numbers)
        self._waiting.put(item)

    def _run(self) -> None:
        while not self._stopped or not self._waiting.empty():
            items = list[Output]()
            told: SimpleQueue[None] | None = None
            with suppress(Empty):
                item = self._waiting.get(timeout=_SETTLE_S if self._unfinished else None)
                while isinstance(item, Output):
                    items.append(item)
                    item = self._waiting.get_nowait()
                told = item
            self._print(items)
            self._printed += len(items)
            if told is not None and told is not self._ended:
                told.put(None)
        for (place, error, _), line in self._unfinished.items():
            _write(self._labelled(place, line.finish()), error, line.cell)
        self._ended.put(None)

    # printing: in the thread ---------------------------------------------------------------------------------------

    def _print(self, items: list[Output]) -> None:
        text, error, cell = "", False, None
        for item in items:
            source = item.place, item.error, item.call
            line = self._unfinished.setdefault(source, _Line(item.cell))
            if item.error != error or line.cell is not cell:
                _write(text, error, cell)
                text, error, cell = "", item.error, line.cell
            text += self._labelled(item.place, line.feed(item.text) if item.text else line.finish())
            if not line.text:
                del self._unfinished[source]
        _write(text, error, cell)
        now = time.monotonic()
        for source, line in self._unfinished.items():
            _write(self._labelled(source[0], line.state(now)), source[1], line.cell)

    def _labelled(self, place: str, lines: str) -> str:
        if not lines:
            return ""
        label = f"[{place}] ".ljust(self._width)
        return label + lines[:-1].replace("\n", f"\n{label}") + "\n"


@dataclass(slots=True)
class _Line:
    """The unfinished line of a source, and when its state was last printed."""

    cell: Cell | None
    text: str = ""
    told_at: float = field(default_factory=time.monotonic)
    told: str = ""

    def feed(self, text: str) -> str:
        """Add text and return the lines that it finishes."""
        whole, newline, rest = (self.text + text).replace("\r\n", "\n").rpartition("\n")
        lines = ""
        if newline:
            found = whole.split("\n")
            shown = [(each, _last(each)) for each in found if not _UP.search(each)]
            lines = "".join(f"{last}\n" for each, last in shown if last or not each)
            if _UP.search(found[-1]):  # one of several bars, of which the program draws another now
                rest = f"{found[-1]}{rest}"
        last_state = rest.rpartition("\r")[2]
        self.text = f"\r{last_state}" if last_state and last_state != rest else rest
        return lines + self.finish() if len(self.text) > _LONGEST_LINE else lines

    def state(self, now: float) -> str:
        """Return the present state of a progress bar, as a line, if it is time to print one and it has changed."""
        if now - self.told_at < EVERY_S or "\r" not in self.text:
            return ""
        self.told_at = now
        state = _last(self.text)
        if not state.strip() or state == self.told:
            return ""
        self.told = state
        return f"{state}\n"

    def finish(self) -> str:
        """Remove the unfinished line and return it."""
        text, self.text = _last(self.text), ""
        return f"{text}\n" if text.strip() else ""


def _last(line: str) -> str:
    """Return what is left on a terminal of a line that was drawn several times."""
    drawn = _MOVE.sub("", line)
    return drawn.rstrip("\r").rpartition("\r")[2].rstrip() if "\r" in drawn else drawn


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
