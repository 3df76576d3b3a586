"""Claims TCP ports for the rendezvous of frameworks, so that no two pools on one machine get the same.

The client holds a claim by binding the UDP port of the same number on loopback. That works across processes and users,
and the kernel releases it when the client ends, however it ends.
"""

from __future__ import annotations

import errno
import random
from itertools import chain
from pathlib import Path

from skyward.errors import ProviderError
from skyward.system import socket

_LOWEST, _HIGHEST = 10_000, 65_535
_TRIES = 50  # ports chosen at random, before all are tried in order
_TAKEN = (errno.EADDRINUSE, errno.EACCES)


class PortClaim:
    """A TCP port that is free now and that no other claim names until this one is released.

    Attributes:
        port: the number.
    """

    def __init__(self, port: int, holder: socket.socket) -> None:
        self.port = port
        self._holder = holder

    def release(self) -> None:
        """Release the port; nothing happens the second time."""
        self._holder.close()


def claim_port() -> PortClaim:
    """Claim a free TCP port of this machine outside the range from which the kernel hands out ports of its own.

    Raises:
        ProviderError: no port could be found.
    """
    candidates = _candidates()
    # unpredictable, and independent of user code that seeds `random`; a shuffle of all of them would take 0.1 s
    chosen = random.SystemRandom()
    first, start = chosen.sample(candidates, min(_TRIES, len(candidates))), chosen.randrange(len(candidates))
    for port in chain(first, candidates[start:], candidates[:start]):
        holder = _hold(port)
        if holder is None:
            continue
        if _bindable(port):
            return PortClaim(port, holder)
        holder.close()
    raise ProviderError(
        f"No free port was found for a pool among all {len(candidates)} between {_LOWEST} and {_HIGHEST}. "
        "See with `ss -ltnu` what holds them."
    )


def _candidates(setting: Path = Path("/proc/sys/net/ipv4/ip_local_port_range")) -> list[int]:
    try:
        low, high = map(int, setting.read_text().split())
    except OSError:
        low, high = 49_152, 65_535  # the range registered for that purpose
    outside = [*range(_LOWEST, low), *range(high + 1, _HIGHEST + 1)]
    return outside or list(range(_LOWEST, _HIGHEST + 1))  # a machine may give the kernel everything


def _hold(port: int) -> socket.socket | None:
    holder = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        holder.bind(("127.0.0.1", port))
    except OSError:
        holder.close()
        return None
    return holder


def _bindable(port: int) -> bool:
    """Whether a TCP server could have the port on every interface."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(("", port))
        except OSError as error:
            if family == socket.AF_INET or error.errno in _TAKEN:
                return False  # a machine without IPv6 fails in other ways, and that does not matter
    return True
