"""The client's machine as the host of one pool's nodes: its ports and its GPUs.

The head's port is claimed so that no two pools on one machine get the same one: the client binds the UDP port with the
same number on loopback. This works across processes and users, and the kernel releases the port when the client ends
for whatever reason.
"""

from __future__ import annotations

import errno
import functools
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from skyward.engine import Engine, visible_gpus
from skyward.errors import EngineError, ProviderError
from skyward.model.spec import Accelerator, fits
from skyward.nodes.node import Launch, RunnerNode
from skyward.nodes.run_directory import PoolDirectory, sweep_orphans
from skyward.runner.config import GPUS_VAR
from skyward.system import socket

_PORTS = range(10_000, 30_000)
_TRIES = 200
_TAKEN = (errno.EADDRINUSE, errno.EACCES)


class LocalHost:
    """The client's machine, for one pool: the pool's run directory, the port of its head, and the start of its nodes.

    Args:
        pool: identifier of the pool.
        base: parent of the run directory.
        start: starts a node, given the pool's directory.
        name: the name under which the pool may be kept; None if it has none.

    Raises:
        ProviderError: the directory cannot be created.
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
        """Return a port that no other pool on this machine gets until it is released or replaced by another call."""
        earlier, self._port = self._port, claim_port()
        if earlier is not None:
            earlier.release()  # the port of a head that has been replaced
        return self._port.port

    def start(self, launch: Launch) -> RunnerNode:
        """Start a node.

        Raises:
            EngineError: the engine refused; nothing is left behind.
            NodeStartError: the node's process could not be started.
        """
        return self._start(launch, self.directory)

    def release(self) -> None:
        """Release the port, and remove the directory."""
        self.let_go()
        self.directory.remove()

    def let_go(self) -> None:
        """Release the port, and keep the directory for the next client."""
        if self._port is not None:
            self._port.release()


class PortClaim:
    """A TCP port that is free now, and that no other claim gets until this one is released.

    Attributes:
        port: the port number.
    """

    def __init__(self, port: int, holder: socket.socket) -> None:
        self.port = port
        self._holder = holder

    def release(self) -> None:
        """Release the port. Repeated calls do nothing."""
        self._holder.close()


def claim_port() -> PortClaim:
    """Claim a free TCP port of this machine below the kernel's range of ephemeral ports.

    Raises:
        ProviderError: no port could be found.
    """
    chosen = random.SystemRandom()  # unpredictable, and independent of user code that seeds `random`
    for _ in range(_TRIES):
        port = chosen.choice(_PORTS)
        holder = _hold(port)
        if holder is None:
            continue
        if _bindable(port):
            return PortClaim(port, holder)
        holder.close()
    raise ProviderError(
        f"No free port was found for a pool between {_PORTS[0]} and {_PORTS[-1]}. See with `ss -ltnu` what holds them."
    )


def _hold(port: int) -> socket.socket | None:
    holder = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        holder.bind(("127.0.0.1", port))
    except OSError:
        holder.close()
        return None
    return holder


def _bindable(port: int) -> bool:
    """Return whether a TCP server could bind the port on every interface."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(("", port))
        except OSError as error:
            if family == socket.AF_INET or error.errno in _TAKEN:
                return False  # other errors mean that the machine lacks IPv6, which does not matter
    return True


# memory -------------------------------------------------------------------------------------------------


def check_memory(engine: Engine, memory_gb: float) -> None:
    """Raise ProviderError if the engine's machine has less memory (GiB) than each node needs."""
    present = int(engine.info.get("MemTotal") or 0) / 1024**3
    if present and memory_gb > present:
        raise ProviderError(
            f"The pool asks for {memory_gb:,.4g} GiB of memory on each node; the machine of the Docker engine at "
            f"{engine.url} has {present:.4g}. Ask for less with memory=, or use a machine that has it."
        )


# GPUs ----------------------------------------------------------------------------------------------------------------


