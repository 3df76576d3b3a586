"""A pickle whose large byte strings stay beside it, so that neither writing nor sending copies them.

Pickle's own out-of-band buffers do this for arrays. Byte strings are not among them, yet whole files, and the tensors
of PyTorch, which pickles itself into one, come as such.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence

LARGE = 1 << 20  # bytes; the pickler hands strings of 64 KiB and more to `write` as they are, and frames of about that
_MARK = 0  # no pickle starts with it
_COUNT = struct.Struct("<BI")
_PLACE = struct.Struct("<Q")

Buffer = bytes | bytearray | memoryview


class Writer:
    """The file a pickler writes to."""

    def __init__(self) -> None:
        self._small: list[bytes] = []
        self._length = 0
        self._places: list[int] = []
        self.large: list[memoryview] = []

    def write(self, part: bytes | memoryview) -> int:
        """Take a part of the pickle."""
        if type(part) is bytes and len(part) >= LARGE:
            self._places.append(self._length)
            self.large.append(memoryview(part))
        else:  # what is not a byte string is memory that the pickler will use again
            self._small.append(bytes(part))
            self._length += len(part)
        return len(part)

    def head(self) -> bytes:
        """The pickle, or what is left of it, with the places of the parts in `large`."""
        if not self.large:
            return b"".join(self._small)
        places = b"".join(map(_PLACE.pack, self._places))
        return b"".join((_COUNT.pack(_MARK, len(self.large)), places, *self._small))


def is_split(head: Buffer) -> bool:
    """Whether some of this pickle's parts are in buffers."""
    return len(head) > 0 and head[0] == _MARK


def joined(head: Buffer, buffers: Sequence[Buffer]) -> tuple[io.BufferedReader, Sequence[Buffer]]:
    """A file that reads like the whole pickle, and the buffers that are not parts of it."""
    view = memoryview(head)
    _, count = _COUNT.unpack_from(view)
    body = _COUNT.size + count * _PLACE.size
    parts, start = [], body
    for index in range(count):
        (place,) = _PLACE.unpack_from(view, _COUNT.size + index * _PLACE.size)
        parts += [view[start : body + place], memoryview(buffers[index]).cast("B")]
        start = body + place
    return io.BufferedReader(_Parts([*parts, view[start:]])), buffers[count:]


class _Parts(io.RawIOBase):
    """Reads pieces of memory one after the other."""

    def __init__(self, parts: list[memoryview]) -> None:
        super().__init__()
        self._parts = parts[::-1]

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override] # the reader passes nothing else
        while self._parts and not len(self._parts[-1]):
            self._parts.pop()
        if not self._parts:
            return 0
        part = self._parts[-1]
        count = min(len(buffer), len(part))
        buffer[:count] = part[:count]
        self._parts[-1] = part[count:]
        return count
