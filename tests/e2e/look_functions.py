"""Functions that look at a node from inside, for `test_look_in.py`."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import skyward as sky


@sky.compute
def place() -> dict[str, str]:
    """Where a call is, and what it sees."""
    names = ("PATH", "GREETING", "COMPUTE_POOL", "HOME")
    return {"cwd": str(Path.cwd()), "python": sys.executable, **{name: os.environ.get(name, "") for name in names}}


@sky.compute
def processes(mark: str) -> list[str]:
    """The command lines on this node with a word in them, this process apart."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            line = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if mark in line and int(path.name) != os.getpid():
            found.append(line)
    return found


@sky.compute
def end_first_node() -> None:
    """End the runner of node 0, and so the node."""
    info = sky.instance_info()
    assert info
    if info.node == 0:
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)


@sky.compute
def serve() -> int:
    """Listen on the node's loopback; each connection gets back all it has sent, once it has sent all. The port."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=100)

    def answer(sock: socket.socket) -> None:
        with sock:
            data = b"".join(iter(lambda: sock.recv(1 << 16), b""))
            sock.sendall(data[::-1])

    def accept() -> None:
        while True:
            sock, _ = listener.accept()
            threading.Thread(target=answer, args=(sock,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return int(listener.getsockname()[1])
