"""Assigns this machine's GPUs to the nodes of a pool, and checks that there are enough."""

from __future__ import annotations

from skyward.engine import Engine, visible_gpus
from skyward.errors import EngineError, ProviderError
from skyward.model.accelerator import Accelerator
from skyward.nodes.node import Launch


def check_engine_gpus(engine: Engine, nodes: int, accelerator: Accelerator) -> None:
    """Check, before anything is built, that containers can get the GPUs asked for.

    Raises:
        EngineError: the engine gives containers no GPU.
        ProviderError: the accelerator is not NVIDIA's, or the machine has too few.
    """
    if not accelerator.cuda:
        raise ProviderError(f"sky.Docker() gives containers NVIDIA GPUs; {accelerator.name} is something else.")
    if engine.gives_gpus() is False:
        driver = "" if visible_gpus() else " The NVIDIA driver is not loaded on this machine either."
        raise EngineError(
            f"The pool asks for {accelerator.name}, but the Docker engine at {engine.url} gives containers no GPU: it "
            f"has no runtime named nvidia, and no nvidia-container-runtime-hook is on its PATH.{driver} Install the "
            "NVIDIA driver and the NVIDIA Container Toolkit, run `nvidia-ctk runtime configure --runtime=docker`, and "
            "restart the engine."
        )
    if visible_gpus() is not None:
        check_gpu_count(nodes, accelerator)


def check_gpu_count(nodes: int, accelerator: Accelerator) -> None:
    """Raise ProviderError if this machine has too few GPUs for all nodes."""
    present, wanted = visible_gpus() or 0, nodes * accelerator.count
    if present < wanted:
        raise ProviderError(
            f"The pool asks for {accelerator.count} x {accelerator.name} on each of {nodes} nodes, {wanted} in all; "
            f"this machine shows {present} GPUs. Ask for fewer nodes or fewer GPUs per node."
        )


def gpus_of(launch: Launch) -> tuple[int, ...]:
    """The indexes of the node's GPUs on this machine; no two nodes of a pool share one."""
    count = launch.accelerator.count if launch.accelerator else 0
    return tuple(range(launch.node * count, (launch.node + 1) * count))


def gpus_of_container(launch: Launch) -> int | tuple[int, ...] | None:
    """The GPUs to ask an engine for: the node's own, or only their number where this machine does not list them."""
    if launch.accelerator is None:
        return None
    return launch.accelerator.count if visible_gpus() is None else gpus_of(launch)
