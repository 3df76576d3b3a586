"""The `jax` plugin: JAX in the image, and the ranks of a pool as one JAX cluster, where each sees the devices of all.

The plugin and the decorator share the group. Code that runs on nodes imports jax inside functions only.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from skyward.errors import ConfigError
from skyward.model.instance import InstanceInfo
from skyward.plugins._ranks import rendezvous, source_address
from skyward.plugins.base import Plugin
from skyward.runtime.environment import enter_context, require_every_rank

if TYPE_CHECKING:
    from skyward.model.image import Image
    from skyward.model.spec import Cluster

_CUDA = re.compile(r"(?:cuda|cu)(\d{2})(?:[._-]?\d+)*(?:-local|_local)?")
_CONNECT_S = 60  # all ranks have met before; one that does not connect now has died, and JAX then ends this process
_CALL_TIMEOUT_S = 300.0  # in a call, where other ranks may still be importing jax
_LEAVE_S = 5.0  # for the others to leave first; the pool allows its plugins ten seconds


def jax(cuda: str = "cuda12") -> Plugin:
    """JAX on every node, the devices of all nodes in one mesh.

    The image contains `jax`, with the CUDA libraries as wheels if the nodes have NVIDIA GPUs. In a pool of several
    ranks `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES`, `JAX_PROCESS_ID` and `JAX_LOCAL_DEVICE_COUNT` are set and
    `jax.distributed.initialize()` has been called when a function starts: `jax.devices()` lists those of all ranks,
    `jax.local_devices()` those of one. A rank is one device, on CPUs too.

    Args:
        cuda: the extra of jax that provides CUDA, such as "cuda12" or "cuda13". "cu12", "cu124" and the like are
            accepted.

    Raises:
        ConfigError: `cuda` is not such an extra.
    """
    found = _CUDA.fullmatch(str(cuda))
    if found is None:
        raise ConfigError(f"jax(cuda=...) takes 'cuda12' or 'cuda13' (also 'cu12', 'cu124'); found {cuda!r}.")
    extra = f"cuda{found[1]}"  # jax has one for each major version

    def transform(image: Image, cluster: Cluster) -> Image:
        return image.pip_install(requirement(cluster, extra))

    return Plugin.create("jax").with_image_transform(transform).with_around_app(joined).with_collective()


def requirement(cluster: Cluster, extra: str = "cuda12") -> str:
    """Return the jax requirement for the nodes of this pool."""
    accelerator = cluster.spec.accelerator
    return f"jax[{extra}]" if accelerator is not None and accelerator.cuda else "jax"


def variables(info: InstanceInfo, address: str, port: int) -> Mapping[str, str]:
    """Return the environment that describes the group. JAX itself reads the first variable only."""
    return {
        "JAX_COORDINATOR_ADDRESS": f"{address}:{port}",
        "JAX_NUM_PROCESSES": str(info.total_workers),
        "JAX_PROCESS_ID": str(info.global_worker_index),
        "JAX_LOCAL_DEVICE_COUNT": str(info.accelerators // info.workers_per_node or 1),  # on CPUs a rank is one device
    }


@contextmanager
def joined(info: InstanceInfo, timeout_s: float | None = None) -> Iterator[None]:
    """Make this process part of the pool's group while the context is open. Every rank enters it.

    Nothing happens with one rank, or if JAX is already initialised.

    Args:
        info: this rank's place.
        timeout_s: how long to wait for the other ranks; None for the remaining time of the pool's set-up.

    Raises:
        PluginError: a rank is missing, or cannot reach rank 0.
    """
    if info.total_workers < 2:
        yield
        return
    import jax

    if jax.distributed.is_initialized():
        yield
        return
    _connect(info, timeout_s)
    try:
        yield
    finally:
        if info.global_worker_index == 0:
            _outlast_others(info)
        jax.distributed.shutdown()


def join(info: InstanceInfo) -> None:
    """Make this process part of the pool's group until it ends; does nothing if it already is.

    Raises:
        PluginError: the current call runs on one rank only, where a collective would wait for ever.
    """
    require_every_rank("jax")
    enter_context("jax", partial(joined, info, _CALL_TIMEOUT_S))


def _connect(info: InstanceInfo, timeout_s: float | None) -> None:
    import jax
    from jax.extend import backend

    backend.clear_backends()  # backends created before this know the devices of this process only
    # Without this the loss of a rank aborts all others (SIGABRT), and none can report it.
    jax.config.update("jax_enable_recoverability", True)
    address, port = rendezvous(info, "jax", timeout_s)
    os.environ.update(variables(info, address, port))
    jax.distributed.initialize(
        f"{address}:{port}",
        info.total_workers,
        info.global_worker_index,
        cluster_detection_method="deactivate",  # else variables of a surrounding Slurm or Kubernetes job are used
        coordinator_bind_address=f"{address}:{port}",
        initialization_timeout=_CONNECT_S,
    )
    _use_address(source_address(address))
    jax.devices()  # waits for the other ranks: now, while all are here, and not in a call that one rank runs alone


def _outlast_others(info: InstanceInfo) -> None:
    """Wait on rank 0, which serves the group, until the others have left: JAX aborts ranks whose server ends."""
    from jax._src import distributed  # JAX has no public function for this (0.10)

    ranks = list(range(info.total_workers))
    wait = partial(distributed.global_state.client.get_live_nodes, ranks)  # returns once all of them ask, or leave
    waiting = threading.Thread(target=wait, name="skyward-jax-leave", daemon=True)
    waiting.start()
    waiting.join(_LEAVE_S)


def _use_address(address: str | None) -> None:
    """Make collectives on CPUs use this address.

    JAX uses the address that the host's name resolves to, which on Debian is 127.0.1.1 and unreachable from other
    hosts; it fails if the name does not resolve. As there is no setting for that, this repeats JAX's own calls with
    another address (JAX 0.10).
    """
    try:
        from jax._src import distributed, xla_bridge
        from jax._src.lib import _jax
        from jax.extend import backend

        collectives = _jax.make_gloo_tcp_collectives(distributed.global_state.client, hostname=address)
        make = partial(xla_bridge.make_cpu_client, collectives=collectives)
    except (ImportError, AttributeError, TypeError):
        return  # another version of JAX: it uses the host's name
    backend.register_backend_factory("cpu", make, priority=0, fail_quietly=False)
