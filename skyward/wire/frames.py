"""Connections to the processes of a node: their addresses, frames, and the memory of payloads.

An address is `unix:<file name>` in the node's private run directory or, if that does not support sockets,
`tcp:<ip>:<port>` on loopback. The unix form is safer (the directory is accessible to its owner only) and up to twice as
fast. Connections carry frames:

```
kind u8, 3 zero bytes, number of buffers u32, length of head u64, id u64 | length u64 of each buffer | head | buffers
```

Small frames are joined into one write, and many are parsed from one read. Large buffers are copied neither when sent
(vectored write) nor when received (read directly into their final memory). Blocking sockets and threads are used
because a lock-step call costs 15-26 us this way and 60 us through an event loop; `benchmarks/dispatch.py` measures it.
"""

from __future__ import annotations

import itertools
import mmap
import struct
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

from skyward.errors import WireError
from skyward.system import Empty, SimpleQueue, socket, threading
from skyward.system.collector import collected, uncollected

HEADER = struct.Struct("<B3xIQQ")
_SIZE = struct.Struct("<Q")
_READ = 256 * 1024  # bytes per read of small frames
_COALESCE = 64 * 1024  # frames up to this size are joined before the write; larger ones are written in place
_TURNS = 16  # writes per `flush`; the writer thread continues if more is queued
_IOV_MAX = 512  # half of Linux's limit for the parts of one vectored write
_MAX_BUFFERS = 1 << 20
_MAX_BYTES = 1 << 44  # a length beyond this is a broken stream, not a payload
_BACKLOG = 128
_LOOK_S = 1.0  # between a waiting sender's looks at whether the connection was closed
_SEND_BUFFER = 512 * 1024  # bytes, of a unix socket: half or eight times as much slows an SSH forward down
_HUGE = 2 * 1024 * 1024
_KEPT = 128 * 1024 * 1024  # bytes of large blocks that a process keeps, in use or not
Buffer = bytes | bytearray | memoryview


# addresses ------------------------------------------------------------------------------------------------------------


def listen(run_dir: Path, name: str) -> tuple[socket.socket, str]:
    """Return a listening socket and its address; uses TCP loopback if the directory does not support sockets."""
    path = run_dir / name
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)
        sock.bind(str(path))
        # The client's user may differ from the container's root; the directory above (0700) excludes all other users.
        path.chmod(0o666)
        sock.listen(_BACKLOG)
        return sock, f"unix:{name}"
    except OSError:
        sock.close()
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.bind(("127.0.0.1", 0))
    sock.listen(_BACKLOG)
    return sock, f"tcp:127.0.0.1:{sock.getsockname()[1]}"


def dial(run_dir: Path, address: str, timeout_s: float = 10.0) -> socket.socket:
    """Return a socket connected to an address of a runner whose run directory is `run_dir` on this machine.

    Raises:
        WireError: nothing listens there.
    """
    scheme, _, rest = address.partition(":")
    family = socket.AF_UNIX if scheme == "unix" else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.settimeout(timeout_s)
    try:
        if scheme == "unix":
            if "/" in rest:
                raise WireError(f"A runner announced the address {address!r}, which leaves its run directory.")
            sock.connect(str(run_dir / rest))
        else:
            host, _, port = rest.rpartition(":")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.connect((host, int(port)))
        tune(sock)
        return sock
    except BaseException as error:
        sock.close()
        if isinstance(error, OSError):
            raise WireError(f"Nothing listens at {address} of this node ({error}); it may just have ended.") from error
        raise


def tune(sock: socket.socket) -> None:
    """Set the buffer size for large payloads, and no delay for small ones; TCP sizes its buffers itself by default."""
    if sock.family == socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
    else:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


# frames ---------------------------------------------------------------------------------------------------------------


class Frame(NamedTuple):
    """One message."""

    kind: int
    id: int
    head: Buffer = b""
    buffers: Sequence[Buffer] = ()


