"""`sky.plugins.torch`: PyTorch in the image, for the GPUs of the pool, and a process group of all ranks.

The plugin and the decorators share the group. Programs for other launchers create and destroy a group themselves. While
skyward's group exists, `init_process_group` does nothing if it asks for the same group, and `destroy_process_group`
does not destroy it; each warns once. Code that runs on nodes imports torch inside functions only.
"""

from __future__ import annotations

import inspect
import os
import re
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Literal

from skyward.errors import ConfigError, PluginError
from skyward.model.instance import InstanceInfo
from skyward.plugins._huggingface import with_trainer
from skyward.plugins._ranks import cpus, interface_of, listen, nodes_here, rendezvous
from skyward.plugins.base import LATEST, Plugin, add_missing, versioned
from skyward.runtime import environment
from skyward.runtime.ranks import gather

if TYPE_CHECKING:
    from skyward.model.image import Image
    from skyward.model.spec import Cluster

INDEX = "https://download.pytorch.org/whl"
_CUDA = re.compile(r"cu\d{2,3}")
_STORE_TIMEOUT = timedelta(minutes=5)  # for the ranks to find each other, once all are known to exist
_CALL_TIMEOUT_S = 300.0  # the same in a call, where ranks may still be importing torch
_warned: set[str] = set()


def torch(
    backend: Literal["nccl", "gloo"] | None = None,
    cuda: str = "cu128",
    version: str | None = LATEST,
    vision: str | None = None,
    audio: str | None = None,
) -> Plugin:
    """PyTorch, and its distributed process group on pools of several ranks.

    The packages come from PyTorch's own index, with CUDA if the pool's accelerator has it, else for CPUs. numpy is
    added as well; for torch before 2.3, which cannot read the arrays of numpy 2, it is numpy 1. The group is created
    once per worker, when the pool starts, and exists in every call.

    Args:
        backend: of the group; None for nccl if each rank has a GPU for itself, else gloo.
        cuda: CUDA version of the packages, in the index's spelling.
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
    wanted = (
        ("torch", "version", LATEST if version is None else version),
        ("torchvision", "vision", vision),
        ("torchaudio", "audio", audio),
    )
    packages = {
        name: versioned(name, value, where=f"sky.plugins.torch: {parameter}")
        for name, parameter, value in wanted
        if value is not None
    }
    return (
        Plugin.create("torch")
        .with_image_transform(partial(_add, packages, cuda))
        .with_around_app(partial(around_workers, backend=backend))
        .with_collective()
    )


def _add(packages: Mapping[str, str], cuda: str, image: Image, cluster: Cluster) -> Image:
    """Return the image with these packages, from the index for the pool's accelerator."""
    accelerator = cluster.spec.accelerator
    build = cuda if accelerator is not None and accelerator.cuda else "cpu"
    elsewhere = {package for index in image.pip_indexes for package in index.packages}  # the user's choice of index
    scoped = [package for package in packages if package not in elsewhere]
    # torch does not require numpy, but warns in each process that imports it without:
    # https://github.com/pytorch/pytorch/issues/115638
    image = image.pip_install(*packages.values())
    image = image.pip_install("numpy<2") if _is_before("2.3", image) else add_missing(image, "numpy")
    if scoped:
        image = image.with_index(f"{INDEX}/{build}", *scoped)
    return with_trainer(image)


def _is_before(limit: str, image: Image) -> bool:
    """Return whether an image requires torch so that no release from this version on will do."""
    from packaging.requirements import InvalidRequirement, Requirement  # nodes import this module without it
    from packaging.version import Version

    from skyward.model.image import requirement_name

    for entry in image.pip:
        with suppress(InvalidRequirement):  # a local wheel
            allowed = Requirement(entry).specifier
            bounds = [Version(limit), *(Version(each.version.removesuffix(".*")) for each in allowed)]
            tried = [text for each in bounds for text in (f"{each}", f"{each.base_version}.1") if each >= bounds[0]]
            if requirement_name(entry) == "torch" and not any(allowed.filter(tried, prereleases=True)):
                return True
    return False


@contextmanager
def around_workers(info: InstanceInfo, *, backend: str | None = None) -> Iterator[None]:
    """Create a group if the pool has several ranks (the plugin's `around_app` hook)."""
    if info.total_workers < 2:
        yield
        return
    with process_group(info, backend=backend):
        yield


def enter_in_call(info: InstanceInfo, *, backend: str | None = None) -> None:
    """Create the group at the first call, unless a plugin has done so, and keep it (for the decorators).

    Raises:
        PluginError: the call does not run on all ranks, or a rank is missing or unreachable.
        ConfigError: the group exists with another backend.
    """
    if info.total_workers > 1 and not environment.on_every_rank():
        raise PluginError(
            f"This function forms a process group of all {info.total_workers} ranks of the pool, and was called on one "
            "of them alone, where it would wait for the others for ever. Call it on all of them: f(...) @ pool."
        )
    environment.enter_context("torch", lambda: process_group(info, backend=backend, timeout_s=_CALL_TIMEOUT_S))
    _check_group(backend)


