"""Which instance types a pool can run on: by the accelerator's name, or by processors and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from skyward.errors import ConfigError, ProviderError
from skyward.model.accelerator import Accelerator
from skyward.providers.aws.api import Api
from skyward.providers.aws.terms import MachineType

# families that have a GPU, by its common name
_FAMILIES: Mapping[str, tuple[str, ...]] = {
    "T4": ("g4dn",), "T4G": ("g5g",), "A10G": ("g5",), "L4": ("g6", "gr6"), "L40S": ("g6e",),
    "K80": ("p2",), "V100": ("p3", "p3dn"), "A100": ("p4d", "p4de"), "A100-80GB": ("p4de",),
    "H100": ("p5",), "H200": ("p5e", "p5en"), "B200": ("p6-b200",), "B300": ("p6-b300",),
}  # fmt: skip
_PLAIN = {
    "linux/amd64": ("c7i", "m7i", "r7i", "c7a", "m7a", "r7a", "c6i", "m6i", "r6i", "c6a", "m6a", "r6a"),
    "linux/arm64": ("c8g", "m8g", "r8g", "c7g", "m7g", "r7g", "c6g", "m6g", "r6g"),
}
_ARCHITECTURES = {"linux/amd64": "x86_64", "linux/arm64": "arm64"}
_MANY = 6  # types that are priced and tried; the next ones are several times as large
_CPU_WEIGHT, _GB_WEIGHT = 8.0, 1.0  # a processor costs about as much as 8 GiB: the order before prices are known
_LEAST_CPUS, _LEAST_GB = 2, 4.0


def find_types(
    api: Api,
    platform: str,
    *,
    machine: str | None,
    accelerator: Accelerator | None,
    cpus: float | None,
    memory_gb: float | None,
) -> list[MachineType]:
    """The instance types of the region that are large enough, about the cheapest first; at most a handful.

    Without `cpus` and `memory_gb` a machine has at least 2 processors and 4 GiB.

    Args:
        api: the region.
        platform: what the image is for.
        machine: the one type to take.
        accelerator: GPUs that a machine has at least.
        cpus: processors that it has at least.
        memory_gb: memory that it has at least.

    Raises:
        ConfigError: AWS has no such accelerator.
        ProviderError: the region has no such type, or it is too small.
    """
    names = (machine,) if machine else tuple(f"{family}.*" for family in _families(accelerator, platform))
    wanted = accelerator.count if accelerator else 0
    listed = [_machine_type(each) for each in _listed(api, names)]
    fit = [
        each
        for each in listed
        if each.platform == platform
        and each.gpus >= wanted
        and (machine or each.cpus >= (cpus or _LEAST_CPUS))
        and (machine or each.memory_gb >= (memory_gb or _LEAST_GB))
    ]
    if not fit:
        asked = [f"the name {machine}" if machine else "", f"{accelerator.name}:{wanted}" if accelerator else ""]
        asked += [f"{cpus:g} processors" if cpus else "", f"{memory_gb:.4g} GiB" if memory_gb else ""]
        sizes = ", ".join(f"{each.name} ({_size(each)})" for each in listed[:4]) or "none of that name"
        raise ProviderError(
            f"{api.region} has no instance type with {', '.join(filter(None, asked))} for {_ARCHITECTURES[platform]}; "
            f"found {sizes}. Ask for less, name another region, or set architecture=."
        )
    # a machine with fewer GPUs to spare comes before one with cheaper processors
    return sorted(fit, key=lambda each: (each.gpus, each.cpus * _CPU_WEIGHT + each.memory_gb * _GB_WEIGHT))[:_MANY]


def _families(accelerator: Accelerator | None, platform: str) -> Sequence[str]:
    if accelerator is None:
        return _PLAIN[platform]
    if accelerator.name not in _FAMILIES:
        raise ConfigError(
            f"sky.AWS() knows no machine with the accelerator {accelerator.name!r}; it knows "
            f"{', '.join(sorted(_FAMILIES))}. Or name the instance type (machine='p5.48xlarge')."
        )
    return _FAMILIES[accelerator.name]


def _listed(api: Api, names: Sequence[str]) -> list[Mapping[str, Any]]:
    filters = [{"Name": "instance-type", "Values": list(names)}, {"Name": "bare-metal", "Values": ["false"]}]
    return list(api.all("ec2", "describe_instance_types", "InstanceTypes", Filters=filters))


def _machine_type(found: Mapping[str, Any]) -> MachineType:
    gpus = found.get("GpuInfo", {}).get("Gpus", ())
    architectures = found["ProcessorInfo"]["SupportedArchitectures"]
    return MachineType(
        name=found["InstanceType"],
        cpus=found["VCpuInfo"]["DefaultVCpus"],
        memory_gb=found["MemoryInfo"]["SizeInMiB"] / 1024,
        platform="linux/arm64" if "arm64" in architectures else "linux/amd64",
        gpus=sum(gpu["Count"] for gpu in gpus if gpu["Manufacturer"] == "NVIDIA"),
    )


def _size(each: MachineType) -> str:
    gpus = f"{each.gpus} GPUs, " if each.gpus else ""
    return f"{gpus}{each.cpus} processors, {each.memory_gb:g} GB, {_ARCHITECTURES[each.platform]}"
