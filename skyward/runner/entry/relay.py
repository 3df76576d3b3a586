"""`python -m ...relay DIRECTORY ADDRESS`: connects its standard streams to a runner's socket.

It is for containers in which a client can only run programs. The data is authenticated by client and runner; this
program holds no key.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from skyward.errors import WireError
from skyward.system import socket, threading
from skyward.wire.frames import dial

_CHUNK = 1 << 18


def main() -> int:
    """Connect to the socket, and pass bytes on until the runner closes it."""
    try:
        sock = dial(Path(sys.argv[1]), sys.argv[2])
    except WireError as error:
        os.write(2, f"{error}\n".encode())
        return 1
    sock.settimeout(None)
    pass_bytes(sock, at_end=socket.SHUT_RDWR)
    return 0


def pass_bytes(sock: socket.socket, at_end: int = socket.SHUT_WR) -> None:
    """Pass bytes between the standard streams and a socket until the socket ends.

    Args:
        sock: the socket.
        at_end: how it is shut down when standard input ends.
    """
    threading.Thread(target=_pass_inwards, args=(sock, at_end), daemon=True).start()
    with suppress(OSError):  # one of the ends has closed
        while data := sock.recv(_CHUNK):
            left = memoryview(data)
            while left:
                left = left[os.write(1, left) :]


def _pass_inwards(sock: socket.socket, at_end: int) -> None:
    with suppress(OSError):  # the other end has closed it, which the other direction notices
        while data := os.read(0, _CHUNK):
            sock.sendall(data)
        sock.shutdown(at_end)


if __name__ == "__main__":
    sys.exit(main())
