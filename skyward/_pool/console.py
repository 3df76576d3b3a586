"""Prints the output of nodes: whole lines, each with the node or rank it came from.

A dedicated thread writes, so that a blocked reader never delays results. A file or a pipe receives everything; for a
terminal that cannot keep up, the oldest output is dropped and the number of lines is reported. Progress bars of nodes
are rows at the bottom of a terminal or in a notebook cell, otherwise a line every few seconds. In a notebook, all
output of a call goes to the cell that made it.
"""

from __future__ import annotations

import struct
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import IO, NamedTuple

from skyward._pool.display import Cell, harmless, is_terminal, screen
from skyward._pool.line_reader import LineReader
from skyward.system import threading, time

EVERY_S = 5.0  # between progress lines where there is no terminal
_DRAIN_S = 2.0  # limit for a result's wait for earlier output, and for the wait for a terminal at the pool's end
_SETTLE_S = 0.1  # between checks for unfinished lines
_BEGUN_S = 1.0  # after which an unfinished line of native code, whose output belongs to no call, is printed
_SIGNALS_S = 0.2  # interval of checks for signals in an unlimited wait
_NO_CALL = 0
_Source = tuple[str, bool, int]
MAX_WAITING = 4 * 1024 * 1024  # characters kept in memory
_READ_AT_ONCE = 1024 * 1024
_HEAD = struct.Struct("<H?QII")  # length of the place, is standard error, call, cell, length of the text


class Printer:
    """Prints the output of all nodes of one pool.

    Args:
        quiet: print nothing.
        widest: the longest name of a node or rank, so that all text begins in the same column.
    """

    def __init__(self, *, quiet: bool, widest: str = "") -> None:
        self._quiet, self._width = quiet, len(widest) + 3
        self._waiting = Backlog(_may_skip)
        self._changed = threading.Condition()
        self._readers: dict[_Source, LineReader] = {}
        self._told: dict[_Source, tuple[float, str]] = {}  # time and text of the last progress line
        self._cells: dict[_Source, Cell] = {}  # by the source of the reader
        self._shown: set[tuple[Cell | None, str]] = set()  # places with rows in a cell or on the terminal
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
                # Python handles a signal that arrives just before a wait for a lock only after that wait, and its
                # handler may call hurry
                while not self._changed.wait_for(lambda: self._is_hurried or self._came == self._printed, _SIGNALS_S):
                    pass
        thread.join(_DRAIN_S)
        with self._changed:
            if thread.is_alive():
                self._waiting.close()

    def _add(self, item: Output) -> None:
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="skyward-output", daemon=True)
                self._thread.start()
            self._waiting.append(item)
            self._came += 1
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                limit_s = _SETTLE_S if self._readers and not self._waiting else None
                self._changed.wait_for(lambda: self._waiting or self._stopped, limit_s)
                if self._stopped and not self._waiting:
                    break
                items = self._waiting.take()
                dropped, self._waiting.dropped = self._waiting.dropped, 0
                done, self._waiting.dropped_items = len(items) + self._waiting.dropped_items, 0
            if dropped:
                _write(f"[skyward] {dropped} lines were dropped: they came faster than they could be printed\n", True)
            self._print(items)
            with self._changed:
                self._printed += done
                self._changed.notify_all()
        for source, reader in self._readers.items():
            self._finish(source, reader)
        for cell, place in self._shown:
            self._set_rows(cell, place, ())

    # printing: in the thread ---------------------------------------------------------------------------------------

    def _print(self, items: Sequence[Output]) -> None:
        now = time.monotonic()
        texts: list[str] = []
        error, cell = False, None
        for item in items:
            its_cell = item.cell or self._cells.get((item.place, item.error, item.call))
            if item.error != error or its_cell is not cell:
                _flush(texts, error, cell)
                error, cell = item.error, its_cell
            texts.append(self._lines(item, now))
        _flush(texts, error, cell)
        if self._readers:
            self._settle(now)
            self._show(now)

    def _lines(self, item: Output, now: float) -> str:
        """Return the lines that this output completes, labelled."""
        source = item.place, item.error, item.call
        reader = self._readers.get(source)
        if not item.text:
            return self._labelled(item.place, reader.finish()) if reader is not None else ""
        if reader is None:
            if item.text.endswith("\n") and "\r" not in item.text and "\x1b" not in item.text:
                return self._labelled(item.place, item.text)
            reader = self._readers[source] = LineReader()
            if item.cell is not None:
                self._cells[source] = item.cell
        return self._labelled(item.place, reader.feed(item.text, now))

    def _labelled(self, place: str, lines: str) -> str:
        if not lines:
            return ""
        label = f"[{place}] ".ljust(self._width)
        return label + lines[:-1].replace("\n", f"\n{label}") + "\n"

    def _settle(self, now: float) -> None:
        """Print rows that will not change any more, and drop sources without pending text."""
        for source, reader in list(self._readers.items()):
            place, error, call = source
            if reader.leaves_rows and (lines := reader.settle(now)):
                _write(self._labelled(place, lines), error, self._cells.get(source))
            begun = reader.begun_at
            if call == _NO_CALL and begun is not None and now - begun > _BEGUN_S:
                self._finish(source, reader)
            if reader.is_empty:
                del self._readers[source]
                self._told.pop(source, None)
                self._cells.pop(source, None)

    def _finish(self, source: _Source, reader: LineReader) -> None:
        if lines := reader.finish():
            _write(self._labelled(source[0], lines), source[1], self._cells.get(source))

    def _show(self, now: float) -> None:
        """Show unfinished lines: as rows of a cell or a terminal, otherwise as an occasional line."""
        rows: dict[tuple[Cell | None, str], list[str]] = {shown: [] for shown in self._shown}
        for source, reader in self._readers.items():
            place, error, _ = source
            cell = self._cells.get(source)
            if cell is not None or is_terminal(sys.stderr if error else sys.stdout):
                label = f"[{place}] ".ljust(self._width)
                rows.setdefault((cell, place), []).extend(label + row.strip("\n") for row in reader.rows)
            else:
                self._tell(source, reader, now)
        for (cell, place), texts in rows.items():
            self._set_rows(cell, place, texts)
        self._shown = {shown for shown, texts in rows.items() if texts}

    def _set_rows(self, cell: Cell | None, place: str, texts: Sequence[str]) -> None:
        (cell or screen).set((id(self), len(place), place), texts)

    def _tell(self, source: _Source, reader: LineReader, now: float) -> None:
        at, before = self._told.setdefault(source, (now, ""))
        if now - at >= EVERY_S and (text := "\n".join(row.strip() for row in reader.rows)) != before:
            self._told[source] = now, text
            _write(self._labelled(source[0], text + "\n") if text else "", source[1])


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


