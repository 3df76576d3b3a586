"""Append-only files of JSON lines.

Each append is one `write` to a file opened in append mode, so several threads and processes can write without a lock,
a killed writer loses at most the line it was writing, and a reader that knows its position can continue there.

A journal of bounded size is a directory of such files, named by their numbers; the oldest is removed when another
begins. Its positions are numbers that grow: that of the file and the offset in it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILES = 4  # of one journal; each has that part of its limit
SPAN = 1 << 40  # of positions for each file
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode  # `dumps` would create one per call


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a journal.

    Attributes:
        fields: the content.
        end: the position after it, where the next entry starts.
        follows_gap: whether entries before it were removed without having been read.
    """

    fields: Mapping[str, Any]
    end: int
    follows_gap: bool = False


def append(path: Path, entry: Mapping[str, Any], limit: int | None = None) -> None:
    """Append an entry to a file, which is created for this user only.

    Args:
        path: of the file.
        entry: to be written.
        limit: bytes from which on nothing is written; None for no limit.

    Raises:
        OSError: it could not be written.
    """
    _write(path, _line(entry), limit)


def _write(path: Path | str, data: bytes, limit: int | None = None) -> bool:
    """Append data, unless the file has data already and is larger than a limit; return whether it was appended."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        size = os.fstat(file).st_size
        if limit is not None and size and size > limit:
            return False
        if size and os.pread(file, 1, size - 1) != b"\n":  # its last writer was killed; readers skip the partial line
            data = b"\n" + data
        while data:
            data = data[os.write(file, data) :]
    finally:
        os.close(file)
    return True


def extend(folder: Path, entry: Mapping[str, Any], limit: int) -> None:
    """Append an entry to a journal, whose directory is created for this user only if it is missing.

    Args:
        folder: of the journal.
        entry: to be written.
        limit: bytes to keep; the oldest entries go first.

    Raises:
        OSError: it could not be written.
    """
    data = _line(entry)
    try:
        with os.scandir(folder) as found:
            number = max((number for each in found if (number := number_of(each.name)) is not None), default=0)
    except FileNotFoundError:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        number = 0
    if not _write(f"{folder}/{number}.jsonl", data, limit // FILES - len(data)):
        (folder / f"{number + 1 - FILES}.jsonl").unlink(missing_ok=True)
        _write(f"{folder}/{number + 1}.jsonl", data)


def entries(folder: Path, position: int = 0) -> Iterator[Entry]:
    """Yield the entries of a journal from a position to its end; an incomplete last line is left for later."""
    number, offset = divmod(position, SPAN)
    is_gap = False
    while True:
        try:
            with (folder / f"{number}.jsonl").open("rb") as file:
                file.seek(offset)
                for entry in parse(file, number * SPAN + offset):
                    yield Entry(entry.fields, entry.end, is_gap)
                    is_gap = False
        except FileNotFoundError:  # it was removed, or the journal is empty
            is_gap = True
        numbers = [number_of(each.name) for each in folder.glob("*.jsonl")]
        later = [each for each in numbers if each is not None and each > number]
        if not later:
            return
        number, offset = min(later), 0


def number_of(name: str) -> int | None:
    """Return the number of a file of a journal; None for other files."""
    stem, dot, suffix = name.partition(".")
    return int(stem) if dot and suffix == "jsonl" and stem.isdigit() else None


def parse(lines: Iterable[bytes], position: int = 0) -> Iterator[Entry]:
    """Yield the entries of complete lines, which start at `position`; damaged lines are skipped."""
    end = position
    for line in lines:
        end += len(line)
        try:
            fields = json.loads(line) if line.endswith(b"\n") else None
        except ValueError:
            continue
        if isinstance(fields, dict):
            yield Entry(fields, end)


def _line(entry: Mapping[str, Any]) -> bytes:
    return _encode(entry).encode("utf-8", "replace") + b"\n"
