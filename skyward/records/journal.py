"""An append-only journal in a directory: one JSON object per line, in segments named by the offset of their first byte.

Each entry is one `write` to a file opened in append mode. A writer that is killed therefore loses at most the entry
being written, and a reader that knows its position can continue exactly there, in another process or on another
machine. Positions count the bytes of the whole journal, including those of removed segments.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skyward.system import threading

SEGMENT = 1024 * 1024  # bytes after which a new segment starts
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode  # `dumps` would create one per call


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a journal.

    Attributes:
        fields: the content.
        end: the position after it, where the next entry starts.
        skipped: number of removed bytes between the requested position and this entry.
    """

    fields: Mapping[str, Any]
    end: int
    skipped: int = 0


class JournalWriter:
    """Appends entries; thread-safe.

    Args:
        folder: directory of the segments; if missing, it is created with access for this user only.
        limit: bytes to keep; beyond that the oldest segments are removed. None for no limit.
        shared: whether other processes append to the same journal.

    Raises:
        OSError: the folder cannot be made or written to.
    OSError: the folder cannot be created or written to.
    """

    def __init__(self, folder: Path, *, limit: int | None = None, shared: bool = False) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._limit = limit
        self._segment = SEGMENT if limit is None else min(SEGMENT, max(limit // 4, 1))
        self._lock = threading.Lock()
        self._file = self._guard = -1
        if shared:
            self._guard = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with self._alone():
            self._begin(*self._newest())

    def append(self, fields: Mapping[str, Any]) -> None:
        """Write one entry.

        Raises:
            OSError: it could not be written.
        """
        self.extend((fields,))

    def extend(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Write several entries without any others between them.

        Raises:
            OSError: they could not be written.
        """
        lines = [_encode(fields).encode("utf-8", "replace") + b"\n" for fields in entries]
        with self._lock:
            if self._guard < 0:
                self._write(lines)
                return
            with self._alone():
                self._follow()
                self._write(lines)

    def close(self) -> None:
        """Close the file; nothing can be appended after that. Repeated calls do nothing."""
        with self._lock:
            for file in (self._file, self._guard):
                if file >= 0:
                    os.close(file)
            self._file = self._guard = -1

    def _write(self, lines: list[bytes]) -> None:
        together: list[bytes] = []
        size = self._size
        for line in lines:
            if size and size + len(line) > self._segment:
                self._put(b"".join(together))
                self._next()
                together, size = [], self._size
            together.append(line)
            size += len(line)
        self._put(b"".join(together))

    def _put(self, data: bytes) -> None:
        written = os.write(self._file, data)
        while written < len(data):
            written += os.write(self._file, data[written:])
        self._size += len(data)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Lock out other processes that append, if the journal is shared."""
        if self._guard < 0:
            yield
            return
        fcntl.flock(self._guard, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._guard, fcntl.LOCK_UN)

    def _follow(self) -> None:
        """Continue at the position that other processes have reached."""
        start, path = self._newest()
        if start == self._start:
            self._size = os.fstat(self._file).st_size
        else:
            os.close(self._file)
            self._begin(start, path)

    def _newest(self) -> tuple[int, Path]:
        found = segments(self._folder)
        return found[-1] if found else (0, _path(self._folder, 0))

    def _begin(self, start: int, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._start = start
        self._size = os.fstat(self._file).st_size
        if self._size and not _ends_line(path):  # its last writer was killed; readers skip the incomplete line
            self._size += os.write(self._file, b"\n")

    def _next(self) -> None:
        os.close(self._file)
        start = self._start + self._size
        self._begin(start, _path(self._folder, start))
        if self._limit is None:
            return
        for first, path in segments(self._folder):
            if start - first <= self._limit - self._segment:
                break
            path.unlink(missing_ok=True)


def entries(source: Callable[[int], tuple[int, bytes] | None], position: int) -> Iterator[Entry]:
    """Yield the entries from a position to the current end; an incomplete last line is left for the next call.

    `source` returns bytes and their position, which is later than the requested one if that part has been removed. It
    returns None at the end.
    """
    rest, skipped = b"", 0
    while True:
        found = source(position + len(rest))
        if found is None:
            return
        start, data = found
        if start > position + len(rest):
            skipped += start - position
            position, rest = start, b""
        rest += data
        for entry in parse(rest, position):
            yield Entry(entry.fields, entry.end, skipped)
            skipped = 0
        whole = rest.rfind(b"\n") + 1
        position, rest = position + whole, rest[whole:]


def parse(data: bytes, position: int) -> Iterator[Entry]:
    """Yield the entries of the complete lines in `data`, which starts at `position`; broken lines are skipped."""
    end = position
    for line in data.split(b"\n")[:-1]:
        end += len(line) + 1
        try:
            fields = json.loads(line)
        except ValueError:
            continue
        if isinstance(fields, dict):
            yield Entry(fields, end)


def segments(folder: Path) -> list[tuple[int, Path]]:
    """Return the files of a journal in order, each with the position of its first byte."""
    if not folder.is_dir():
        return []
    return sorted((int(path.stem), path) for path in folder.glob("*.jsonl") if path.stem.isdigit())


def _path(folder: Path, start: int) -> Path:
    return folder / f"{start:020}.jsonl"


def _ends_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
