"""Receives what runs of calls tell of themselves, over one TCP connection per process of a node."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from tests.chaos.history import Run

_READ = 1 << 20


class Collector:
    """Listens on one address from its creation to `close`.

    Attributes:
        address: where nodes reach it.
    """

    def __init__(self, host: str) -> None:
        self._listener = socket.create_server((host, 0), backlog=128)
        name = self._listener.getsockname()
        self.address: tuple[str, int] = (str(name[0]), int(name[1]))
        self._received: dict[socket.socket, bytearray] = {}
        self._ended: list[bytearray] = []
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._receive, name="chaos-collector", daemon=True)
        self._thread.start()

    def wait_ended(self, within_s: float) -> int:
        """Wait until every process that has ever connected has ended; how many have not in time."""
        deadline = time.monotonic() + within_s
        while self._received and time.monotonic() < deadline:
            time.sleep(0.02)
        return len(self._received)

    def close(self) -> tuple[Run, ...]:
        """Stop listening; all runs that were told of, in no particular order."""
        self._wake.close()
        self._thread.join()
        return tuple(run for data in (*self._ended, *self._received.values()) for run in parse(bytes(data)))

    def _receive(self) -> None:
        while True:
            for key, _ in self._selector.select():
                found = key.fileobj
                assert isinstance(found, socket.socket)
                if found is self._woken:
                    self._end()
                    return
                if found is self._listener:
                    connection, _ = self._listener.accept()
                    self._received[connection] = bytearray()
                    self._selector.register(connection, selectors.EVENT_READ)
                else:
                    self._read(found)

    def _read(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(_READ)
        except OSError:  # its host lost power
            data = b""
        if data:
            self._received[connection] += data
            return
        self._selector.unregister(connection)
        connection.close()
        self._ended.append(self._received.pop(connection))

    def _end(self) -> None:
        for connection in (self._listener, self._woken, *self._received):
            connection.close()
        self._selector.close()


def parse(data: bytes) -> Iterator[Run]:
    """The runs in what one process has written; its last line may be cut short."""
    open_runs: defaultdict[int, list[tuple[str, float]]] = defaultdict(list)
    for line in data.decode().split("\n")[:-1]:
        what, number, process, at = line.split()
        if what == "B":
            open_runs[int(number)].append((process, float(at)))
        else:
            process, began_at = open_runs[int(number)].pop(0)
            yield Run(int(number), process, began_at, float(at))
    for call, begun in open_runs.items():
        yield from (Run(call, process, began_at) for process, began_at in begun)


@contextmanager
def collecting(host: str) -> Iterator[Collector]:
    """A collector that is closed at the end, whatever happens."""
    collector = Collector(host)
    try:
        yield collector
    finally:
        if collector._thread.is_alive():
            collector.close()
