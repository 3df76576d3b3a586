"""The client's machine as the host of one pool's nodes: its ports, memory and GPUs."""

from __future__ import annotations

import functools
import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from skyward.engine import Engine
from skyward.errors import EngineError, ProviderError
from skyward.model.spec import Accelerator, fits
from skyward.nodes.node import Launch, RunnerNode
from skyward.nodes.run_directory import PoolDirectory, sweep_orphans
from skyward.runner.config import GPUS_VAR
from skyward.system import socket

_PORTS = range(10_000, 30_000)
_TRIES = 200


class LocalHost:
    """The client's machine, for one pool: the pool's run directory, and the start of its nodes.

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

    @property
    def name(self) -> str:
        """The machine's name."""
        return socket.gethostname()

    def claim_port(self) -> int:
        """Return a free port of this machine."""
        return claim_port()

    def start(self, launch: Launch) -> RunnerNode:
        """Start a node.

        Raises:
            EngineError: the engine refused; nothing is left behind.
            NodeStartError: the node's process could not be started.
        """
        return self._start(launch, self.directory)


def claim_port() -> int:
    """Return a free TCP port of this machine below the kernel's range of ephemeral ports.

    It is chosen at random, so that two pools hardly ever get the same one.

    Raises:
        ProviderError: no port could be found.
    """
    chosen = random.SystemRandom()  # independent of user code that seeds `random`
    for _ in range(_TRIES):
        port = chosen.choice(_PORTS)
        if _bindable(port):
            return port
    raise ProviderError(
        f"No free port was found for a pool between {_PORTS[0]} and {_PORTS[-1]}. See with `ss -ltn` what holds them."
    )


def _bindable(port: int) -> bool:
    """Return whether a TCP server could bind the port on every interface."""
    try:
        socket.create_server(("", port)).close()
    except OSError:
        return False
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
    there = " and ".join(f"{count} {name}" for name, count in Counter(name for _, name in usable).items())
    where = f"this machine shows {there or '0 GPUs'}"
    if GPUS_VAR in os.environ:
        where += f" in {GPUS_VAR}={os.environ[GPUS_VAR]}"
    if len(usable) < wanted:
        without = "Leave accelerator= out, or use a machine that has them."
        raise ProviderError(f"{asked} {where}. {'Ask for fewer nodes or fewer GPUs per node.' if usable else without}")
    raise ProviderError(f"{asked} {where}. Name the accelerator that is there.")


def usable_gpus() -> tuple[tuple[str, str], ...] | None:
    """Return this client's usable GPUs: for each, its CUDA identifier and its name. None if no driver lists any.

    A `CUDA_VISIBLE_DEVICES` in the client's environment limits them.
    """
    return _by_driver(os.environ.get(GPUS_VAR)) if _by_driver(None) else None


@functools.cache
def _by_driver(chosen: str | None) -> tuple[tuple[str, str], ...]:
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
