"""Values that many calls share as arguments: each is sent to a worker once, and looked up here by its calls.

They are identified by a digest of their content.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from skyward.errors import SerializationError
from skyward.system import threading
from skyward.wire import payload

DIGEST_BYTES = 16

Buffer = bytes | bytearray | memoryview


class _Packed(NamedTuple):
    """A value that no call has requested yet."""

    head: Buffer
    buffers: Sequence[Buffer]


class Values:
    """The shared values that this process has received."""

    def __init__(self) -> None:
        self._loading = threading.RLock()  # loading runs code of the user's
        self._known: dict[bytes, Any] = {}

    def keep(self, head: Buffer, buffers: Sequence[Buffer]) -> None:
        """Store the value of a SHARED message, which has the digest and the pickled value."""
        view = memoryview(head)
        self._known[bytes(view[:DIGEST_BYTES])] = _Packed(view[DIGEST_BYTES:], buffers)

    def forget(self, digest: bytes) -> None:
        """Drop a value; calls that already have it are unaffected."""
        self._known.pop(digest, None)

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
                known = payload.loads(known.head, known.buffers, what="A shared argument")
                if hasattr(known, "setflags"):
                    known.setflags(write=False)
                self._known[digest] = known
        if known is None:
            raise SerializationError("An argument that was sent to this worker before is not there any more.")
        return known


values = Values()


def shared(digest: bytes) -> Any:
    """Return the value with this digest; called by pickled arguments that refer to a shared value."""
    return values.get(digest)


def own_copy(digest: bytes) -> Any:
    """Return a copy of a shared array, for functions that write to their arguments."""
    return values.get(digest).copy()