class Connection:
    """A stream socket that carries frames. Only `receive` is limited to one thread at a time.

    Attributes:
        while_waiting: context in which `receive` blocks.

    Frames are queued, and one thread at a time writes the queue. `post` and `flush` never block: they write what the
    socket accepts at once, and leave the rest to a thread that is started when first needed. They are used by threads
    that read, keep time or run callbacks. `send` blocks until its frames are written. Signal handlers, destructors and
    tracers may call any of them while their thread is inside one: what they queue is written when that continues.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(None)
        self._sock = sock
        self._queue: deque[Frame] = deque()  # appended to by any thread, emptied by the writing one
        self._urgent: deque[Frame] = deque()  # written before the others
        self._writing = threading.Lock()  # held by the writing thread
        self._flushing = set[int]()  # threads that may hold it; code that interrupts one of them only queues
        self._pending: list[Buffer] = []  # unsent parts of frames that are being written
        self._wake: SimpleQueue[bool] = SimpleQueue()  # for the writer thread: True to write, False to end
        self._has_writer = False
        self._senders: deque[SimpleQueue[WireError | None]] = (
            deque()
        )  # those that wait until what they queued is written
        self._broken = ""
        self._closed = False
        self.while_waiting: AbstractContextManager[object] = nullcontext()
        self.stopped_reading = False  # whether this side has ended receiving
        self._space = memoryview(bytearray(_READ))
        self._start = self._end = 0
        self._returned: list[Frame] = []

    # sending ---------------------------------------------------------------------------------------------------

    def enqueue(self, *frames: Frame, urgent: bool = False) -> None:
        """Queue frames in order; call `flush` afterwards. Urgent ones overtake those that are not being written yet."""
        (self._urgent if urgent else self._queue).extend(frames)

    def flush(self) -> None:
        """Write the queue without blocking: what the socket does not accept now is written by another thread.

        Raises:
            WireError: the connection is closed or broke; nothing more can be sent on it.
        """
        self._check()
        me, done = threading.get_ident(), True
        while done and (self._queue or self._urgent) and me not in self._flushing:
            try:
                self._flushing.add(me)  # before the lock is taken: whatever interrupts this thread knows
                if not self._writing.acquire(blocking=False):
                    return  # the other thread looks at the queue again when it has released the lock
                done = False
                try:
                    done = self._write(socket.MSG_DONTWAIT)
                finally:  # even on Ctrl-C
                    self._writing.release()
                    if not done:
                        self._rouse()
            finally:
                self._flushing.discard(me)

    def post(self, *frames: Frame) -> None:
        """Call `enqueue`, then `flush`: never blocks; raises as `flush` does."""
        self.enqueue(*frames)
        self.flush()

    def send(self, *frames: Frame, by_writer: bool = False) -> None:
        """Write frames, in order and after everything queued; block until the socket has accepted them.

        Does not block in code that has interrupted its thread's own `flush`.

        Args:
            frames: may be none, to wait for what is queued.
            by_writer: let the writer thread write, for threads that exceptions or tracers may interrupt anywhere.

        Raises:
            WireError: as `flush`.
        """
        self._check()
        self.enqueue(*frames)
        if not by_writer:
            self.flush()
        if threading.get_ident() in self._flushing or not (self.is_behind() or self._writing.locked()):
            return
        outcome: SimpleQueue[WireError | None] = SimpleQueue()
        self._senders.append(outcome)
        self._rouse()
        while True:
            try:
                error = outcome.get(timeout=_LOOK_S)
                break
            except Empty:
                self._check()  # the writer may have ended just before
        if error is not None:
            raise error

    def withdraw(self, kind: int, ident: int) -> bool:
        """Remove a queued frame; return False if there is none whose writing has not begun."""
        for frame in tuple(self._queue):
            if frame.kind == kind and frame.id == ident:
                try:
                    self._queue.remove(frame)
                except (ValueError, IndexError):  # the writing thread has just taken it
                    return False
                return True
        return False

    def unsent(self, kind: int) -> set[int]:
        """Return the ids of queued frames of this kind whose writing has not begun."""
        return {frame.id for frame in tuple(self._queue) if frame.kind == kind}

    def waiting(self) -> int:
        """Return the number of queued frames whose writing has not begun."""
        return len(self._queue)

    def is_behind(self) -> bool:
        """Return whether something queued is not written yet."""
        return bool(self._queue or self._urgent or self._pending)

    def _check(self) -> None:
        if self._closed or self._broken:
            raise WireError(f"The connection broke while sending ({self._broken or 'it is closed'}).")

    def _rouse(self) -> None:
        """Make the writer thread write the queue."""
        if not self._has_writer and not sys.is_finalizing():
            begun: SimpleQueue[None] = SimpleQueue()
            with uncollected:  # until the thread does the same
                threading.Thread(target=self._write_on, args=(begun,), name="skyward-writer", daemon=True).start()
                begun.get()
            self._has_writer = True  # two threads may both have started one, which does no harm
        self._wake.put(True)

    def _write_on(self, begun: SimpleQueue[None]) -> None:
        """Write what the socket did not accept at once; in a thread of its own, which ends with the connection.

        No garbage is collected there: code of the program's could wait for a thread that waits for this one to write.
        """
        self._flushing.add(threading.get_ident())
        with uncollected:
            begun.put(None)
            while True:
                with collected:
                    goes_on = self._wake.get()
                if not goes_on:
                    break
                senders = [self._senders.popleft() for _ in range(len(self._senders))]
                failure = None
                try:
                    while self.is_behind():
                        with self._writing:
                            self._write(0)
                except WireError as error:
                    failure = error  # the reading thread notices the same
                for sender in senders:
                    sender.put(failure)
        self._wake.put(False)  # for another one

    def _write(self, flags: int) -> bool:
        """Write the queue, as the only writing thread; return False if the socket would block."""
        try:
            for _ in range(_TURNS) if flags else itertools.repeat(None):
                if not self._pending:
                    self._pending = self._next_parts()
                    if not self._pending:
                        return True
                sent = self._sock.sendmsg(self._pending[:_IOV_MAX], (), flags)
                _drop_sent(self._pending, sent)
                if self._pending and flags:
                    return False
        except BlockingIOError:
            pass
        except OSError as error:
            self._broken = str(error)
            self._pending = []
            raise WireError(f"The connection broke while sending ({error}).") from error
        return False

    def _next_parts(self) -> list[Buffer]:
        """Return the memory blocks of the next frames, joining those of small ones."""
        frames: list[Frame] = []
        size = 0
        while size <= _COALESCE:
            try:
                frame = (self._urgent or self._queue).popleft()
            except IndexError:
                break
            frames.append(frame)
            size += len(frame.head) + (_COALESCE if frame.buffers else 0)
        if not frames:
            return []
        parts, total = _parts(frames)
        return [b"".join(parts)] if total <= _COALESCE else [part for part in parts if memoryview(part).nbytes]

    # receiving -------------------------------------------------------------------------------------------------

    def receive(self) -> list[Frame]:
        """Block until a frame has arrived; return all that have. An empty list: the other side closed.

        Raises:
            WireError: the connection broke, or its bytes are not frames.
        """
        frames, self._returned = self._returned, []
        try:
            while not frames:
                if self._start == self._end:
                    self._start = self._end = 0
                elif self._end == _READ:
                    self._compact()
                take, space = (
                    self._sock.recv_into,
                    self._space[self._end :],
                )  # new objects: may collect garbage
                with self.while_waiting:
                    count = take(space)
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
        """Make the next `receive` return these frames, which arrived together with an awaited one."""
        self._returned = frames

    def stop_reading(self) -> None:
        """Make `receive` return what has arrived and then the end of the stream; sending is still possible."""
        self.stopped_reading = True
        try:
            self._sock.shutdown(socket.SHUT_RD)
        except OSError:
            pass  # the other side has closed it already

    def close(self) -> None:
        """Close both directions; a thread blocked in `send` or `receive` is released."""
        self._closed = True
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the other side has closed it already
        self._sock.close()
        self._wake.put(False)

    def abandon(self) -> None:
        """Close only this process's descriptor: in a forked child, whose parent still uses the connection."""
        self._closed = True
        self._sock.close()

    def _compact(self) -> None:
        rest = self._end - self._start
        self._space[:rest] = bytes(self._space[self._start : self._end])
        self._start, self._end = 0, rest

    def _next(self) -> Frame | None:
        """Return the next frame from what has been read; None if it is incomplete."""
        here = self._end - self._start
        if here < HEADER.size:
            return None
        kind, n_buffers, head_size, ident = HEADER.unpack_from(self._space, self._start)
        if n_buffers > _MAX_BUFFERS or head_size > _MAX_BYTES:
            raise WireError(f"The connection carries bytes that are not a message (a head of {head_size} bytes).")
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
        """Read the rest of the frame that begins at `_start` directly into its final memory."""
        self._start += HEADER.size
        sizes = [size for (size,) in _SIZE.iter_unpack(self._read(n_buffers * _SIZE.size))]
        if any(size > _MAX_BYTES for size in sizes):
            raise WireError("The connection carries bytes that are not a message (a buffer of impossible size).")
        head = self._read(head_size)
        return Frame(kind, ident, head, [self._read(n) for n in sizes])

    def _read(self, size: int) -> memoryview:
        """Return exactly `size` bytes in separate memory: first what is buffered, then from the socket."""
        target = allocate(size)
        done = min(size, self._end - self._start)
        target[:done] = self._space[self._start : self._start + done]
        self._start += done
        while done < size:
            take, space = self._sock.recv_into, target[done:]
            with self.while_waiting:
                count = take(space)
            if count == 0:
                raise WireError("The connection closed in the middle of a message.")
            done += count
        return target


