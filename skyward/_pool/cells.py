"""The cells of a notebook or an IPython prompt: how many have been begun, which one runs, and what is shown in it."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Hashable, Sequence
from contextvars import Context, ContextVar, copy_context
from html import escape
from secrets import token_hex
from typing import Any, TextIO

from skyward._pool.live_rows import in_order, is_terminal, plain, put, screen
from skyward.system import threading, time

_log = logging.getLogger(__name__)
_FILE = re.compile(r'File "([^"\n]+)", line')
_EVERY_S = 0.1  # between two states of the rows of a cell
count = 0  # cells begun since the first pool was opened; 0 outside IPython
_shell: Any = None


class Cell:
    """A cell of a notebook: takes lines, and rows that change, also when other cells have been run since.

    A kernel finds the cell that an output belongs to in the context of the code that prints, which the threads of a
    pool do not have. Rows are one display of the cell that is updated where it stands; front ends need no extension
    for that.
    """

    def __init__(self, publish: Any) -> None:
        self._publish, self._context = publish, copy_context()
        self._lock = threading.RLock()
        self._rows: dict[Hashable, Sequence[str]] = {}
        self._display = ""  # its identifier, once there is one
        self._shown: list[str] = []
        self._is_dirty = False
        self._thread: threading.Thread | None = None

    def write(self, stream: TextIO, text: str) -> None:
        """Print text as the cell's own output."""
        self._entered().run(put, stream, text)

    def set(self, key: Hashable, texts: Sequence[str]) -> None:
        """Show these rows under a key until they are replaced; none remove them."""
        with self._lock:
            if texts:
                if self._rows.get(key) == texts:
                    return
                self._rows[key] = texts
            elif self._rows.pop(key, None) is None:
                return
            self._is_dirty = True
            if not self._rows:
                self._show()  # at once: the cell may end now
            elif self._thread is None:
                self._thread = threading.Thread(target=self._run, name="skyward-cell", daemon=True)
                self._thread.start()

    def _entered(self) -> Context:
        return self._context.copy()  # a context runs in one thread at a time

    def _run(self) -> None:
        while True:
            time.sleep(_EVERY_S)  # first: rows of what is done in less are not shown
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
            return  # they may also be gone before they were shown
        self._shown = rows
        is_known, self._display = bool(self._display), self._display or f"skyward-{token_hex(8)}"
        html = f"<pre>{escape(chr(10).join(rows))}</pre>" if rows else ""
        data = {"text/plain": "\n".join(rows), "text/html": html}
        try:
            self._entered().run(self._publish, data, transient={"display_id": self._display}, update=is_known)
        except Exception:  # of the kernel, which may be ending; its pools are closed all the same
            _log.debug("a cell could not show %s", rows, exc_info=True)


_current: ContextVar[Cell | None] = ContextVar("skyward_cell", default=None)
_latest: Cell | None = None


def here() -> Cell | None:
    """The cell that the calling code belongs to; for a thread of the program, the one begun last. None elsewhere."""
    return _current.get() or _latest


def rows_of(stream: TextIO | None) -> Any:
    """Where rows that change are shown: the cell of a notebook, or the terminal that the stream is; None elsewhere."""
    return here() or (screen if is_terminal(stream) else None)


def name_cells(trace: str) -> str:
    """The text of a traceback, with the numbers of cells in the place of the files that a kernel gives their code."""
    names = getattr(getattr(_shell, "compile", None), "format_code_name", None)  # it is new in IPython 8

    def named(found: re.Match[str]) -> str:
        name = names(found[1]) if names is not None else None
        return f"{' '.join(name)}, line" if name else found[0]

    return _FILE.sub(named, trace)


def follow() -> None:
    """Count cells from now on, if this program runs in IPython. Only the first call has an effect."""
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
    global count
    count += 1
    _note_cell()
    _let_autoreload_update()


def _note_cell() -> None:
    global _latest
    if hasattr(_shell, "kernel"):  # a prompt in a terminal has no cells to print to
        _latest = Cell(_shell.display_pub.publish)
        _current.set(_latest)


def _let_autoreload_update() -> None:
    """Tell %autoreload how a compute function that a cell has imported becomes that of the reloaded module.

    It does so by itself for functions and classes; its table of rules is at the top of its module for others to extend.
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
