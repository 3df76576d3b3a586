"""Frames between a client and the program `skyward.runner.entry.session`, which runs one command on a node for it.

A frame has one byte for its kind, four for the length of its content, and the content. The client may send at most
`WINDOW` bytes of input that the node has not acknowledged as taken, so that signals never wait behind input.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

from skyward.errors import WireError

WINDOW = 1 << 20  # bytes of input in flight
MOST = 1 << 20  # bytes in a frame
_HEAD = struct.Struct(">BI")


class Kind(IntEnum):
    """Kind of a frame, with its content."""

    START = 1  # to the node: a JSON object, see `skyward.runner.entry.session.Order`
    INPUT = 2  # bytes for the command's standard input
    END = 3  # its input has ended
    SIZE = 4  # [rows, columns] of the terminal
    SIGNAL = 5  # number of a signal

    OUTPUT = 16  # to the client: bytes of standard output
    ERRORS = 17  # bytes of standard error
    TAKEN = 18  # number of bytes of input taken
    EXIT = 19  # {"status": number or null, "signal": number or null}; nothing follows
    FAILED = 20  # {"status": number, "text": sentence}: the command could not be started; nothing follows
    LOST = 21  # a sentence: the node has ended, and with it the command; nothing follows


def encode(kind: Kind, content: bytes | memoryview = b"") -> bytes:
    """Return a frame."""
    return b"".join((_HEAD.pack(kind, len(content)), content))


def encode_json(kind: Kind, value: Any) -> bytes:
    """Return a frame with a JSON value."""
    return encode(kind, json.dumps(value).encode())


class Decoder:
    """Splits received data into frames."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Kind, bytes]]:
        """Yield the frames completed by this data.

        Raises:
            WireError: the data is not a sequence of frames.
        """
        self._data += data
        while len(self._data) >= _HEAD.size:
            kind, length = _HEAD.unpack_from(self._data)
            if kind not in Kind._value2member_map_ or length > MOST:
                raise WireError(f"A node's session sent no frame: {bytes(self._data[:80])!r}.")
            if len(self._data) < _HEAD.size + length:
                return
            content = bytes(self._data[_HEAD.size : _HEAD.size + length])
            del self._data[: _HEAD.size + length]
            yield Kind(kind), content
