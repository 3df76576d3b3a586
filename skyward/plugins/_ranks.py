"""How the ranks of a pool share their machines, and how they find each other for a framework.

A framework whose ranks cannot reach each other waits for minutes, and its error does not say which ones. In this
rendezvous every rank connects to rank 0 once before the framework does, and the error names those that could not.
Standard library only.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
import time
from pathlib import Path

from skyward.errors import PluginError
from skyward.model.instance import InstanceInfo
from skyward.runtime.ranks import gather

_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")  # quota and period of the container, in microseconds
_TRY_S = 10.0  # for a node to answer
_PAUSE_S = 0.1
_RANKS = 4096  # that may connect before the framework accepts; the kernel's limit is net.core.somaxconn
_SIOCGIFADDR = 0x8915  # netdevice(7)
_SIOCGIFNETMASK = 0x891B
_ADDRESS = slice(20, 24)  # of struct ifreq: 16 bytes of name, then sockaddr_in with family and port before the address
_ANY_PORT = 9  # nothing is sent to it


def nodes_here(info: InstanceInfo) -> int:
    """Return the number of the pool's nodes on this machine."""
    here = {peer.private_ip for peer in info.peers if peer.node == info.node}
    return max(1, sum(peer.private_ip in here for peer in info.peers))


def cpus(nodes: int) -> int:
    """Return the CPUs for one of `nodes` nodes on this machine, at least 1: its share, or a lower container limit."""
    share = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = max(1, share // nodes)
    try:
        quota, period = _CPU_MAX.read_text().split()
    except (OSError, ValueError):  # no container, or an older kernel
        return share
    return share if quota == "max" else max(1, min(share, int(quota) // int(period)))


def rendezvous(
    info: InstanceInfo, name: str, timeout_s: float | None = None, *, port: int | None = None
) -> tuple[str, int]:
    """Agree on the address and port at which rank 0 serves a framework. Every rank of the pool calls it.

    Args:
        info: this rank's place.
        name: the framework's name in errors.
        timeout_s: how long to wait for the other ranks; see `skyward.runtime.ranks.gather`.
        port: on rank 0, the port on which the framework already listens. None reserves a free one and releases it at
            the end, for the framework to open it.

    Returns:
        The head's address as the other nodes reach it, and the port.

    Raises:
        PluginError: a rank is missing, or cannot reach rank 0: the message names it.
    """
    leading = info.global_worker_index == 0
    # the kernel completes the connections of the others, who close first: the port is free at once afterwards
    reserved = listen(info.head_addr) if leading and port is None else None
    try:
        own = reserved.getsockname()[1] if reserved else port
        found: int = gather(own, name=f"{name}: port", timeout_s=timeout_s)[0]
        trouble = None if leading else _trouble(info.head_addr, found)
        report = None if trouble is None else f"rank {info.global_worker_index} on node {info.node} ({trouble})"
        failures = [each for each in gather(report, name=f"{name}: reach", timeout_s=timeout_s) if each is not None]
    finally:
        if reserved:
            reserved.close()
    if failures:
        raise PluginError(
            f"{name}: {', '.join(failures)} cannot reach rank 0 on node 0 at {info.head_addr}, TCP port {found}. "
            "Nodes must reach each other on every TCP port: look at the firewalls and security groups between them, "
            "and at whether that address is in the network they share."
        )
    return info.head_addr, found


def listen(address: str, preferred: int = 0) -> socket.socket:
    """Return a listening socket at this address only, or at all addresses if this machine does not have it.

    If the preferred port is taken, the kernel chooses one.
    """
    try:
        return socket.create_server((address, preferred), backlog=_RANKS)
    except OSError as error:
        if error.errno == errno.EADDRINUSE and preferred:
            return listen(address)
        if error.errno != errno.EADDRNOTAVAIL or not address:  # the head's address is translated on the way here
            raise
        return listen("", preferred)


def _trouble(address: str, port: int) -> str | None:
    """Return why a TCP connection cannot be made, None if it can."""
    deadline = time.monotonic() + _TRY_S
    while True:
        try:
            with socket.create_connection((address, port), max(_PAUSE_S, deadline - time.monotonic())):
                return None
        except OSError as error:
            if time.monotonic() + _PAUSE_S >= deadline or isinstance(error, ConnectionRefusedError):
                return str(error)
            time.sleep(_PAUSE_S)  # a route that is still being set up


def interface_of(info: InstanceInfo) -> str | None:
    """Return the interface through which this node reaches the others, for a framework's settings; None if unknown.

    It is the one known to the pool, else the one that has the address from which the head is reached.
    """
    if info.network.interface is not None:
        return info.network.interface
    address = source_address(info.head_addr)
    return None if address is None else owner_of(address)


def source_address(destination: str) -> str | None:
    """Return the source IPv4 address for packets to a destination; None if there is no route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((destination, _ANY_PORT))  # for a datagram socket this looks up the route and sends nothing
        except OSError:
            return None
        address: str = probe.getsockname()[0]
        return address


def owner_of(address: str) -> str | None:
    """Return the interface that has this IPv4 address, else the one whose network contains it (a second address)."""
    wanted = struct.unpack("!I", socket.inet_aton(address))[0]
    neighbour = None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            found, mask = _number(probe, _SIOCGIFADDR, name), _number(probe, _SIOCGIFNETMASK, name)
            if found == wanted:
                return name
            if found is not None and mask and found & mask == wanted & mask:
                neighbour = neighbour or name
    return neighbour


def _number(probe: socket.socket, request: int, name: str) -> int | None:
    """Return an interface's first address, or its mask; None if it has none."""
    try:
        answer = fcntl.ioctl(probe.fileno(), request, struct.pack("256s", name.encode()[:15]))
    except OSError:
        return None
    number: int = struct.unpack("!I", answer[_ADDRESS])[0]
    return number
