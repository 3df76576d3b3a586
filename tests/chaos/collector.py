"""Receives what runs of calls tell of themselves, over one TCP connection per process of a node."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from tests.chaos.history import Run

_READ = 1 << 20


class Collector(socketserver.ThreadingTCPServer):
    """Listens on one address from its creation to `close`.

    Attributes:
        address: where nodes reach it.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str) -> None:
        super().__init__((host, 0), _Connection)
        self.address: tuple[str, int] = (str(self.server_address[0]), int(self.server_address[1]))
        self.received: dict[socket.socket, bytearray] = {}
        self.open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), name="chaos-collector", daemon=True)
        self._thread.start()

    def wait_ended(self, within_s: float) -> int:
        """Wait until every process that has ever connected has ended; how many have not in time."""
        deadline = time.monotonic() + within_s
        while self.open and time.monotonic() < deadline:
            time.sleep(0.02)
        return len(self.open)

    def close(self) -> tuple[Run, ...]:
        """Stop listening; all runs that were told of, in no particular order."""
        self.shutdown()
        self._thread.join()
        self.server_close()
        return tuple(run for data in list(self.received.values()) for run in parse(bytes(data)))


class _Connection(socketserver.BaseRequestHandler):
    server: Collector

    def handle(self) -> None:
        """Read what one process tells until it ends."""
        received = self.server.received[self.request] = bytearray()
        self.server.open.add(self.request)
        try:
            while data := self.request.recv(_READ):
                received += data
        except OSError:  # its host lost power
            pass
        finally:
            self.server.open.discard(self.request)


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
