"""Accepts connections and authenticates each in a thread of its own, before anything else of it is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from skyward.errors import WireError, explained
from skyward.system import socket, threading, time

_MAX_PENDING = 8  # connections that have not authenticated yet
_REPORT_S = 60.0  # at most one line about refused connections in this time
_RETRY_S = 0.1  # until the next attempt where the process has no descriptor left

C = TypeVar("C")


def _as_it_is(sock: socket.socket) -> socket.socket:
    return sock


class Acceptor(Generic[C]):
    """Accepts on one socket for as long as the process lives.

    Args:
        listener: the listening socket.
        authenticate: given a connection, finds out who it is, within a time of its own; closes it and raises WireError
            if that is nobody it knows. Called in a thread of the connection's own.
        serve: called with what `authenticate` has made of it, in the same thread.
        say: called with a line for people when connections were refused.
        wrap: called with each socket as soon as it is accepted, without waiting for anything.
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
        self._lock = threading.Lock()  # guards what follows
        self._pending: list[socket.socket] = []  # the oldest first
        self._refused = 0
        self._reported = float("-inf")

    def run(self) -> None:
        """Take connections (a thread of its own). Of too many that have not authenticated, the oldest is dropped."""
        while True:
            try:
                sock = self._accept()
            except OSError:  # its peer was faster
                continue
            with self._lock:
                self._pending.append(sock)
                if len(self._pending) > _MAX_PENDING:
                    shut(self._pending.pop(0))
            try:
                threading.Thread(target=self._welcome, args=(sock,), daemon=True).start()
            except RuntimeError as error:  # one connection fewer: others can come when threads have ended
                self._drop(sock)
                sock.close()
                self._report(explained(error))

    def _accept(self) -> socket.socket:
        try:
            sock, _ = self._listener.accept()
        except ConnectionAbortedError:
            raise
        except OSError:
            time.sleep(_RETRY_S)
            raise
        try:
            return self._wrap(sock)
        except BaseException:
            sock.close()
            raise

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
    """End a connection in both directions, which wakes the thread that reads it; nothing happens if it has ended."""
    try:
        # the plain socket's own shutdown: after that of TLS, a later read would take what comes for unencrypted
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
    except OSError:
        pass  # it has just been closed
