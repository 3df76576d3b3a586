"""`python -m ...relay PORT`: a node's end of `skyward forward`, which leads from its standard streams to a port."""

from __future__ import annotations

import os
import sys

from skyward.system import socket
from skyward.wire.relay import Relay

_CHUNK = 1 << 18
_CONNECT_S = 10.0


def main() -> int:
    """Make connections to the port, until standard input ends."""
    port = int(sys.argv[1])

    def dial() -> socket.socket:
        sock = socket.create_connection(("localhost", port), _CONNECT_S)
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    relay = Relay(_write, dial)
    while data := os.read(0, _CHUNK):
        relay.feed(data)
    return 0


def _write(data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(1, left) :]


if __name__ == "__main__":
    sys.exit(main())
