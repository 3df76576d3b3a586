"""`sky.plugins.torch`: PyTorch in the image, for the GPUs of the pool, and a process group of all ranks.

The plugin and the decorators share the group. What runs on nodes imports torch inside its functions only.
"""

from __future__ import annotations

import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from skyward.errors import ConfigError, PluginError
from skyward.model.instance import InstanceInfo
from skyward.plugins import _second_init
from skyward.plugins._packages import LATEST, requirement, with_trainer
from skyward.plugins._rendezvous import interface_of, listen, rendezvous
from skyward.plugins.base import Plugin
from skyward.runtime import environment, process_contexts
from skyward.runtime.group import gather

if TYPE_CHECKING:
    from skyward.model.image import Image
    from skyward.model.spec import Cluster

INDEX = "https://download.pytorch.org/whl"
_CUDA = re.compile(r"cu\d{2,3}")
_STORE_TIMEOUT = timedelta(minutes=5)  # for the ranks to find each other, once all are known to be there
_CALL_TIMEOUT_S = 300.0  # the same in a call, where ranks may still be importing torch


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
        from skyward.model.image import requirement_name

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


@contextmanager
def around_workers(info: InstanceInfo, *, backend: str | None = None) -> Iterator[None]:
    """The plugin's `around_app` hook: a group if the pool has several ranks."""
    if info.total_workers < 2:
        yield
        return
    with process_group(info, backend=backend):
        yield


def enter_in_call(info: InstanceInfo, *, backend: str | None = None) -> None:
    """The decorators' part: make the group at the first call, unless a plugin has made it, and keep it.

    Raises:
        PluginError: the call does not run on all ranks, or a rank is missing or out of reach.
        ConfigError: the group is there, with another backend.
    """
    if info.total_workers > 1 and not environment.on_every_rank():
        raise PluginError(
            f"This function forms a process group of all {info.total_workers} ranks of the pool, and was called on one "
            "of them alone, where it would wait for the others for ever. Call it on all of them: f(...) @ pool."
        )
    process_contexts.enter("torch", lambda: process_group(info, backend=backend, timeout_s=_CALL_TIMEOUT_S))
    _second_init.agree(backend)


@contextmanager
def process_group(info: InstanceInfo, *, backend: str | None = None, timeout_s: float | None = None) -> Iterator[None]:
    """Make the default process group of all ranks, and destroy it at the end; every rank enters it.

    The environment is that of torchrun: MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK, LOCAL_RANK, LOCAL_WORLD_SIZE,
    NODE_RANK. A group that is there already is left as it is.

    Args:
        info: this rank's place.
        backend: "nccl" or "gloo"; None for nccl where each rank has a GPU for itself, else gloo.
        timeout_s: how long to wait for the other ranks; None for what is left of the pool's set-up.

    Raises:
        PluginError: a rank is missing or out of reach, or the backend cannot be used here.
    """
    import torch
    import torch.distributed as dist

    if dist.is_initialized():
        yield
        return
    cuda = torch.cuda.is_available()
    if backend == "nccl" and not cuda:
        raise PluginError(
            f"torch: the backend nccl needs a GPU, and node {info.node} has none that CUDA can use. Give the pool an "
            "accelerator=, or leave backend= out, which takes gloo here."
        )
    device = _use_device(info) if cuda else None
    chosen = "gloo"
    if cuda and backend != "gloo":
        chosen = suitable(gather(_identity(device), name="torch: GPU", timeout_s=timeout_s), backend)
    _share_processors(info)
    _name_interface(info)
    store, port = _store(info, timeout_s)
    _describe(info, port)
    if not cuda:
        os.environ.setdefault("ACCELERATE_USE_CPU", "true")  # the Trainer then takes part in a group of CPUs, too
    dist.init_process_group(
        chosen,
        store=dist.PrefixStore("skyward", store),
        rank=info.global_worker_index,
        world_size=info.total_workers,
        device_id=device if chosen == "nccl" else None,
    )
    _second_init.redirect()
    try:
        yield
    finally:
        _second_init.restore()
        dist.destroy_process_group()
        del store  # on rank 0 it serves the others


def _store(info: InstanceInfo, timeout_s: float | None) -> tuple[Any, int]:
    """The ranks' common store, served by rank 0 on the pool's port or, where that is taken, on a free one."""
    import torch.distributed as dist

    address = info.head_addr
    if info.global_worker_index:
        address, port = rendezvous(info, "torch", timeout_s)
        return dist.TCPStore(address, port, timeout=_STORE_TIMEOUT, wait_for_workers=False), port
    listener = listen(address, info.head_port)
    port = listener.getsockname()[1]
    store = dist.TCPStore(
        address,
        port,
        is_master=True,
        timeout=_STORE_TIMEOUT,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    rendezvous(info, "torch", timeout_s, port=port)
    return store, port


def _describe(info: InstanceInfo, port: int) -> None:
    os.environ.update(
        MASTER_ADDR=info.head_addr,
        MASTER_PORT=str(port),
        WORLD_SIZE=str(info.total_workers),
        RANK=str(info.global_worker_index),
        LOCAL_RANK=str(info.worker),
        LOCAL_WORLD_SIZE=str(info.workers_per_node),
        NODE_RANK=str(info.node),
        TORCHELASTIC_USE_AGENT_STORE="True",  # `env://` joins the store that listens there, instead of opening one
    )


def _use_device(info: InstanceInfo) -> Any:
    """Make the rank's own GPU the current one: one of those it sees, which may be its alone or all of the node's."""
    import torch

    device = torch.device("cuda", info.worker % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _identity(device: Any) -> str | None:
    """What no other GPU has; None where torch does not tell it."""
    import torch

    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return None if uuid is None else str(uuid)


def suitable(gpus: Sequence[str | None], backend: str | None) -> str:
    """The backend for ranks with these GPUs: NCCL refuses ranks that share one ("invalid usage"), gloo does not.

    Raises:
        PluginError: it is to be nccl, and ranks share a GPU.
    """
    users = defaultdict(list)
    for rank, gpu in enumerate(gpus):
        users[gpu].append(str(rank))
    shared = [ranks for gpu, ranks in users.items() if gpu is not None and len(ranks) > 1]
    if shared and backend == "nccl":
        raise PluginError(
            f"torch: the backend nccl needs a GPU for each rank, and the ranks {', '.join(shared[0])} share one. "
            "Give each its own, with Worker(per_node='gpu'), or leave backend= out, which takes gloo here."
        )
    return "gloo" if shared else "nccl"


def _name_interface(info: InstanceInfo) -> None:
    """By default gloo announces the address that the host's name resolves to, which other hosts often cannot reach."""
    interface = interface_of(info)
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")  # exactly this one, not all that start like it


def _share_processors(info: InstanceInfo) -> None:
    """Where several ranks run on one machine, limit the threads of each to its part of the processors."""
    import torch

    here = info.peers[info.node].private_ip if info.peers else info.head_addr
    ranks = max(1, sum(peer.private_ip == here for peer in info.peers)) * info.workers_per_node
    if ranks > 1 and "OMP_NUM_THREADS" not in os.environ:
        if sys.platform == "darwin":
            processors = os.cpu_count() or 1
        else:
            processors = len(os.sched_getaffinity(0))
        threads = max(1, processors // ranks)
        os.environ["OMP_NUM_THREADS"] = str(threads)
        torch.set_num_threads(threads)
