"""`PortForward`: a port of this machine's loopback from which connections lead on to wherever `dial` connects."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from skyward.errors import SkywardError
from skyward.system import socket, threading

_WAITING = 128
_CHUNK = 1 << 18
_LOOPBACK = "127.0.0.1"


class PortForward:
    """A port here that leads to one elsewhere, until it is closed. Nobody but this machine's users reaches it.

    Args:
        dial: makes the connection for each one that comes; one that it cannot make ends the one that came.

    Attributes:
        port: its number, one that was free.
    """

    def __init__(self, dial: Callable[[], socket.socket]) -> None:
        self._dial = dial
        self._listener = socket.create_server((_LOOPBACK, 0), backlog=_WAITING)
        self.port = int(self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, name=f"forward {self.port}", daemon=True).start()

    def close(self) -> None:
        """Close the port, and end the connections that lead through it. Does nothing the second time."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        self._listener.close()
        with self._lock:
            left = list(self._open)
        for each in left:
            _end(each)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._serve, args=(near,), name=f"forward {self.port} in", daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        """Connect, and pass on what comes from here (a thread of each connection)."""
        with near:
            near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                far = self._dial()
            except (OSError, SkywardError):
                return  # the one that has connected to this port finds out, and connects again if it wants to
            with far:
                with self._lock:
                    self._open |= {near, far}
                back = threading.Thread(target=_copy, args=(far, near), name=f"forward {self.port} out", daemon=True)
                back.start()
                _copy(near, far)
                back.join()
                with self._lock:
                    self._open -= {near, far}


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Pass on what comes from one socket until it ends, then end the direction; an error ends both."""
    space = memoryview(bytearray(_CHUNK))
    try:
        while count := source.recv_into(space):
            target.sendall(space[:count])
        target.shutdown(socket.SHUT_WR)
    except OSError:
        _end(source)
        _end(target)


def _end(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
