"""Advice on exceptions of functions whose cause lies in the pool: added as notes, on the node."""

from __future__ import annotations

import re

from skyward.errors import ConfigError
from skyward.model.instance import InstanceInfo

_NO_GPU = re.compile(
    r"Torch not compiled with CUDA enabled|Found no NVIDIA driver|No CUDA GPUs are available|no CUDA-capable device"
)
_NO_GROUP = re.compile(r"Default process group has not been initialized")


def advice_on(text: str) -> str:
    """A sentence for a node's exception of this text; "" for most."""
    if _NO_GPU.search(text) and not _accelerators():
        return "The pool's nodes have no GPU: ask for some, ComputePool(accelerator='A100'), or compute on the CPU."
    if _NO_GROUP.search(text):
        return (
            "sky.plugins.torch() makes the process group, on pools of several ranks: "
            "ComputePool(nodes=2, plugins=[sky.plugins.torch()])."
        )
    return ""


def _accelerators() -> int:
    try:
        place = InstanceInfo.current()
    except ConfigError:  # the function has changed what says it
        return 0
    return 0 if place is None else place.accelerators
