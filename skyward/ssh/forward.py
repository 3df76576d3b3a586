"""A listening socket that forwards each connection to a remote one, until it is closed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any, Self

from skyward.errors import SkywardError
from skyward.system import socket, threading

_CHUNK = 1 << 18


class Forward:
    """A listening socket whose connections are carried on until it is closed.

    Args:
        listener: the socket.
        dial: opens the remote connection for each local one: a socket, or an object with its methods. If it fails, the
            local connection is closed.
        errors: what remote connections raise if they break.
    """

    def __init__(
        self, listener: socket.socket, dial: Callable[[], Any], errors: tuple[type[Exception], ...] = ()
    ) -> None:
        self._listener, self._dial = listener, dial
        self._errors: tuple[type[Exception], ...] = (OSError, SkywardError, *errors)
        self._name = listener.getsockname()
        self._lock = threading.Lock()
        self._open: set[Any] = set()
        threading.Thread(target=self._accept, name="forward", daemon=True).start()

    @classmethod
    def on_loopback(cls, dial: Callable[[], Any]) -> Self:
        """Return a forward from a free port of 127.0.0.1, which only users of this machine can reach."""
        return cls(socket.create_server(("127.0.0.1", 0), backlog=128), dial)

    @property
    def port(self) -> int:
        """The number of its TCP port."""
        return int(self._name[1])

    def close(self) -> None:
        """Stop listening, and close all connections. Repeated calls do nothing."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        self._listener.close()
        with self._lock:
            left = list(self._open)
        for each in left:
            self._end(each)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._serve, args=(near,), name="forward in", daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        """Open the remote connection and copy in both directions (one thread per connection)."""
        with near:
            if near.family != socket.AF_UNIX:
                near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                far = self._dial()
            except self._errors:
                return  # the local end sees a closed connection, and may connect again
            with closing(far):
                with self._lock:
                    self._open |= {near, far}
                back = threading.Thread(target=self._copy, args=(far, near), name="forward out", daemon=True)
                back.start()
                self._copy(near, far)
                back.join()
                with self._lock:
                    self._open -= {near, far}

    def _copy(self, source: Any, target: Any) -> None:
        """Copy from one to the other until the data ends, and close that direction; after an error close both."""
        try:
            while data := source.recv(_CHUNK):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except self._errors:
            self._end(source)
            self._end(target)

    def _end(self, each: Any) -> None:
        with suppress(*self._errors):
            each.shutdown(socket.SHUT_RDWR)
