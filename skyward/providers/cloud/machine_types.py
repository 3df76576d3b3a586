"""The machine types of a cloud that a pool can run on, by its requirements."""

from __future__ import annotations

from collections.abc import Sequence

from skyward.errors import ProviderError
from skyward.providers.base import PoolRequest
from skyward.providers.cloud.protocol import MachineType

_ARCHITECTURES = {"linux/amd64": "x86_64", "linux/arm64": "arm64"}
_MAX_TYPES = 6  # that are priced and tried; the next ones are several times as large
_CPU_WEIGHT, _GB_WEIGHT = 8.0, 1.0  # a processor costs about as much as 8 GiB: the order before prices are known
_MIN_CPUS, _MIN_GB = 2, 4.0


def suitable(listed: Sequence[MachineType], request: PoolRequest, region: str) -> list[MachineType]:
    """The types that are large enough for a pool's nodes, about the cheapest first; at most six.

    Without `cpus` and `memory_gb` a machine has at least 2 processors and 4 GiB. A type named by `machine` is taken
    whatever its size.

    Args:
        listed: the types of that name, or of the families that come into question.
        request: the pool.
        region: the cloud's region in sentences.

    Raises:
        ProviderError: there is none, or it has too few GPUs or another architecture.
    """
    machine, platform = request.machine, request.platform
    found = [
        each
        for each in listed
        if each.platform == platform
        and each.gpus >= request.gpus
        and (machine or each.cpus >= (request.cpus or _MIN_CPUS))
        and (machine or each.memory_gb >= (request.memory_gb or _MIN_GB))
    ]
    if not found:
        raise ProviderError(
            f"{region} has no machine type with {_requirements(request)} for {_ARCHITECTURES[platform]}; found "
            f"{', '.join(map(_size, listed[:4])) or 'none of that name'}. Ask for less, name another region, or set "
            "architecture=."
        )
    # a machine with fewer GPUs to spare comes before one with cheaper processors
    return sorted(found, key=lambda each: (each.gpus, each.cpus * _CPU_WEIGHT + each.memory_gb * _GB_WEIGHT))[
        :_MAX_TYPES
    ]


def _requirements(request: PoolRequest) -> str:
    accelerator, cpus, memory_gb = request.accelerator, request.cpus, request.memory_gb
    asked = [f"the name {request.machine}"] if request.machine else []
    asked += [f"{accelerator.name}:{accelerator.count}"] if accelerator else []
    asked += [f"{cpus:g} processors"] if cpus else []
    asked += [f"{memory_gb:.4g} GiB"] if memory_gb else []
    return ", ".join(asked) or f"{_MIN_CPUS} processors"


def _size(each: MachineType) -> str:
    gpus = f"{each.gpus} GPUs, " if each.gpus else ""
    return f"{each.name} ({gpus}{each.cpus} processors, {each.memory_gb:g} GB, {_ARCHITECTURES[each.platform]})"
