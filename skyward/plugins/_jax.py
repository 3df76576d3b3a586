"""The `jax` plugin: JAX in the image, and the ranks of a pool as one JAX."""

from __future__ import annotations

import re

from skyward.errors import ConfigError
from skyward.model.image import Image
from skyward.model.spec import Cluster
from skyward.plugins._jax_group import joined
from skyward.plugins.base import Plugin

_CUDA = re.compile(r"(?:cuda|cu)(\d{2})(?:[._-]?\d+)*(?:-local|_local)?")


def jax(cuda: str = "cuda12") -> Plugin:
    """JAX on every node, the devices of all nodes in one mesh.

    The image gets `jax` with the CUDA libraries as wheels on nodes that have NVIDIA GPUs, plain `jax` on others. In a
    pool of several ranks `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES`, `JAX_PROCESS_ID` and
    `JAX_LOCAL_DEVICE_COUNT` are set and `jax.distributed.initialize()` has been called when a function starts:
    `jax.devices()` are those of all ranks, `jax.local_devices()` those of one. A rank is one device, on CPUs too.

    Args:
        cuda: the extra of jax that brings CUDA, such as "cuda12" or "cuda13". "cu12", "cu124" and the like mean it too.

    Raises:
        ConfigError: `cuda` names no such extra.
    """
    extra = cuda_extra(cuda)

    def transform(image: Image, cluster: Cluster) -> Image:
        return image.pip_install(requirement(cluster, extra))

    return Plugin.create("jax").with_image_transform(transform).with_around_app(joined).with_collective()


def requirement(cluster: Cluster, extra: str = "cuda12") -> str:
    """What to install of jax on the nodes of this pool."""
    accelerator = cluster.spec.accelerator
    return f"jax[{extra}]" if accelerator is not None and accelerator.cuda else "jax"


def cuda_extra(cuda: str) -> str:
    """The extra of jax that a spelling of a CUDA version means: it has one for each major version."""
    found = _CUDA.fullmatch(str(cuda))
    if found is None:
        raise ConfigError(f"jax(cuda=...) takes 'cuda12' or 'cuda13' (also 'cu12', 'cu124'); found {cuda!r}.")
    return f"cuda{found[1]}"
