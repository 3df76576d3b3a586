"""Display of pools' output and live rows: on the terminal, or in notebook cells.

There is one terminal, so all pools of the process share one `screen`. While it has rows at its bottom, the program's
own output to the terminal is printed above them as well. In a notebook, output goes to the cell that caused it.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Hashable, Mapping, Sequence
from contextvars import Context, ContextVar, copy_context
from html import escape
from secrets import token_hex
from typing import Any, TextIO, cast

from skyward.system import threading, time

_REDRAW_S = 0.1
_STUCK_S = 0.5
_FREE_LINES = 3  # lines of the terminal that rows leave free for printed text
# sequences that move the cursor or clear, and control characters; colours are kept
_CONTROL = re.compile(
    r"\x1b\[(?![0-9;]*m)[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"
    r"|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f]"
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m|\x1b")
_UP = "\x1b[1A\x1b[2K"
_CELL_S = 0.1  # between updates of a cell's rows
_FILE = re.compile(r'File "([^"\n]+)", line')
_log = logging.getLogger(__name__)


def is_terminal(stream: Any) -> bool:
    """Return whether a stream of the program is a terminal; False if it is closed."""
    try:
        return stream is not None and bool(stream.isatty())
    except ValueError:
        return False


def harmless(text: str) -> str:
    """Remove from text what moves the cursor or clears a terminal; colours are kept."""
    return _CONTROL.sub("", text)


def plain(row: str) -> str:
    """Return a row without colours and control characters."""
    return _COLOUR.sub("", harmless(row)).replace("\t", " ").rstrip()


class LiveRows:
    """Draws rows on a terminal, below printed text. One lock covers both, so that they do not interleave."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._rows: dict[Hashable, Sequence[str]] = {}
        self._drawn: list[int] = []  # widths of the rows on the terminal
        self._is_dirty = self._in_line = False
        self._stream: TextIO | None = None
        self._replaced: list[tuple[str, TextIO, TextIO]] = []
        self._thread: threading.Thread | None = None

    def set(self, key: Hashable, texts: Sequence[str]) -> None:
        """Show these rows under a key until they are replaced; an empty sequence removes them."""
        if texts:
            self._rows[key] = texts
        elif self._rows.pop(key, None) is None:
            return
        self._is_dirty = True
        if bool(self._rows) == (self._stream is not None):
            return
        if self._lock.acquire(timeout=_STUCK_S):  # a stopped terminal (Ctrl-S) blocks writers
            try:
                self._start() if self._rows else self._stop()
            finally:
                self._lock.release()

    def write(self, stream: TextIO | None, text: str) -> None:
        """Print text above the rows, or directly if there are none; do nothing if `stream` is None.

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
        """Clear the rows that are drawn; on a terminal that was made narrower, a row may take several lines."""
        if self._drawn and self._stream is not None:
            columns = _size(self._stream).columns
            lines = sum(max(1, -(-width // columns)) for width in self._drawn)
            self._drawn = []
            _quietly(self._stream, "\r\x1b[2K" + _UP * (lines - 1))

    def _draw(self) -> None:
        if self._stream is None or self._in_line:
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
    """Replacement for a standard stream of the program that prints above the rows."""

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
    """Return rows ordered by key: tuples first, sorted, then other keys."""
    order = sorted(rows, key=lambda key: (0, *key) if isinstance(key, tuple) else (1,))
    return [rows[key] for key in order]


def _that_fit(groups: list[list[str]], most: int) -> list[str]:
    """Return the rows to show: all, or the last of each group, or as many of those as fit."""
    rows = [row for group in groups for row in group]
    if len(rows) > most:
        rows = [group[-1] for group in groups if group]
    if len(rows) > most:
        rows = [*rows[: most - 1], f"... and {len(rows) - most + 1} more"]
    return rows


def _size(stream: TextIO) -> os.terminal_size:
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):  # not every terminal reports its size
        size = os.terminal_size((80, 24))
    return os.terminal_size((size.columns or 80, size.lines or 24))


def put(stream: TextIO, text: str) -> None:
    """Write text and flush; escape characters that the stream's encoding lacks."""
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


# cells of a notebook ---------------------------------------------------------------------------------------------


