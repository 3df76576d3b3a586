"""The client's own machine as the host of one pool's nodes, and checks that it can run what the pool asks for.

The port of a pool's head is claimed, so that no two pools on one machine get the same: the client binds the UDP port of
the same number on loopback. That works across processes and users, and the kernel releases it when the client ends,
however it ends.
"""

from __future__ import annotations

import errno
import os
import random
import struct
import subprocess
from collections.abc import Callable
from itertools import chain
from pathlib import Path

from skyward.engine import Engine
from skyward.errors import ProviderError
from skyward.model.image_fields import platform_of
from skyward.nodes.node import Launch, RunnerNode
from skyward.nodes.run_directory import PoolDirectory, sweep_orphans
from skyward.system import socket

_LOWEST, _HIGHEST = 10_000, 65_535
_TRIES = 50  # ports chosen at random, before all are tried in order
_TAKEN = (errno.EADDRINUSE, errno.EACCES)
_ENTRY = 0x400000
# per platform its number in the ELF format, and machine code that ends a process with exit status 0
_EXITS = {
    "linux/amd64": (62, bytes.fromhex("31ff b83c000000 0f05")),
    "linux/arm64": (183, bytes.fromhex("000080d2 a80b80d2 010000d4")),
}


class LocalHost:
    """The client's own machine, for one pool: its run directory, the port of its head, and what starts its nodes.

    Args:
        pool: identifier of the pool.
        base: where its run directory is made.
        start: starts a node in the pool's directory.
        name: that of a pool which may be kept; None where the pool has none.

    Raises:
        ProviderError: the directory cannot be made.
    """

    address = "127.0.0.1"  # all nodes are on this machine

    def __init__(
        self, pool: str, base: Path, start: Callable[[Launch, PoolDirectory], RunnerNode], name: str | None = None
    ) -> None:
        sweep_orphans()
        self.directory = PoolDirectory.create(pool, base, name)
        self._start = start
        self._port: PortClaim | None = None

    @property
    def name(self) -> str:
        """The machine's name."""
        return socket.gethostname()

    def claim_port(self) -> int:
        """A port that no other pool on this machine gets until this one is released or claims another."""
        earlier, self._port = self._port, claim_port()
        if earlier is not None:
            earlier.release()  # that of a head that has been replaced
        return self._port.port

    def start(self, launch: Launch) -> RunnerNode:
        """Start a node.

        Raises:
            EngineError: the engine refuses; nothing is left.
            NodeStartError: its process could not be started.
        """
        return self._start(launch, self.directory)

    def release(self) -> None:
        """Release the port, and remove the directory."""
        self.let_go()
        self.directory.remove()

    def let_go(self) -> None:
        """Release the port; the directory stays, for the next client."""
        if self._port is not None:
            self._port.release()


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


def check_cpus(engine: Engine, cpus: float) -> None:
    """Raise ProviderError if the engine's machine has fewer processors than each node is to have."""
    present = int(engine.info.get("NCPU") or 0)
    if present and cpus > present:
        raise ProviderError(
            f"The pool asks for {cpus:g} CPUs on each node; the machine of the Docker engine at {engine.url} has "
            f"{present}. Ask for fewer with cpu=, or use a machine that has them."
        )


def check_memory(engine: Engine, memory_gb: float) -> None:
    """Raise ProviderError if the engine's machine has less memory (GiB) than each node is to have."""
    present = int(engine.info.get("MemTotal") or 0) / 1024**3
    if present and memory_gb > present:
        raise ProviderError(
            f"The pool asks for {memory_gb:,.4g} GiB of memory on each node; the machine of the Docker engine at "
            f"{engine.url} has {present:.4g}. Ask for less with memory=, or use a machine that has it."
        )


def check_platform(platform: str) -> None:
    """Raise ProviderError if this machine runs no programs of a platform, by itself or by emulation."""
    own = platform_of(None)
    if platform == own or runs(platform) is not False:
        return
    raise ProviderError(
        f"The pool asks for nodes of {platform}, and this machine runs programs of {own} only. Leave out architecture= "
        "and Image(platform=...), use a provider that has such machines, or install their emulation here (the packages "
        "qemu-user-static and binfmt-support of Debian and Ubuntu)."
    )


def runs(platform: str) -> bool | None:
    """Whether the kernel starts a program of a platform; None where that cannot be tried.

    What is registered with binfmt_misc cannot be read everywhere, least of all in containers: so it is tried.
    """
    if platform not in _EXITS or not hasattr(os, "memfd_create"):  # which is Linux' alone
        return None
    file = os.memfd_create("exit")
    try:
        os.write(file, _program(*_EXITS[platform]))
        return subprocess.run([str(Path(f"/proc/self/fd/{file}"))], pass_fds=[file], check=False).returncode == 0
    except OSError as error:
        return False if error.errno == errno.ENOEXEC else None
    finally:
        os.close(file)


def _program(machine: int, code: bytes) -> bytes:
    """An ELF file of one segment, which is loaded and run from its start."""
    size, begin = 120 + len(code), _ENTRY + 120
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    head = struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, begin, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _ENTRY, _ENTRY, size, size, 0x1000)
    return ident + head + segment + code
