"""Display of pools' output and live rows: on the terminal, or in notebook cells.

There is one terminal, so all pools of the process share one `screen`. While it has rows at its bottom, the program's
own output to the terminal is printed above them as well. In a notebook, output goes to the cell that caused it.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Hashable
from contextvars import Context, ContextVar, copy_context
from html import escape
from secrets import token_hex
from typing import TYPE_CHECKING, Any, TextIO

from skyward.system import threading, time

if TYPE_CHECKING:
    from rich.live import Live

_STUCK_S = 0.5
# sequences that move the cursor or clear, and control characters; colours are kept
_CONTROL = re.compile(
    r"\x1b\[(?![0-9;]*m)[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"
    r"|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f]"
)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m|\x1b")
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
    """Rows on a terminal, below printed text. One lock covers both, so that they do not interleave."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._rows: dict[Hashable, str] = {}
        self._live: Live | None = None

    def set(self, key: Hashable, row: str) -> None:
        """Show this row under a key until it is replaced; "" removes it."""
        if row:
            self._rows[key] = row
        elif self._rows.pop(key, None) is None:
            return
        if self._lock.acquire(timeout=_STUCK_S):  # a stopped terminal (Ctrl-S) blocks writers
            try:
                self._draw()
            except (OSError, ValueError):
                pass  # the terminal is closed
            finally:
                self._lock.release()

    def write(self, stream: TextIO | None, text: str) -> None:
        """Print text above the rows, or directly if there are none; do nothing if `stream` is None.

        Raises:
            OSError, ValueError: the stream is closed.
        """
        if stream is None:
            return
        with self._lock:
            self._erase()
            put(getattr(stream, "rich_proxied_file", stream), text)
            self._draw()

    def _erase(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def _draw(self) -> None:
        if not self._rows:
            self._erase()
            return
        from rich.text import Text

        rows = "\n".join(map(plain, self._rows.values()))
        if self._live is None:
            self._live = _new_live()
            self._live.start()
        self._live.update(Text(rows, no_wrap=True, overflow="ellipsis"), refresh=True)


def _new_live() -> Live:
    """Return a display on standard error, above which the program's own output to the terminal is printed, too."""
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True, markup=False, highlight=False, emoji=False, soft_wrap=True)
    return Live(console=console, auto_refresh=False, transient=True, redirect_stdout=is_terminal(sys.stdout))


def put(stream: TextIO, text: str) -> None:
    """Write text and flush; escape characters that the stream's encoding lacks."""
    try:
        stream.write(text)
    except UnicodeEncodeError:
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


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
        self._rows: dict[Hashable, str] = {}
        self._display = ""  # the identifier of the rows' display; "" before the first
        self._shown: list[str] = []
        self._thread: threading.Thread | None = None

    def write(self, stream: TextIO, text: str) -> None:
        """Print text as output of the cell."""
        self._entered().run(put, stream, text)

    def set(self, key: Hashable, row: str) -> None:
        """Show this row under a key until it is replaced; "" removes it."""
        with self._lock:
            if row:
                self._rows[key] = row
            elif self._rows.pop(key, None) is None:
                return
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
                self._show()

    def _show(self) -> None:
        rows = [*map(plain, self._rows.values())]
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
