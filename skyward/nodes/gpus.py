"""Assigns this machine's GPUs to the nodes of a pool, and checks that there are enough."""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Sequence

from skyward.engine import Engine, visible_gpus
from skyward.errors import EngineError, ProviderError
from skyward.model.spec import Accelerator, fits
from skyward.nodes.node import Launch
from skyward.runner.config import GPUS_VAR


def check_engine_gpus(engine: Engine, nodes: int, accelerator: Accelerator) -> None:
    """Check, before anything is built, that containers can get the GPUs asked for.

    Raises:
        EngineError: the engine gives containers no GPU.
        ProviderError: the accelerator is not NVIDIA's, or the machine has too few of it.
    """
    if not accelerator.cuda:
        raise ProviderError(f"sky.Docker() gives containers NVIDIA GPUs; {accelerator.name} is something else.")
    if engine.gives_gpus() is False:
        driver = "" if usable_gpus() else " The NVIDIA driver is not loaded on this machine either."
        raise EngineError(
            f"The pool asks for {accelerator.name}, but the Docker engine at {engine.url} gives containers no GPU: it "
            f"has no runtime named nvidia, and no nvidia-container-runtime-hook is on its PATH.{driver} Install the "
            "NVIDIA driver and the NVIDIA Container Toolkit, run `nvidia-ctk runtime configure --runtime=docker`, and "
            "restart the engine."
        )
    if usable_gpus() is not None:
        check_gpu_count(nodes, accelerator)


def check_gpu_count(nodes: int, accelerator: Accelerator) -> None:
    """Raise ProviderError if this machine has too few GPUs of the kind asked for, for all nodes."""
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
    """GPUs in words, such as "2 NVIDIA H100 80GB HBM3"."""
    if not names or not all(names):
        return f"{len(names)} GPUs"
    return " and ".join(f"{count} {name}" for name, count in Counter(names).items())


def usable_gpus() -> tuple[tuple[str, str], ...] | None:
    """The GPUs here that programs of this client use: how CUDA calls each, and its name, "" where not known.

    A `CUDA_VISIBLE_DEVICES` of the client's environment chooses them. None where no driver shows itself.
    """
    chosen = os.environ.get(GPUS_VAR)
    if found := _by_nvml(chosen):
        return found
    count = visible_gpus()
    if count is None:
        return None
    if chosen is None:
        called = list(map(str, range(count)))
    else:
        from skyward.runner.nvml import listed

        called = listed(chosen)
    return tuple((each, "") for each in called)


@functools.cache
def _by_nvml(chosen: str | None) -> tuple[tuple[str, str], ...]:
    """What NVML lists: also where /proc has nothing, as in WSL."""
    from skyward.runner.nvml import Gpus  # a pool without GPUs never needs ctypes

    return Gpus(visible=chosen).names


def _fitting(accelerator: Accelerator) -> list[str]:
    return [called for called, name in usable_gpus() or () if fits(accelerator, name)]


def gpus_of(launch: Launch) -> tuple[str, ...]:
    """The node's GPUs, as CUDA calls them on this machine; no two nodes of a pool share one."""
    if launch.accelerator is None:
        return ()
    count = launch.accelerator.count
    return tuple(_fitting(launch.accelerator)[launch.node * count : (launch.node + 1) * count])


def gpus_of_container(launch: Launch) -> int | tuple[str, ...] | None:
    """The GPUs to ask an engine for: the node's own, or only their number where this machine does not list them."""
    if launch.accelerator is None:
        return None
    return launch.accelerator.count if usable_gpus() is None else gpus_of(launch)