class Backlog:
    """A queue with bounded memory.

    Args:
        may_skip: called when memory is full; returns whether the oldest output is dropped, as for a terminal that
            cannot keep up. Otherwise further output is stored in a temporary file.
    """

    def __init__(self, may_skip: Callable[[], bool]) -> None:
        self._may_skip = may_skip
        self._items: deque[Output] = deque()
        self._size = 0
        self._file: IO[bytes] | None = None  # items that follow `_items`
        self._cells: list[Cell | None] = []  # of the items in the file, which refer to them by index
        self._read_to = self._end = 0
        self.dropped = 0  # lines, since the counter was last read
        self.dropped_items = 0

    def __bool__(self) -> bool:
        return bool(self._items) or self._file is not None

    def append(self, item: Output) -> None:
        """Add an output."""
        if self._file is not None:
            self._spill(item)
            return
        if self._size + len(item.text) > MAX_WAITING and self._items and not self._may_skip():
            import tempfile

            try:
                self._file = tempfile.TemporaryFile(prefix="skyward-output-")  # noqa: SIM115 - closed when read
            except OSError:
                self._drop(item)
                return
            self._read_to = self._end = 0
            self._spill(item)
            return
        self._items.append(item)
        self._size += len(item.text)
        while self._size > MAX_WAITING and len(self._items) > 1:
            lost = self._items.popleft()
            self._size -= len(lost.text)
            self._drop(lost)

    def take(self) -> list[Output]:
        """Remove and return the oldest items: all of those in memory, or a part of the file."""
        if self._items or self._file is None:
            items = list(self._items)
            self._items.clear()
            self._size = 0
            return items
        self._file.seek(self._read_to)
        items, before = [], self._read_to
        while self._read_to < self._end and self._read_to - before < _READ_AT_ONCE:
            place, error, call, cell, text = _HEAD.unpack(self._file.read(_HEAD.size))
            name = self._file.read(place).decode()
            printed = self._file.read(text).decode("utf-8", "surrogatepass")
            items.append(Output(name, error, call, printed, self._cells[cell]))
            self._read_to += _HEAD.size + place + text
        if self._read_to == self._end:
            self.close()
        return items

    def close(self) -> None:
        """Discard the items in the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self._cells.clear()

    def _spill(self, item: Output) -> None:
        assert self._file is not None
        place, text = item.place.encode(), item.text.encode("utf-8", "surrogatepass")
        if item.cell not in self._cells:
            self._cells.append(item.cell)
        cell = self._cells.index(item.cell)
        record = _HEAD.pack(len(place), item.error, item.call, cell, len(text)) + place + text
        try:
            self._file.seek(self._end)
            self._file.write(record)
            self._file.flush()
        except OSError:  # the disk is full; the next record overwrites the partial one
            self._drop(item)
            return
        self._end += len(record)

    def _drop(self, item: Output) -> None:
        self.dropped += item.text.count("\n") or 1
        self.dropped_items += 1
