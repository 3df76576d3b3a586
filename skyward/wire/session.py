"""Frames between a client and the program `skyward.runner.entry.session`, which runs one command on a node for it.

A frame is a byte for its kind, four for the length of what follows, and that. The client may send as many bytes of
input as `WINDOW` allows beyond those that the node has told it were taken, so that signals never wait behind input.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

from skyward.errors import WireError

WINDOW = 1 << 20  # bytes of input under way
MOST = 1 << 20  # bytes in a frame
_HEAD = struct.Struct(">BI")


class Kind(IntEnum):
    """What a frame holds."""

    START = 1  # to the node: a JSON object, see `skyward.runner.entry.session.Order`
    INPUT = 2  # bytes for the command's standard input
    END = 3  # its input has ended
    SIZE = 4  # [rows, columns] of the terminal
    SIGNAL = 5  # a signal's number

    OUTPUT = 16  # to the client: bytes of standard output
    ERRORS = 17  # of standard error
    TAKEN = 18  # how many bytes of input were taken
    EXIT = 19  # {"status": number or null, "signal": number or null}; nothing follows
    FAILED = 20  # {"status": number, "text": sentence}: the command could not be started; nothing follows
    LOST = 21  # a sentence: the node has ended, and with it the command; nothing follows


def encode(kind: Kind, content: bytes | memoryview = b"") -> bytes:
    """A frame."""
    return b"".join((_HEAD.pack(kind, len(content)), content))


def encode_json(kind: Kind, value: Any) -> bytes:
    """A frame that holds a JSON value."""
    return encode(kind, json.dumps(value).encode())


class Decoder:
    """Finds the frames in what arrives."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Kind, bytes]]:
        """The frames that are complete with this data.

        Raises:
            WireError: these are no frames.
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
