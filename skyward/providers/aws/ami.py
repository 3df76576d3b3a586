"""The machine image to boot: with Docker, and for GPUs with NVIDIA's driver and toolkit, by AWS' public parameters."""

from __future__ import annotations

from dataclasses import dataclass

from skyward.errors import ProviderError
from skyward.model.accelerator import Accelerator
from skyward.providers.aws.api import Api

# AWS' own names for its newest images: the container service's for CPUs, the Deep Learning AMI for GPUs
_CPU = {
    "linux/amd64": "/aws/service/ecs/optimized-ami/amazon-linux-2023/recommended/image_id",
    "linux/arm64": "/aws/service/ecs/optimized-ami/amazon-linux-2023/arm64/recommended/image_id",
}
_GPU = {
    "linux/amd64": "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id",
    "linux/arm64": "/aws/service/deeplearning/ami/arm64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id",
}
# the open driver in those does not support GPUs before Turing
_OLD_GPU = "/aws/service/ecs/optimized-ami/amazon-linux-2/gpu/recommended/image_id"
_OLD = ("K80", "V100")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineImage:
    """A machine image, and the root disk that it boots from.

    Attributes:
        id: such as "ami-0123".
        root: device of its root disk.
        disk_gb: size of that disk.
    """

    id: str
    root: str
    disk_gb: int


def parameter(platform: str, accelerator: Accelerator | None) -> str:
    """Name of the public parameter that holds the image's id."""
    if accelerator is None:
        return _CPU[platform]
    return _OLD_GPU if accelerator.name in _OLD else _GPU[platform]


def find_image(
    api: Api, platform: str, accelerator: Accelerator | None, ami: str | None, disk_gb: int | None, room_gb: int
) -> MachineImage:
    """The machine image of a pool.

    Args:
        api: the region.
        platform: "linux/amd64" or "linux/arm64".
        accelerator: GPUs that it needs a driver for.
        ami: id of the image to boot instead of AWS' own.
        disk_gb: size of the root disk; None for the image's own size and `room_gb` more.
        room_gb: see `disk_gb`.

    Raises:
        ProviderError: the region has no such image, or the disk is smaller than it.
    """
    if ami is None:
        name = parameter(platform, accelerator)
        ami = str(api.call("ssm", "get_parameter", Name=name)["Parameter"]["Value"])
    found = api.call("ec2", "describe_images", ImageIds=[ami])["Images"]
    if not found:
        raise ProviderError(f"{api.region} has no machine image {ami}; images belong to one region each.")
    root = found[0].get("RootDeviceName") or "/dev/xvda"
    disks = {disk["DeviceName"]: disk["Ebs"] for disk in found[0].get("BlockDeviceMappings", ()) if "Ebs" in disk}
    own = int(disks.get(root, {}).get("VolumeSize", 8))
    if disk_gb is not None and disk_gb < own:
        raise ProviderError(f"disk_gb={disk_gb} is too small: the machine image {ami} takes {own} GB.")
    return MachineImage(id=ami, root=root, disk_gb=disk_gb or own + room_gb)