class Cell:
    """A notebook cell: prints lines and live rows there, even if other cells have been run since.

    A kernel identifies the cell of an output by the context of the printing code, which the threads of a pool lack.
    Rows are one display of the cell that is updated in place, which requires no front-end extension.
    """

    def __init__(self, publish: Any) -> None:
        self._publish, self._context = publish, copy_context()
        self._lock = threading.RLock()
        self._rows: dict[Hashable, Sequence[str]] = {}
        self._display = ""  # the identifier of the rows' display; "" before the first
        self._shown: list[str] = []
        self._is_dirty = False
        self._thread: threading.Thread | None = None

    def write(self, stream: TextIO, text: str) -> None:
        """Print text as output of the cell."""
        self._entered().run(put, stream, text)

    def set(self, key: Hashable, texts: Sequence[str]) -> None:
        """Show these rows under a key until they are replaced; an empty sequence removes them."""
        with self._lock:
            if texts:
                if self._rows.get(key) == texts:
                    return
                self._rows[key] = texts
            elif self._rows.pop(key, None) is None:
                return
            self._is_dirty = True
            if not self._rows:
                self._show()  # immediately, since the cell may be about to end
            elif self._thread is None:
                self._thread = threading.Thread(target=self._run, name="skyward-cell", daemon=True)
                self._thread.start()

    def _entered(self) -> Context:
        return self._context.copy()  # a context can be entered by only one thread at a time

    def _run(self) -> None:
        while True:
            time.sleep(_CELL_S)  # sleeps first, so that short operations show no rows
            with self._lock:
                if not self._rows:
                    self._thread = None
                    return
                if self._is_dirty:
                    self._show()

    def _show(self) -> None:
        self._is_dirty = False
        rows = [plain(row) for texts in in_order(self._rows) for row in texts]
        if rows == self._shown:
            return  # also if they were removed before they were shown
        self._shown = rows
        is_known, self._display = bool(self._display), self._display or f"skyward-{token_hex(8)}"
        html = f"<pre>{escape(chr(10).join(rows))}</pre>" if rows else ""
        data = {"text/plain": "\n".join(rows), "text/html": html}
        try:
            self._entered().run(self._publish, data, transient={"display_id": self._display}, update=is_known)
        except Exception:  # the kernel may be shutting down; its pools must still be closed
            _log.debug("a cell could not show %s", rows, exc_info=True)


_current: ContextVar[Cell | None] = ContextVar("skyward_cell", default=None)
_latest: Cell | None = None
_shell: Any = None
cells_begun = 0  # since the first pool was opened; 0 outside IPython


def this_cell() -> Cell | None:
    """Return the calling code's cell, or in a thread of the program the latest cell; None outside notebooks."""
    return _current.get() or _latest


def rows_of(stream: TextIO | None) -> Any:
    """Return the display for live rows: the notebook cell, `screen` if the stream is a terminal, otherwise None."""
    return this_cell() or (screen if is_terminal(stream) else None)


def name_cells(trace: str) -> str:
    """Replace the file names that a kernel assigns to cells' code in a traceback by the cells' numbers."""
    names = getattr(getattr(_shell, "compile", None), "format_code_name", None)  # since IPython 8

    def named(found: re.Match[str]) -> str:
        name = names(found[1]) if names is not None else None
        return f"{' '.join(name)}, line" if name else found[0]

    return _FILE.sub(named, trace)


def follow_cells() -> None:
    """Start counting cells if this program runs in IPython. Only the first such call has an effect."""
    global _shell
    ipython = sys.modules.get("IPython")
    if _shell is not None or ipython is None:
        return
    _shell = ipython.get_ipython()
    if _shell is not None:
        _shell.events.register("pre_run_cell", _begin)
        _note_cell()
        _let_autoreload_update()


def _begin(_info: object) -> None:
    global cells_begun
    cells_begun += 1
    _note_cell()
    _let_autoreload_update()


def _note_cell() -> None:
    global _latest
    if hasattr(_shell, "kernel"):  # IPython in a terminal has no cells to print to
        _latest = Cell(_shell.display_pub.publish)
        _current.set(_latest)


def _let_autoreload_update() -> None:
    """Register a rule with which %autoreload updates imported compute functions from the reloaded module.

    %autoreload has built-in rules for functions and classes; its rule table is public for extension.
    """
    rules = getattr(sys.modules.get("IPython.extensions.autoreload"), "UPDATE_RULES", None)
    if rules is not None and _RULE not in rules:
        rules.append(_RULE)


def _are_compute_functions(old: object, new: object) -> bool:
    return type(old) is type(new) and type(old).__module__ == "skyward._compute" and hasattr(old, "fn")


def _update(old: Any, new: Any) -> None:
    vars(old).clear()
    vars(old).update(vars(new))


_RULE = (_are_compute_functions, _update)
