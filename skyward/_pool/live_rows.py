"""Rows at the bottom of the terminal that change, and lines that are printed above them.

There is one terminal, so there is one `screen` for all pools of the process. While there are rows, what the program
itself prints to the terminal goes above them as well.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TextIO, cast

from skyward.system import threading

_REDRAW_S = 0.1
_STUCK_S = 0.5
_FREE_LINES = 3  # of the terminal's height that rows leave to what is printed
# what moves the cursor, clears, or is no character at all; colours stay
_CONTROL = re.compile(
    r"\x1b\[(?![0-9;]*m)[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"
    r"|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f]"
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m|\x1b")
_UP = "\x1b[1A\x1b[2K"


def is_terminal(stream: Any) -> bool:
    """Whether a stream of the program is a terminal; one that is closed is none."""
    try:
        return stream is not None and bool(stream.isatty())
    except ValueError:
        return False


def harmless(text: str) -> str:
    """Text as a terminal may show it: it can be coloured, and cannot move the cursor."""
    return _CONTROL.sub("", text)


def plain(row: str) -> str:
    """A row without colours, and what else no character is."""
    return _COLOUR.sub("", harmless(row)).replace("\t", " ").rstrip()


class LiveRows:
    """Draws rows to a terminal, below what is printed. All of it under one lock, so that nothing comes in between."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._rows: dict[Hashable, Sequence[str]] = {}
        self._drawn: list[int] = []  # widths of the rows that are on the terminal now
        self._is_dirty = self._in_line = False
        self._holds = 0  # how many have the terminal for themselves
        self._stream: TextIO | None = None
        self._replaced: list[tuple[str, TextIO, TextIO]] = []
        self._thread: threading.Thread | None = None

    def set(self, key: Hashable, texts: Sequence[str]) -> None:
        """Show these rows under a key until they are replaced; none remove them."""
        if texts:
            self._rows[key] = texts
        elif self._rows.pop(key, None) is None:
            return
        self._is_dirty = True
        if bool(self._rows) == (self._stream is not None):
            return
        if self._lock.acquire(timeout=_STUCK_S):  # a terminal that somebody has stopped does not take anything
            try:
                self._start() if self._rows else self._stop()
            finally:
                self._lock.release()

    def write(self, stream: TextIO | None, text: str) -> None:
        """Print text above the rows, or where there are none, as it is; nowhere if the program was started without it.

        Raises:
            OSError, ValueError: the stream is closed.
        """
        if stream is None:
            return
        real = cast(TextIO, getattr(stream, "skyward_original", stream))
        with self._lock:
            if self._stream is None or not is_terminal(real):
                put(real, text)
                return
            self._erase()
            put(real, text)
            self._in_line = not text.endswith("\n")
            self._draw()

    def hold(self) -> None:
        """Show no rows until `release`: somebody types at the terminal."""
        with self._lock:
            self._erase()
            self._holds += 1

    def release(self) -> None:
        """Show the rows again."""
        with self._lock:
            self._holds -= 1
            self._is_dirty = True

    def _start(self) -> None:
        if self._stream is not None:
            return
        self._stream = next((s for s in (sys.stderr, sys.stdout) if is_terminal(s)), None)
        if self._stream is None:
            return
        for name in ("stdout", "stderr"):
            original = getattr(sys, name)
            if is_terminal(original):
                above = cast(TextIO, _Above(self, original))
                self._replaced.append((name, original, above))
                setattr(sys, name, above)
        self._thread = threading.Thread(target=self._redraw, name="skyward-rows", daemon=True)
        self._thread.start()

    def _stop(self) -> None:
        self._erase()
        for name, original, above in self._replaced:
            if getattr(sys, name) is above:
                setattr(sys, name, original)
        self._replaced.clear()
        self._stream, self._in_line = None, False
        self._changed.notify_all()

    def _redraw(self) -> None:
        with self._lock:
            me = threading.current_thread()
            while self._stream is not None and self._thread is me:
                if not self._rows:
                    self._stop()
                elif self._is_dirty:
                    self._erase()
                    self._draw()
                self._changed.wait(_REDRAW_S)

    def _erase(self) -> None:
        """Clear the rows that are drawn, of which a narrower terminal has made more lines."""
        if self._drawn and self._stream is not None:
            columns = _size(self._stream).columns
            lines = sum(max(1, -(-width // columns)) for width in self._drawn)
            self._drawn = []
            _quietly(self._stream, "\r\x1b[2K" + _UP * (lines - 1))

    def _draw(self) -> None:
        if self._stream is None or self._in_line or self._holds:
            return
        from rich.cells import cell_len, set_cell_size

        self._is_dirty = False
        columns, lines = _size(self._stream)
        shown = []
        for row in _that_fit([list(texts) for texts in in_order(self._rows)], max(1, lines - _FREE_LINES)):
            text = plain(row)
            shown.append(text if cell_len(text) < columns else set_cell_size(text, max(1, columns - 2)).rstrip() + "…")
        self._drawn = [cell_len(row) for row in shown]
        _quietly(self._stream, "\n".join(shown))


class _Above:
    """Stands for a standard stream of the program: what is written goes above the rows."""

    def __init__(self, rows: LiveRows, original: TextIO) -> None:
        self._rows, self.skyward_original = rows, original

    def write(self, text: str) -> int:
        self._rows.write(self.skyward_original, text)
        return len(text)

    def writelines(self, lines: Sequence[str]) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.skyward_original, name)


def in_order(rows: Mapping[Hashable, Sequence[str]]) -> list[Sequence[str]]:
    """Rows by their keys: those whose keys are tuples come first, in the order of these."""
    order = sorted(rows, key=lambda key: (0, *key) if isinstance(key, tuple) else (1,))
    return [rows[key] for key in order]


def _that_fit(groups: list[list[str]], most: int) -> list[str]:
    """The rows to show: all, else the last of each group, else as many of these as there is room for."""
    rows = [row for group in groups for row in group]
    if len(rows) > most:
        rows = [group[-1] for group in groups if group]
    if len(rows) > most:
        rows = [*rows[: most - 1], f"... and {len(rows) - most + 1} more"]
    return rows


def _size(stream: TextIO) -> os.terminal_size:
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):  # some terminals do not know theirs
        size = os.terminal_size((80, 24))
    return os.terminal_size((size.columns or 80, size.lines or 24))


def put(stream: TextIO, text: str) -> None:
    """Write text and flush; what the stream's encoding lacks is escaped."""
    try:
        stream.write(text)
    except UnicodeEncodeError:
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


def _quietly(stream: TextIO, text: str) -> None:
    try:
        put(stream, text)
    except (OSError, ValueError):
        pass  # the terminal is closed


screen = LiveRows()
