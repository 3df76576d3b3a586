"""`sky.plugins.torch`: PyTorch in the image, for the GPUs of the pool, and a process group of all ranks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Literal

from skyward.errors import ConfigError
from skyward.model.image import Image, requirement_name
from skyward.model.spec import Cluster
from skyward.plugins._packages import LATEST, requirement, with_trainer
from skyward.plugins._process_group import around_workers
from skyward.plugins.base import Plugin

INDEX = "https://download.pytorch.org/whl"
_CUDA = re.compile(r"cu\d{2,3}")


def torch(
    backend: Literal["nccl", "gloo"] | None = None,
    cuda: str = "cu128",
    version: str | None = LATEST,
    vision: str | None = None,
    audio: str | None = None,
) -> Plugin:
    """PyTorch, and its distributed process group on pools of several ranks.

    The packages come from PyTorch's own index, for the pool's accelerator: with CUDA where it has some, else for CPUs.
    numpy is added as well. The group is made once per worker, when the pool starts, and exists in every call.

    Args:
        backend: of the group; None for nccl where each rank has a GPU for itself, else gloo.
        cuda: CUDA version of the packages, as the index spells it.
        version: of torch: "latest" (also for None), a version ("2.3.0") or a specifier (">=2.3,<3").
        vision: the same for torchvision; None does not install it.
        audio: the same for torchaudio; None does not install it.

    Raises:
        ConfigError: a parameter is none of these.
    """
    if backend not in (None, "nccl", "gloo"):
        raise ConfigError(f"sky.plugins.torch: backend takes 'nccl', 'gloo' or None; found {backend!r}.")
    if not _CUDA.fullmatch(str(cuda)):
        raise ConfigError(
            f"sky.plugins.torch: cuda takes what PyTorch's index calls it, as in 'cu128'; found {cuda!r}."
        )
    wanted = {"torch": version, "torchvision": vision, "torchaudio": audio}
    parameters = {"torch": "version", "torchvision": "vision", "torchaudio": "audio"}
    packages = {
        name: requirement(name, value, where=f"sky.plugins.torch: {parameters[name]}")
        for name, value in wanted.items()
        if value is not None or name == "torch"
    }
    return (
        Plugin.create("torch")
        .with_image_transform(_Packages(packages, cuda))
        .with_around_app(partial(around_workers, backend=backend))
        .with_collective()
    )


@dataclass(frozen=True)
class _Packages:
    """The transform: requirements by package, from the index for the pool's accelerator."""

    requirements: dict[str, str]
    cuda: str

    def __call__(self, image: Image, cluster: Cluster) -> Image:
        accelerator = cluster.spec.accelerator
        build = self.cuda if accelerator is not None and accelerator.cuda else "cpu"
        elsewhere = {package for index in image.pip_indexes for package in index.packages}  # the user's choice is kept
        scoped = [package for package in self.requirements if package not in elsewhere]
        # torch does not require numpy, and warns in each process that imports it without
        # https://github.com/pytorch/pytorch/issues/115638
        numpy = () if "numpy" in map(requirement_name, image.pip) else ("numpy",)
        image = image.pip_install(*self.requirements.values(), *numpy)
        if scoped:
            image = image.with_index(f"{INDEX}/{build}", *scoped)
        return with_trainer(image)
