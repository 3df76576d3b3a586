"""`python -m ...stdio_proxy DIRECTORY ADDRESS`: standard streams on one side, a runner's socket on the other.

How a client reaches the sockets of a node in whose container it can do nothing but run programs. What passes is
authenticated by client and runner; this end holds no key.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from skyward.errors import WireError
from skyward.system import socket, threading
from skyward.wire.frames import dial

_CHUNK = 1 << 18


def main() -> int:
    """Pass bytes on in both directions until the runner closes."""
    try:
        sock = dial(Path(sys.argv[1]), sys.argv[2])
    except WireError as error:
        os.write(2, f"{error}\n".encode())
        return 1
    sock.settimeout(None)
    threading.Thread(target=_inwards, args=(sock,), daemon=True).start()
    try:
        while data := sock.recv(_CHUNK):
            _write(memoryview(data))
    except OSError:
        return 0  # one of the ends is gone
    return 0


def _inwards(sock: socket.socket) -> None:
    try:
        while data := os.read(0, _CHUNK):
            sock.sendall(data)
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # the runner is gone, which the other direction notices


def _write(data: memoryview) -> None:
    while data:
        data = data[os.write(1, data) :]


if __name__ == "__main__":
    sys.exit(main())