def check_engine_gpus(engine: Engine, nodes: int, accelerator: Accelerator) -> None:
    """Check, before anything is built, that containers can get the requested GPUs.

    Raises:
        EngineError: the engine cannot give containers GPUs.
        ProviderError: the accelerator is not NVIDIA's, or the machine has too few of them.
    """
    if not accelerator.cuda:
        raise ProviderError(f"sky.Docker() gives containers NVIDIA GPUs; {accelerator.name} is something else.")
    info = engine.info
    listed = "nvidia" in info.get("Runtimes", {}) or "nvidia" in str(info.get("DiscoveredDevices"))
    if not usable_gpus() and not listed:
        raise EngineError(
            f"The pool asks for {accelerator.name}, but this machine shows no GPU, and the Docker engine at "
            f"{engine.url} lists none. Install the NVIDIA driver and the NVIDIA Container Toolkit, run "
            "`nvidia-ctk runtime configure --runtime=docker`, and restart the engine."
        )
    if usable_gpus() is not None:
        check_gpu_count(nodes, accelerator)


def check_gpu_count(nodes: int, accelerator: Accelerator) -> None:
    """Raise ProviderError if this machine has too few GPUs of the requested kind for all nodes."""
    usable, wanted = usable_gpus() or (), nodes * accelerator.count
    if len(_fitting(accelerator)) >= wanted:
        return
    asked = f"The pool asks for {accelerator.count} x {accelerator.name} on each of {nodes} nodes, {wanted} in all;"
    where = f"this machine shows {shown([name for _, name in usable])}"
    if GPUS_VAR in os.environ:
        where += f" in {GPUS_VAR}={os.environ[GPUS_VAR]}"
    if len(usable) < wanted:
        without = "Leave accelerator= out, or use a machine that has them."
        raise ProviderError(f"{asked} {where}. {'Ask for fewer nodes or fewer GPUs per node.' if usable else without}")
    raise ProviderError(f"{asked} {where}. Name the accelerator that is there.")


def shown(names: Sequence[str]) -> str:
    """Return a description of GPUs, such as "2 NVIDIA H100 80GB HBM3"."""
    if not names or not all(names):
        return f"{len(names)} GPUs"
    return " and ".join(f"{count} {name}" for name, count in Counter(names).items())


def usable_gpus() -> tuple[tuple[str, str], ...] | None:
    """Return this client's usable GPUs: for each, its CUDA identifier and its name, "" if unknown.

    A `CUDA_VISIBLE_DEVICES` in the client's environment limits them. None if no driver is found.
    """
    chosen = os.environ.get(GPUS_VAR)
    if found := _by_driver(chosen):
        return found
    count = visible_gpus()
    if count is None:
        return None
    if chosen is None:
        called = list(map(str, range(count)))
    else:
        from skyward.runner.usage import listed

        called = listed(chosen)
    return tuple((each, "") for each in called)


@functools.cache
def _by_driver(chosen: str | None) -> tuple[tuple[str, str], ...]:
    """Return the GPUs that the driver lists, even where /proc lists none, as in WSL."""
    from skyward.runner.usage import gpus

    return tuple((gpu.called, gpu.name) for gpu in gpus(chosen))


def _fitting(accelerator: Accelerator) -> list[str]:
    return [called for called, name in usable_gpus() or () if fits(accelerator, name)]


def gpus_of(launch: Launch) -> tuple[str, ...]:
    """Return the CUDA identifiers of the node's GPUs on this machine; the nodes of a pool share none."""
    if launch.accelerator is None:
        return ()
    count = launch.accelerator.count
    return tuple(_fitting(launch.accelerator)[launch.node * count : (launch.node + 1) * count])


def gpus_of_container(launch: Launch) -> int | tuple[str, ...] | None:
    """Return the GPUs to request of an engine: the node's own, or their number if this machine does not list them."""
    if launch.accelerator is None:
        return None
    return launch.accelerator.count if usable_gpus() is None else gpus_of(launch)
