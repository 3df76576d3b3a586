"""Output that waits to be printed: in memory, beyond that in a file without a name, or not at all."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from typing import IO, NamedTuple

from skyward._pool.cells import Cell

MAX_WAITING = 4 * 1024 * 1024  # characters held in memory
_READ_AT_ONCE = 1024 * 1024
_HEAD = struct.Struct("<H?QII")  # bytes of the place, whether it is standard error, call, cell, bytes of the text


class Output(NamedTuple):
    """What a node or rank has printed, for the cell of a notebook or for none; no text: the call has ended."""

    place: str
    error: bool
    call: int
    text: str
    cell: Cell | None = None


class Backlog:
    """A queue with bounded memory.

    Args:
        may_skip: asked when memory is full: whether the oldest output is dropped, as for a terminal that cannot keep
            up; else what follows waits in a file.
    """

    def __init__(self, may_skip: Callable[[], bool]) -> None:
        self._may_skip = may_skip
        self._items: deque[Output] = deque()
        self._size = 0
        self._file: IO[bytes] | None = None  # what has come after `_items`
        self._cells: list[Cell | None] = []  # of what is in the file, which has their places in this list
        self._read_to = self._end = 0
        self.dropped = 0  # lines, since this was looked at last
        self.dropped_items = 0

    def __bool__(self) -> bool:
        return bool(self._items) or self._file is not None

    def append(self, item: Output) -> None:
        """Add what has come."""
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
        """The oldest that waits: all of memory, or a piece of the file."""
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
        """Forget what waits in the file."""
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
        except OSError:  # the disk is full; what is written of the record is overwritten by the next
            self._drop(item)
            return
        self._end += len(record)

    def _drop(self, item: Output) -> None:
        self.dropped += item.text.count("\n") or 1
        self.dropped_items += 1
