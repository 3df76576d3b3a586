"""Addresses on which a runner's processes listen: a unix socket in the private run directory, else TCP on loopback.

An address is `unix:<file name>` or `tcp:<ip>:<port>`. The unix form is safer (the directory opens for its owner only)
and up to twice as fast.
"""

from __future__ import annotations

from pathlib import Path

from skyward.errors import WireError
from skyward.system import socket

_BACKLOG = 128
_SEND_BUFFER = 512 * 1024  # of a unix socket: half of that, or eight times as much, costs an SSH forward its pace


def listen(run_dir: Path, name: str) -> tuple[socket.socket, str]:
    """A listening socket and its address; falls back to TCP loopback where the directory takes no sockets."""
    path = run_dir / name
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)
        sock.bind(str(path))
        # The client's user may differ from the container's root; the directory above (0700) keeps everybody else out.
        path.chmod(0o666)
        sock.listen(_BACKLOG)
        return sock, f"unix:{name}"
    except OSError:
        sock.close()
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.bind(("127.0.0.1", 0))
    sock.listen(_BACKLOG)
    return sock, f"tcp:127.0.0.1:{sock.getsockname()[1]}"


def dial(run_dir: Path, address: str, timeout_s: float = 10.0) -> socket.socket:
    """A socket connected to an address of a runner whose run directory is `run_dir` on this machine.

    Raises:
        WireError: nothing listens there.
    """
    scheme, _, rest = address.partition(":")
    family = socket.AF_UNIX if scheme == "unix" else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.settimeout(timeout_s)
    try:
        if scheme == "unix":
            if "/" in rest:
                raise WireError(f"A runner announced the address {address!r}, which leaves its run directory.")
            sock.connect(str(run_dir / rest))
        else:
            host, _, port = rest.rpartition(":")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.connect((host, int(port)))
        tune(sock)
        return sock
    except OSError as error:
        sock.close()
        raise WireError(f"Nothing listens at {address} of this node ({error}); it may just have ended.") from error
    except BaseException:
        sock.close()
        raise


def tune(sock: socket.socket) -> None:
    """Room for large payloads, no delay for small ones; TCP finds its room by itself, unless it is told."""
    if sock.family == socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
    else:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
