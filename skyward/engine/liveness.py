"""Connections to an engine that tell a slow answer from a frozen engine.

A daemon that is stopped, or hangs, still takes connections: the kernel does that for it. Its answer then never comes,
while a pull or a start on a busy machine may rightly take minutes. So after some silence the engine is pinged on
another connection, which a live one answers at once whatever else it does.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from skyward.errors import EngineMissingError

_SILENCE_S, _PING_S = 3.0, 7.0  # ten seconds in all, of the fifteen that opening or leaving a pool may take
_AGAIN_S = 0.3  # both of them, for an engine that was frozen a moment ago: there may be several more questions
_REMEMBERED_S = 30.0
_frozen: dict[str, float] = {}  # engines, and when they were last found frozen


Waiting = Callable[[float], None]


class LiveSocket(socket.socket):
    """A connection to an engine. With a time limit on it, silence is looked into; without one it is just a socket.

    Attributes:
        engine: the engine's address, for messages.
        path: its socket on this machine; None for one that cannot be pinged.
        waiting: called again and again during silence, with its seconds, instead of the time limit; what it raises ends
            the wait. For answers that the engine itself waits for.
    """

    engine: str
    path: Path | None = None
    waiting: Waiting | None = None

    @classmethod
    def connected(cls, path: Path, engine: str, timeout_s: float | None) -> LiveSocket:
        """A connection to the engine that listens there; raises OSError."""
        sock = cls(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.path, sock.engine = path, engine
        try:
            sock.settimeout(timeout_s)
            sock.connect(str(path))
        except BaseException:
            sock.close()
            raise
        return sock

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Receive as a socket does.

        Raises:
            EngineMissingError: the engine is frozen.
            TimeoutError: it is not, and yet has not answered within the time limit.
        """
        self._wait(select.POLLIN, "no answer")
        return super().recv_into(buffer, nbytes, flags)

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Send as a socket does, while the engine takes what it is sent.

        Raises:
            EngineMissingError: the engine is frozen.
            TimeoutError: it is not, and yet has taken nothing within the time limit.
        """
        left = memoryview(data).cast("B")
        while left:
            self._wait(select.POLLOUT, "nothing taken")
            left = left[self.send(left, flags) :]

    def _wait(self, event: int, failing: str) -> None:
        """Until the engine answers or takes something; not at all without a time limit."""
        limit_s = self.gettimeout()
        if limit_s is None:
            return
        began = time.monotonic()
        poller = select.poll()
        poller.register(self, event)
        while not poller.poll(min(_patience(self.engine, _SILENCE_S), limit_s) * 1000):
            silent_s = time.monotonic() - began
            if self.waiting is None and silent_s > limit_s:
                raise TimeoutError(f"{failing} within {limit_s:g} s")
            if self.path is not None:
                check_alive(self.path, self.engine)
            if self.waiting is not None:
                self.waiting(silent_s)


def check_alive(path: Path, engine: str) -> None:
    """Check that an engine answers a ping.

    Raises:
        EngineMissingError: it does not.
    """
    if _answers(path, _patience(engine, _PING_S)):
        _frozen.pop(engine, None)
        return
    _frozen[engine] = time.monotonic()
    raise EngineMissingError(
        f"The Docker engine at {engine} is frozen: it takes connections, but answers neither what it is asked nor a "
        "ping. Let it go on or restart it (for example `systemctl restart docker`). Containers of pools that could not "
        "be removed end by their lease."
    )


def _answers(path: Path, limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(limit_s)
            sock.connect(str(path))
            sock.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
            sock.settimeout(max(0.01, deadline - time.monotonic()))
            return bool(sock.recv(1))
    except TimeoutError:
        return False
    except OSError:
        return True  # it has ended, which the connection in question tells in better words


def _patience(engine: str, usual_s: float) -> float:
    recently = time.monotonic() - _frozen.get(engine, -_REMEMBERED_S) < _REMEMBERED_S
    return _AGAIN_S if recently else usual_s