def _parts(frames: Sequence[Frame]) -> tuple[list[Buffer], int]:
    """Return the memory blocks to write for these frames, and their total length."""
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


def _drop_sent(pending: list[Buffer], sent: int) -> None:
    """Remove the sent bytes from the beginning of these memory blocks."""
    done = 0
    while done < len(pending) and sent >= (size := memoryview(pending[done]).nbytes):
        sent -= size
        done += 1
    del pending[:done]
    if sent:
        pending[0] = memoryview(pending[0])[sent:]


# memory ---------------------------------------------------------------------------------------------------------------


_blocks: list[mmap.mmap] = []  # oldest first
_lock = threading.RLock()  # destructors run by the garbage collector may need memory, too


def allocate(size: int) -> memoryview:
    """Return writable memory of this size with undefined content; large blocks use huge pages and are reused.

    Fresh pages cost more than the copy into them: 64 MB took a worker 57 ms of processor time in fresh memory and 25 ms
    in reused memory. A block is free again when no view of it exists, as shown by its reference count: each view of it,
    and each array that uses one, holds a reference.
    """
    if size < _HUGE:
        return memoryview(bytearray(size))
    with _lock:
        for number in range(len(_blocks)):
            # the lock is held until the view exists, so that no other thread finds the block unused
            if size <= len(_blocks[number]) < 2 * size and sys.getrefcount(_blocks[number]) == _UNUSED:
                return memoryview(_blocks[number])[:size]
    block = _fresh(size)
    view = memoryview(block)
    with _lock:
        _blocks.append(block)
        while sum(map(len, _blocks)) > _KEPT:
            del _blocks[0]  # it lives on while it is in use
    return view


def _fresh(size: int) -> mmap.mmap:
    # private, because many systems disable huge pages for shared memory, which is Python's default
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    block = mmap.mmap(-1, size, **private)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            block.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            pass  # a kernel without huge pages: slower, but correct
    return block


def _count_of_unused() -> int:
    """Return what `getrefcount` returns, called as in `allocate`, for a block that is only in the list."""
    blocks = [mmap.mmap(-1, 4096)]
    return sys.getrefcount(blocks[0])


_UNUSED = _count_of_unused()
