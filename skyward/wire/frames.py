"""Length-prefixed frames over a blocking stream socket.

```
kind u8, 3 zero bytes, number of buffers u32, length of head u64, id u64 | length u64 of each buffer | head | buffers
```

Small frames are coalesced into one write and parsed many at a time out of one read. Large buffers are neither copied
on the way out (vectored write) nor on the way in (read straight into their final memory).
Blocking sockets and threads, because a lock-step call costs 15-26 us this way and 60 us through an event loop;
`benchmarks/dispatch.py` measures it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from skyward.errors import WireError
from skyward.system import socket, threading
from skyward.wire.blocks import allocate

HEADER = struct.Struct("<B3xIQQ")
_SIZE = struct.Struct("<Q")
_READ = 256 * 1024  # bytes of one read of small frames
_COALESCE = 64 * 1024  # frames up to this size are joined before the write; larger ones are written in place
_IOV_MAX = 512  # half of Linux's limit for the parts of one vectored write
_MAX_BUFFERS = 1 << 20
_MAX_BYTES = 1 << 44  # a length beyond this is a broken stream, not a payload

Buffer = bytes | bytearray | memoryview


class Frame(NamedTuple):
    """One message."""

    kind: int
    id: int
    head: Buffer = b""
    buffers: Sequence[Buffer] = ()


class Connection:
    """A stream socket that carries frames. `send` may be called by any thread, `receive` by one at a time."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(None)
        self._sock = sock
        self._sending = threading.Lock()
        self._space = memoryview(bytearray(_READ))
        self._start = self._end = 0
        self._returned: list[Frame] = []

    def send(self, *frames: Frame) -> None:
        """Write frames in order, as one unit.

        Raises:
            WireError: the connection is closed or broke; nothing more can be sent on it.
        """
        parts, total = _parts(frames)
        try:
            with self._sending:
                if total <= _COALESCE:
                    self._sock.sendall(b"".join(parts))
                else:
                    _send_vectored(self._sock, parts)
        except OSError as error:
            raise WireError(f"The connection broke while sending ({error}).") from error

    def receive(self) -> list[Frame]:
        """Block until at least one frame is here; returns all that are. An empty list: the other side closed.

        Raises:
            WireError: the connection broke, or carries bytes that are no frames.
        """
        frames, self._returned = self._returned, []
        try:
            while not frames:
                if self._start == self._end:
                    self._start = self._end = 0
                elif self._end == _READ:
                    self._compact()
                count = self._sock.recv_into(self._space[self._end :])
                if count == 0:
                    if self._start != self._end:
                        raise WireError("The connection closed in the middle of a message.")
                    return frames
                self._end += count
                while (frame := self._next()) is not None:
                    frames.append(frame)
        except OSError as error:
            raise WireError(f"The connection broke while receiving ({error}).") from error
        return frames

    def put_back(self, frames: list[Frame]) -> None:
        """Let the next `receive` return these, which came with a frame that was awaited alone."""
        self._returned = frames

    def stop_reading(self) -> None:
        """Release a thread blocked in `receive`; what it has not read is lost, sending goes on."""
        try:
            self._sock.shutdown(socket.SHUT_RD)
        except OSError:
            pass  # the other side was faster

    def close(self) -> None:
        """Close both directions; a thread blocked in `send` or `receive` is released."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the other side was faster
        self._sock.close()

    def _compact(self) -> None:
        rest = self._end - self._start
        self._space[:rest] = bytes(self._space[self._start : self._end])
        self._start, self._end = 0, rest

    def _next(self) -> Frame | None:
        """The next frame out of what has been read; None if it must be waited for."""
        here = self._end - self._start
        if here < HEADER.size:
            return None
        kind, n_buffers, head_size, ident = HEADER.unpack_from(self._space, self._start)
        if n_buffers > _MAX_BUFFERS or head_size > _MAX_BYTES:
            raise WireError(f"The connection carries bytes that are no message (a head of {head_size} bytes).")
        total = HEADER.size + head_size
        if n_buffers or total > _READ:
            return self._large(kind, ident, n_buffers, head_size)
        if total > here:
            return None
        stop = self._start + total
        head = bytes(self._space[self._start + HEADER.size : stop])
        self._start = stop
        return Frame(kind, ident, head)

    def _large(self, kind: int, ident: int, n_buffers: int, head_size: int) -> Frame:
        """Read the rest of the frame that begins at `_start` straight into its final memory."""
        self._start += HEADER.size
        sizes = [size for (size,) in _SIZE.iter_unpack(self._read(n_buffers * _SIZE.size))]
        if any(size > _MAX_BYTES for size in sizes):
            raise WireError("The connection carries bytes that are no message (a buffer of impossible size).")
        head = self._read(head_size)
        return Frame(kind, ident, head, [self._read(n) for n in sizes])

    def _read(self, size: int) -> memoryview:
        """Exactly `size` bytes in memory of their own: first what is buffered, then from the socket."""
        target = allocate(size)
        done = min(size, self._end - self._start)
        target[:done] = self._space[self._start : self._start + done]
        self._start += done
        while done < size:
            count = self._sock.recv_into(target[done:])
            if count == 0:
                raise WireError("The connection closed in the middle of a message.")
            done += count
        return target


def _parts(frames: Sequence[Frame]) -> tuple[list[Buffer], int]:
    """The pieces of memory to write for these frames, and their length together."""
    parts: list[Buffer] = []
    total = 0
    for kind, ident, head, buffers in frames:
        prefix = HEADER.pack(kind, len(buffers), len(head), ident)
        views = [memoryview(b).cast("B") for b in buffers]
        if views:
            prefix += b"".join(_SIZE.pack(v.nbytes) for v in views)
        parts += (prefix, head, *views)
        total += len(prefix) + len(head) + sum(v.nbytes for v in views)
    return parts, total


def _send_vectored(sock: socket.socket, parts: list[Buffer]) -> None:
    """Write all parts without joining them, however little of them each call takes."""
    pending = [view for part in parts if (view := memoryview(part)).nbytes]
    while pending:
        sent = sock.sendmsg(pending[:_IOV_MAX])
        done = 0
        while done < len(pending) and sent >= pending[done].nbytes:
            sent -= pending[done].nbytes
            done += 1
        del pending[:done]
        if pending and sent:
            pending[0] = pending[0][sent:]
