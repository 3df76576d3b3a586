"""Values that many calls share as arguments: each is sent to a node once, and looked up here by its calls.

They are identified by a digest of their content. If a node has several worker processes, the one that receives a value
writes it to a file, and all of them map that file into memory.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from skyward.errors import SerializationError
from skyward.system import threading, time
from skyward.wire import payload

DIGEST_BYTES = 16
KEEP, LEAVE, TAKE = 0, 1, 2  # first byte of a SHARED message: for this process; also neighbours; a neighbour has it
DIRECTORY = ".skyward-shared"  # below the node's working directory
_ALIGN = 64  # bytes; alignment of arrays in a file, as in numpy
_SIZE = struct.Struct("<Q")
_WAIT_S = 60.0  # for a file that a neighbour writes once it has received the value
_LOOK_S = 0.005

Buffer = bytes | bytearray | memoryview


class _Packed(NamedTuple):
    """A value that no call has requested yet; if `head` is None, it is in a file."""

    head: Buffer | None
    buffers: Sequence[Buffer]


class Values:
    """The shared values that this process has received.

    Attributes:
        directory: directory of the node in which its worker processes share values; None outside a node. A worker sets
            it before user code can change the working directory.
    """

    def __init__(self) -> None:
        self.directory: Path | None = None
        self._loading = threading.Lock()
        self._known: dict[bytes, Any] = {}

    def keep(self, head: Buffer, buffers: Sequence[Buffer]) -> None:
        """Store the value of a SHARED message, which has a mode (one byte), the digest and the pickled value."""
        view = memoryview(head)
        digest, data = bytes(view[1 : 1 + DIGEST_BYTES]), view[1 + DIGEST_BYTES :]
        if view[0] == LEAVE:
            _write(self._path(digest), data, buffers)
        self._known[digest] = _Packed(data, buffers) if view[0] == KEEP else _Packed(None, ())

    def forget(self, digest: bytes) -> None:
        """Drop a value and its file, if any; calls that already have the value are unaffected."""
        self._known.pop(digest, None)
        if self.directory is not None:
            self._path(digest).unlink(missing_ok=True)

    def clear(self) -> None:
        """Drop all values, which belong to the previous client."""
        self._known.clear()

    def get(self, digest: bytes) -> Any:
        """Return the value, the same object for all calls of this process. Arrays are read-only.

        Raises:
            SerializationError: it is not in this process, or cannot be unpickled here.
        """
        known = self._known.get(digest)
        if type(known) is not _Packed and known is not None:
            return known
        with self._loading:
            known = self._known.get(digest)
            if type(known) is _Packed:
                head, buffers = (known.head, known.buffers) if known.head is not None else self._read(digest)
                known = payload.loads(head, buffers, what="A shared argument")
                if hasattr(known, "setflags"):
                    known.setflags(write=False)
                self._known[digest] = known
        if known is None:
            raise SerializationError("An argument that was sent to this node before is not there any more.")
        return known

    def _path(self, digest: bytes) -> Path:
        if self.directory is None:  # not in an arbitrary process's working directory
            raise SerializationError("A shared argument is in a file of its node, and this process belongs to no node.")
        return self.directory / digest.hex()

    def _read(self, digest: bytes) -> tuple[memoryview, list[memoryview]]:
        path, deadline = self._path(digest), time.monotonic() + _WAIT_S
        while not path.exists():  # it arrives over another connection, possibly later than the call
            if time.monotonic() > deadline:
                raise SerializationError(
                    f"An argument that another worker process of this node was sent did not appear within {_WAIT_S:g} "
                    f"s in {path.parent}; that process has ended, or the disk is full."
                )
            time.sleep(_LOOK_S)
        return _mapped(path)


def _write(path: Path, head: memoryview, buffers: Sequence[Buffer]) -> None:
    """Write a value to a file that appears complete: number and sizes of its parts, then each part, aligned."""
    path.parent.mkdir(exist_ok=True)
    parts = [head, *(memoryview(buffer).cast("B") for buffer in buffers)]
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with partial.open("wb") as file:
        file.write(b"".join(_SIZE.pack(size) for size in (len(parts), *(part.nbytes for part in parts))))
        for part in parts:
            file.write(bytes(-file.tell() % _ALIGN))
            file.write(part)
    partial.replace(path)


def _mapped(path: Path) -> tuple[memoryview, list[memoryview]]:
    with path.open("rb") as file:
        view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    count, *_ = _SIZE.unpack_from(view)
    place = _SIZE.size * (1 + count)
    parts = []
    for index in range(count):
        (size,) = _SIZE.unpack_from(view, _SIZE.size * (1 + index))
        place += -place % _ALIGN
        parts.append(view[place : place + size])
        place += size
    return parts[0], parts[1:]


values = Values()


def shared(digest: bytes) -> Any:
    """Return the value with this digest; called by pickled arguments that refer to a shared value."""
    return values.get(digest)


def own_copy(digest: bytes) -> Any:
    """Return a copy of a shared array, for functions that write to their arguments."""
    return values.get(digest).copy()
