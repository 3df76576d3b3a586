"""The `tensorflow` plugin: TensorFlow in the image, and the ranks of a pool described in `TF_CONFIG`.

The plugin and the decorators share the description. The function creates the strategy, which connects the ranks.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from skyward.model.instance import InstanceInfo
from skyward.plugins._ranks import rendezvous
from skyward.plugins.base import Plugin
from skyward.runtime.environment import declare, enter_context, on_every_rank, require_every_rank, same
from skyward.runtime.ranks import gather

if TYPE_CHECKING:
    from skyward.model.image import Image
    from skyward.model.spec import Cluster

_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
VARIABLE = "TF_CONFIG"
_REUSE = "TF_GRPC_REUSE_PORT"  # lets TensorFlow's server bind a port that is reserved for it
_CALL_TIMEOUT_S = 300.0  # in a call, where other ranks may still be importing what they need
_config: str | None = None  # of the cluster that this process is part of


def tensorflow() -> Plugin:
    """TensorFlow on every node, and the ranks as one cluster for `tf.distribute.MultiWorkerMirroredStrategy`.

    In a pool of several ranks `TF_CONFIG` lists the address of each when a function starts that was called with `@`.
    The function creates the strategy and trains under it with its own training loop (the `fit` of Keras 3 fails under
    it). No TensorFlow operation may have run in the process before the first strategy, not even in an earlier call: it
    would fail with "Collective ops must be configured at program startup". Later ones take part in the same cluster.
    """
    return (
        Plugin.create("tensorflow")
        .with_image_transform(_add)
        .with_around_app(described)
        .with_decorator(_decorate)
        .with_collective()
    )


def requirement(cluster: Cluster) -> str:
    """Return the TensorFlow requirement for the nodes of this pool."""
    accelerator = cluster.spec.accelerator
    if accelerator is not None and accelerator.cuda:
        return "tensorflow[and-cuda]"
    return "tensorflow-cpu" if cluster.spec.platform == "linux/amd64" else "tensorflow"  # no -cpu for others


def _add(image: Image, cluster: Cluster) -> Image:
    level = image.env.get(_LOG_LEVEL, "1")  # otherwise its notes on CPU features would appear in every worker's output
    return image.pip_install(requirement(cluster)).with_env({_LOG_LEVEL: level})


def _decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
    return declare(same(fn), prepare=before_call)


@contextmanager
def described(info: InstanceInfo, timeout_s: float | None = None) -> Iterator[None]:
    """Set `TF_CONFIG` to the addresses of all ranks while the context is open. Every rank enters it.

    The ports are reserved until then, so that no other process takes one before TensorFlow does. With one rank nothing
    happens.

    Args:
        info: this rank's place.
        timeout_s: how long to wait for the other ranks; None for the remaining time of the pool's set-up.

    Raises:
        PluginError: a rank is missing, or cannot reach rank 0.
    """
    global _config
    if info.total_workers < 2 or _config is not None:
        yield
        return
    address = info.peers[info.node].private_ip
    with _held(address) as port:
        if info.global_worker_index == 0:
            with socket.create_server((address, port), reuse_port=True):
                rendezvous(info, "tensorflow", timeout_s, port=port)
        else:
            rendezvous(info, "tensorflow", timeout_s)
        workers = gather(f"{address}:{port}", name="tensorflow: addresses", timeout_s=timeout_s)
        task = {"type": "worker", "index": info.global_worker_index}
        _config = json.dumps({"cluster": {"worker": workers}, "task": task})
        os.environ |= {VARIABLE: _config, _REUSE: "true"}
        try:
            yield
        finally:
            _config = None
            os.environ.pop(VARIABLE, None)


def before_call(_info: InstanceInfo) -> None:
    """Show the cluster only to calls that all ranks run: in others, a strategy would wait for other ranks for ever."""
    if _config is not None and on_every_rank():
        os.environ[VARIABLE] = _config
    else:
        os.environ.pop(VARIABLE, None)


def join(info: InstanceInfo) -> None:
    """Describe the cluster for as long as the process lives, and show it to this call.

    Raises:
        PluginError: the call runs on one rank only; or a rank is missing, or cannot reach rank 0.
    """
    require_every_rank("tensorflow")
    enter_context("tensorflow", lambda: described(info, _CALL_TIMEOUT_S))
    before_call(info)


@contextmanager
def _held(address: str) -> Iterator[int]:
    """Yield a free port that only sockets of this user with SO_REUSEPORT can bind, as TensorFlow's does."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind((address, 0))
        port: int = holder.getsockname()[1]
        yield port
