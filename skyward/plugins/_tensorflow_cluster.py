"""The ranks of a pool as a TensorFlow cluster: `TF_CONFIG`, as MultiWorkerMirroredStrategy reads it.

Shared by the plugin and the decorators. Standard library only: the function makes the strategy, which connects the
ranks.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from skyward.model.instance import InstanceInfo
from skyward.plugins._rendezvous import rendezvous
from skyward.runtime import process_contexts
from skyward.runtime.environment import on_every_rank, require_every_rank
from skyward.runtime.group import gather

VARIABLE = "TF_CONFIG"
_REUSE = "TF_GRPC_REUSE_PORT"  # lets TensorFlow's server bind a port that is held for it
_CALL_TIMEOUT_S = 300.0  # in a call, where other ranks may still be importing what they need
_config: str | None = None  # of the cluster that this process is part of


@contextmanager
def described(info: InstanceInfo, timeout_s: float | None = None) -> Iterator[None]:
    """Set `TF_CONFIG` to the addresses of all ranks while the context is open. Every rank enters it.

    The ports are held until then, so that nobody takes one before TensorFlow does. Nothing happens with one rank.

    Args:
        info: this rank's place.
        timeout_s: how long to wait for the other ranks; None for what is left of the pool's set-up.

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
    """Show the cluster to calls that all ranks run: in another, a strategy would wait for the others for ever."""
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
    process_contexts.enter("tensorflow", lambda: described(info, _CALL_TIMEOUT_S))
    before_call(info)


@contextmanager
def _held(address: str) -> Iterator[int]:
    """A free port that only this user's sockets which share it can bind, as TensorFlow's does."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind((address, 0))
        port: int = holder.getsockname()[1]
        yield port
