"""The network interface over which a node reaches the others of its pool. Linux; standard library only."""

from __future__ import annotations

import fcntl
import socket
import struct

from skyward.model.instance import InstanceInfo

_SIOCGIFADDR = 0x8915  # netdevice(7)
_SIOCGIFNETMASK = 0x891B
_ADDRESS = slice(20, 24)  # of struct ifreq: 16 bytes of name, then sockaddr_in with family and port before the address
_ANY_PORT = 9  # nothing is sent to it


def interface_of(info: InstanceInfo) -> str | None:
    """The interface to be named to a framework, None if it cannot be told.

    The one the pool knows of, else the one that owns the address from which the head is reached.
    """
    if info.network.interface is not None:
        return info.network.interface
    address = source_address(info.head_addr)
    return None if address is None else owner_of(address)


def source_address(destination: str) -> str | None:
    """The IPv4 address of this machine from which packets to another go; None if there is no way there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((destination, _ANY_PORT))  # of a datagram socket this asks for the route and sends nothing
        except OSError:
            return None
        address: str = probe.getsockname()[0]
        return address


def owner_of(address: str) -> str | None:
    """The interface that has this IPv4 address, else the one whose network it lies in (a second address of it)."""
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
    """An interface's first address, or its mask; None if it has none."""
    try:
        answer = fcntl.ioctl(probe.fileno(), request, struct.pack("256s", name.encode()[:15]))
    except OSError:
        return None
    number: int = struct.unpack("!I", answer[_ADDRESS])[0]
    return number
