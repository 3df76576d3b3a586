"""The clients of a node's processes: each is authenticated before anything else is read from it.

The agent drops output for a client that does not read it, so that a slow reader blocks nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from skyward.errors import WireError, explained
from skyward.system import socket, threading, time
from skyward.wire.frames import Connection, Frame
from skyward.wire.messages import STDERR, Kind

_MAX_PENDING = 8  # connections that have not authenticated yet
_REPORT_S = 60.0  # at most one line about refused connections in this time
_RETRY_S = 0.1  # delay before the next attempt if the process is out of file descriptors
_MOST_WAITING = 1024 * 1024  # bytes; beyond that output is dropped
LAST_WORDS_S = 0.5  # how long an ending node waits for a client to receive what is queued
C = TypeVar("C")


def _as_it_is(sock: socket.socket) -> socket.socket:
    return sock


class Acceptor(Generic[C]):
    """Accepts connections on one socket for as long as the process lives.

    Args:
        listener: the listening socket.
        authenticate: authenticates the peer of a connection, within its own time limit; closes it and raises WireError
            if that fails. Called in a separate thread for each connection.
        serve: called with the result of `authenticate`, in the same thread.
        say: called with a message when connections were refused.
        wrap: called with each socket as soon as it is accepted; must not block.
    """

    def __init__(
        self,
        listener: socket.socket,
        *,
        authenticate: Callable[[socket.socket], C],
        serve: Callable[[C], None],
        say: Callable[[str], None],
        wrap: Callable[[socket.socket], socket.socket] = _as_it_is,
    ) -> None:
        self._listener = listener
        self._wrap, self._authenticate, self._serve, self._say = wrap, authenticate, serve, say
        self._lock = threading.Lock()  # guards the attributes below
        self._pending: list[socket.socket] = []  # oldest first
        self._refused = 0
        self._reported = float("-inf")

    def run(self) -> None:
        """Accept connections, in a thread of its own; if too many are unauthenticated, the oldest is dropped."""
        while True:
            try:
                sock = self._wrap(self._listener.accept()[0])
            except OSError:  # its peer has closed it already, or the process is out of file descriptors
                time.sleep(_RETRY_S)
                continue
            with self._lock:
                self._pending.append(sock)
                if len(self._pending) > _MAX_PENDING:
                    shut(self._pending.pop(0))
            try:
                threading.Thread(target=self._welcome, args=(sock,), daemon=True).start()
            except RuntimeError as error:  # only this one is dropped: others are accepted once threads have ended
                self._drop(sock)
                sock.close()
                self._report(explained(error))

    def _welcome(self, sock: socket.socket) -> None:
        try:
            connection = self._authenticate(sock)
        except WireError as error:
            self._report(error)
            return
        finally:
            self._drop(sock)
        self._serve(connection)

    def _drop(self, sock: socket.socket) -> None:
        with self._lock:
            if sock in self._pending:
                self._pending.remove(sock)

    def _report(self, error: BaseException) -> None:
        with self._lock:
            self._refused += 1
            count, now = self._refused, time.monotonic()
            if now - self._reported < _REPORT_S:
                return
            self._reported = now
        self._say(f"{count} connection(s) refused so far. The last one: {error}")


def shut(sock: socket.socket) -> None:
    """Close a connection in both directions, which wakes the thread that reads it; do nothing if it has ended."""
    try:
        # the plain socket's shutdown: after that of TLS, a later read would treat incoming data as unencrypted
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
    except OSError:
        pass  # it is closed already


class Client:
    """A client of the agent. Only output may be dropped, never reports.

    Attributes:
        connection: the connection, used by the receiving thread.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._dropped: dict[int, int] = {}  # lines of output, by worker
        self._sizes: deque[int] = deque()  # of the frames that may be waiting, oldest first
        self._bytes = 0  # their sum

    def post(self, frame: Frame) -> None:
        """Send a frame; never blocks. Output is dropped while too much is waiting. One thread at a time."""
        waiting = self.connection.waiting()
        while len(self._sizes) > waiting:
            self._bytes -= self._sizes.popleft()
        is_full = self._bytes > _MOST_WAITING
        if frame.kind == Kind.WORKER_OUTPUT and is_full:
            self._dropped[frame.id] = self._dropped.get(frame.id, 0) + (bytes(frame.head).count(b"\n") or 1)
            return
        notices = [] if is_full else [_notice(worker, lines) for worker, lines in self._dropped.items()]
        if notices:
            self._dropped.clear()
        sizes = [len(each.head) for each in (*notices, frame)]
        self._sizes.extend(sizes)
        self._bytes += sum(sizes)
        with suppress(WireError):  # the receiving thread notices the same
            self.connection.post(*notices, frame)

    def close(self, last_words_s: float = 0.0) -> None:
        """Close the connection, waiting at most `last_words_s` until queued frames have been sent."""
        if last_words_s:
            sender = threading.Thread(target=self._finish, daemon=True)
            sender.start()
            sender.join(last_words_s)
        self.connection.close()

    def _finish(self) -> None:
        with suppress(WireError):
            self.connection.send()


def _notice(worker: int, lines: int) -> Frame:
    return Frame(Kind.WORKER_OUTPUT, worker, bytes((STDERR,)) + f"… {lines} lines dropped\n".encode())