@contextmanager
def process_group(info: InstanceInfo, *, backend: str | None = None, timeout_s: float | None = None) -> Iterator[None]:
    """Create the default process group of all ranks, and destroy it at the end; every rank enters it.

    The environment is that of torchrun: MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK, LOCAL_RANK, LOCAL_WORLD_SIZE,
    NODE_RANK. An existing group is left as it is.

    Args:
        info: this rank's place.
        backend: "nccl" or "gloo"; None for nccl if each rank has a GPU for itself, else gloo.
        timeout_s: how long to wait for the other ranks; None for the remaining time of the pool's set-up.

    Raises:
        PluginError: a rank is missing or unreachable, or the backend cannot be used here.
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
            "accelerator=, or leave backend= out, which means gloo here."
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
        os.environ.setdefault("ACCELERATE_USE_CPU", "true")  # lets the Trainer take part in a group of CPUs, too
    dist.init_process_group(
        chosen,
        store=dist.PrefixStore("skyward", store),
        rank=info.global_worker_index,
        world_size=info.total_workers,
        device_id=device if chosen == "nccl" else None,
    )
    try:
        with _guarded():
            yield
    finally:
        dist.destroy_process_group()
        del store  # on rank 0 it serves the others


def _store(info: InstanceInfo, timeout_s: float | None) -> tuple[Any, int]:
    """Return the ranks' common store, served by rank 0 on the pool's port or, if that is taken, on a free one."""
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
    """Make the rank's GPU the current one and return it: it sees either only its own or all of the node's."""
    import torch

    device = torch.device("cuda", info.worker % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _identity(device: Any) -> str | None:
    """Return an identifier that is unique to the GPU; None if torch does not report one."""
    import torch

    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return None if uuid is None else str(uuid)


def suitable(gpus: Sequence[str | None], backend: str | None) -> str:
    """Return the backend for ranks with these GPUs: NCCL refuses ranks that share one ("invalid usage"), gloo does not.

    Raises:
        PluginError: nccl is requested, and ranks share a GPU.
    """
    users = defaultdict(list)
    for rank, gpu in enumerate(gpus):
        users[gpu].append(str(rank))
    shared = [ranks for gpu, ranks in users.items() if gpu is not None and len(ranks) > 1]
    if shared and backend == "nccl":
        raise PluginError(
            f"torch: the backend nccl needs a GPU for each rank, and the ranks {', '.join(shared[0])} share one. "
            "Give each its own, with Worker(per_node='gpu'), or leave backend= out, which means gloo here."
        )
    return "gloo" if shared else "nccl"


def _name_interface(info: InstanceInfo) -> None:
    """Set the interface for gloo and NCCL: gloo's default, from the host name, is often unreachable from others."""
    interface = interface_of(info)
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")  # exactly this one, not all with this prefix


def _share_processors(info: InstanceInfo) -> None:
    """If several ranks run on one machine, limit the threads of each to its share of the processors."""
    import torch

    ranks = nodes_here(info) * info.workers_per_node
    if ranks > 1 and "OMP_NUM_THREADS" not in os.environ:
        threads = max(1, cpus(nodes_here(info)) // info.workers_per_node)
        os.environ["OMP_NUM_THREADS"] = str(threads)
        torch.set_num_threads(threads)


@contextmanager
def _guarded() -> Iterator[None]:
    """Replace `init_process_group` and `destroy_process_group` of torch, for programs written for other launchers."""
    import torch.distributed as dist

    init, destroy = dist.init_process_group, dist.destroy_process_group

    @wraps(init)
    def init_again(*args: Any, **kwargs: Any) -> Any:
        if not dist.is_initialized():  # it was destroyed through torch's internals
            return init(*args, **kwargs)
        asked = inspect.signature(init).bind(*args, **kwargs).arguments
        _check_group(asked.get("backend"), rank=asked.get("rank"), world_size=asked.get("world_size"))
        _warn_once(
            "init_process_group()",
            f"the group is there already ({dist.get_backend()}, rank {dist.get_rank()} of {dist.get_world_size()}) and "
            "is kept: this call does nothing.",
        )
        return None

    @wraps(destroy)
    def destroy_again(group: Any = None) -> None:
        if group is not None and group is not dist.group.WORLD:
            destroy(group)
            return
        _warn_once(
            "destroy_process_group()",
            "the group of all ranks serves later calls too and is destroyed when the worker ends: this call does "
            "nothing.",
        )

    places = (dist, dist.distributed_c10d)
    for place in places:
        place.init_process_group, place.destroy_process_group = init_again, destroy_again
    try:
        yield
    finally:
        for place in places:
            place.init_process_group, place.destroy_process_group = init, destroy


def _check_group(backend: str | None, *, rank: int | None = None, world_size: int | None = None) -> None:
    """Check that the group has the requested properties.

    A backend that this machine cannot use (nccl without a GPU) is accepted, so that programs for GPUs run on CPU pools.

    Raises:
        ConfigError: it has others.
    """
    import torch.distributed as dist

    have = dist.get_backend()
    names = {part.rpartition(":")[2] for part in str(backend).lower().split(",")} if backend is not None else set()
    if have not in names and any(map(_usable, names)):
        raise ConfigError(
            f"The process group of this pool uses {have}, and {backend} is asked for. Name the backend where the group "
            f"is made: sky.plugins.torch(backend={backend!r}) or @sky.integrations.torch(backend={backend!r})."
        )
    for name, asked, found in (("rank", rank, dist.get_rank()), ("world_size", world_size, dist.get_world_size())):
        if asked not in (None, -1, found):
            raise ConfigError(
                f"init_process_group({name}={asked}): in the group of this pool this process has {name} {found}. "
                f"Leave {name}= out."
            )


def _usable(backend: str) -> bool:
    import torch
    import torch.distributed as dist

    return dist.is_backend_available(backend) and (backend != "nccl" or torch.cuda.is_available())


def _warn_once(what: str, text: str) -> None:
    if what not in _warned:
        _warned.add(what)
        warnings.warn(f"{what}: {text}", stacklevel=3)  # the line in user code
