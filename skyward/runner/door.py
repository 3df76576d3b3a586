"""Where clients come in: authenticates every connection in a thread of its own before anything of it is read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from skyward.errors import WireError
from skyward.system import socket, threading, time
from skyward.wire.frames import Connection
from skyward.wire.handshake import accept
from skyward.wire.listen import tune

_MAX_STRANGERS = 8  # connections that have not authenticated yet
_REPORT_S = 60.0  # at most one line about refused connections in this time


class Door:
    """Accepts on one socket for as long as the process lives.

    Args:
        listener: the listening socket.
        key: the pool's key.
        endpoint: the name this side authenticates as.
        serve: called with each authenticated connection, in its thread.
        say: called with a line for people when connections were refused.
    """

    def __init__(
        self,
        listener: socket.socket,
        key: bytes,
        endpoint: str,
        *,
        serve: Callable[[Connection], None],
        say: Callable[[str], None],
    ) -> None:
        self._listener, self._key, self._endpoint = listener, key, endpoint
        self._serve, self._say = serve, say
        self._lock = threading.Lock()
        self._strangers: deque[socket.socket] = deque()
        self._refused = 0
        self._reported = float("-inf")

    def run(self) -> None:
        """Take connections (a thread of its own). The oldest stranger gives way: silent ones keep nobody out."""
        while True:
            try:
                sock, _ = self._listener.accept()
            except ConnectionAbortedError:  # it was faster
                continue
            with self._lock:
                self._strangers.append(sock)
                if len(self._strangers) > _MAX_STRANGERS:
                    _hang_up(self._strangers.popleft())
            threading.Thread(target=self._welcome, args=(sock,), daemon=True).start()

    def _welcome(self, sock: socket.socket) -> None:
        try:
            tune(sock)
            connection = accept(sock, self._key, self._endpoint)
        except WireError as error:
            self._report(error)
            return
        finally:
            with self._lock:
                if sock in self._strangers:
                    self._strangers.remove(sock)
        self._serve(connection)

    def _report(self, error: WireError) -> None:
        with self._lock:
            self._refused += 1
            count, now = self._refused, time.monotonic()
            if now - self._reported < _REPORT_S:
                return
            self._reported = now
        self._say(f"{count} connection(s) refused so far. The last one: {error}")


def _hang_up(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads it, which closes it
    except OSError:
        pass  # it has just been closed
