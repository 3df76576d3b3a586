"""Where the ranks of a framework meet: a port that rank 0 claims, that all learn, and that all try before it is used.

A framework whose ranks cannot reach each other waits for minutes and then blames nobody. Here every rank connects once,
and the error names those that could not, and what to look at. Standard library only.
"""

from __future__ import annotations

import errno
import socket
import threading
import time

from skyward.errors import PluginError
from skyward.model.instance import InstanceInfo
from skyward.runtime.group import gather

_TRY_S = 10.0  # a node that does not answer within this is not going to
_PAUSE_S = 0.1


def meet(info: InstanceInfo, name: str, timeout_s: float | None = None, *, port: int | None = None) -> tuple[str, int]:
    """Agree on the address and port at which rank 0 serves a framework. Every rank of the pool calls it.

    Args:
        info: this rank's place.
        name: the framework, as errors call it.
        timeout_s: how long to wait for the other ranks; see `skyward.runtime.group.gather`.
        port: on rank 0, the port on which the framework listens already. None claims a free one and gives it up at
            the end, for the framework to open it; it is none of another framework or pool.

    Returns:
        The head's address as the other nodes reach it, and the port.

    Raises:
        PluginError: a rank is missing, or cannot reach rank 0: the message names it.
    """
    leading = info.global_worker_index == 0
    claim = _Claim(listen(info.head_addr)) if leading and port is None else None
    try:
        own = claim.port if claim else port
        found: int = gather(own, name=f"{name}: port", timeout_s=timeout_s)[0]
        trouble = None if leading else _trouble(info.head_addr, found)
        report = None if trouble is None else f"rank {info.global_worker_index} on node {info.node} ({trouble})"
        failures = [each for each in gather(report, name=f"{name}: reach", timeout_s=timeout_s) if each is not None]
    finally:
        if claim:
            claim.give_up()
    if failures:
        raise PluginError(
            f"{name}: {', '.join(failures)} cannot reach rank 0 on node 0 at {info.head_addr}, TCP port {found}. "
            "Nodes must reach each other on every TCP port: look at the firewalls and security groups between them, "
            "and at whether that address is in the network they share."
        )
    return info.head_addr, found


def listen(address: str, preferred: int = 0) -> socket.socket:
    """A listening socket at an address of this machine only, or everywhere if it has no such address itself.

    On a port of the kernel's choice if the preferred one is taken.
    """
    try:
        return socket.create_server((address, preferred))
    except OSError as error:
        if error.errno == errno.EADDRINUSE and preferred:
            return listen(address)
        if error.errno != errno.EADDRNOTAVAIL or not address:  # translated on the way here, say
            raise
        return listen("", preferred)


class _Claim:
    """A TCP port that is listened on until it is given up, so that the others can try to connect."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.port: int = listener.getsockname()[1]
        threading.Thread(target=self._welcome, name=f"skyward meeting {self.port}", daemon=True).start()

    def give_up(self) -> None:
        """Close the port."""
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts, which closing alone does not
        self._listener.close()

    def _welcome(self) -> None:
        while True:
            try:
                visitor, _ = self._listener.accept()
            except OSError:
                return  # given up
            with visitor:
                visitor.settimeout(_TRY_S)
                try:
                    visitor.recv(1)  # the visitor hangs up first: whoever does keeps the port busy for a minute
                except OSError:
                    continue


def _trouble(address: str, port: int) -> str | None:
    """Why a TCP connection cannot be made, None if it can."""
    deadline = time.monotonic() + _TRY_S
    while True:
        try:
            with socket.create_connection((address, port), max(_PAUSE_S, deadline - time.monotonic())):
                return None
        except OSError as error:
            if time.monotonic() + _PAUSE_S >= deadline or isinstance(error, ConnectionRefusedError):
                return str(error)
            time.sleep(_PAUSE_S)  # a route that is still being set up
