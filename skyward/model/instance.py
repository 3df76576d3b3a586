"""Shared by client and nodes: a worker's place in its pool, and names of variables, files and exit statuses.

The place is the `COMPUTE_POOL` document, and the value parsed from it. Standard library only: this module is imported
inside the container, before any user code.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from typing import Any

from skyward.errors import ConfigError

ENV_VAR = "COMPUTE_POOL"  # of a runner and its workers: the place
SETTINGS_VAR = "SKYWARD_RUNNER"  # a RunnerSettings document
RUN_DIR_VAR = "SKYWARD_RUN_DIR"
PROCESSES_VAR = "SKYWARD_PROCESSES"  # set if the node is processes among others on its machine, not a container
CHANNEL_VAR = "SKYWARD_CHANNEL"  # hexadecimal; see `handshake.connect`. Unset if clients use no channel

KEY_FILE = "key"  # in the run directory
WORK_FOLDER = "work"  # in the run directory of a node that is a process: its working directory
CODE_DIR = ".skyward-code"  # below a worker's working directory: local modules sent by the client
BAKED_DIR = "/opt/code"  # in an image with bake=True: the files of its includes; nodes find modules there
ANNOUNCEMENT = "skyward-ready "  # prefix of the runner's one line on standard output; the addresses follow as JSON
SETUP = 0  # used for plugin set-up in place of a call's id

EXIT_FAILED, EXIT_CONFIG = 1, 2
EXIT_LEASE = 3  # no client has connected for the duration of the lease
EXIT_DISMISSED = 4  # ended by a client other than the pool's: its pool does not replace it
DISMISS = "SIGUSR1"  # asks a runner to end with EXIT_DISMISSED

_HOST = "127.0.0.1"  # of the only node of a pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A node as the other nodes reach it."""

    node: int
    private_ip: str
    public_ip: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Known properties of the network between nodes; `interface` is used for `GLOO_SOCKET_IFNAME` and the like."""

    interface: str | None = None
    bandwidth_gbps: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorInfo:
    """The accelerators of one node: type by its common name, number, memory of one in GB."""

    type: str
    count: int
    memory_gb: float | None = None
    is_trainium: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceInfo:
    """A worker's position in the pool.

    Attributes:
        node: index of this node, 0 to `total_nodes - 1`.
        total_nodes: number of nodes in the pool.
        head_addr: address of node 0, reachable from every node.
        head_port: coordination port on the head, the same on all nodes and unique to the pool.
        accelerators: number of GPUs on this node; 0 without.
        total_accelerators: number of GPUs in the pool.
        peers: all nodes, this one included, in node order.
        worker: index of this worker on its node; 0 if a node has one rank, regardless of its number of processes.
        workers_per_node: number of workers, each a rank, on each node.
        job_id: identifier of the pool.
        accelerator: kind of the GPUs, None without.
        network: known properties of the network.
    """

    node: int
    total_nodes: int
    head_addr: str
    head_port: int
    accelerators: int = 0
    total_accelerators: int = 0
    peers: tuple[Peer, ...] = ()
    worker: int = 0
    workers_per_node: int = 1
    job_id: str = ""
    accelerator: AcceleratorInfo | None = None
    network: Network = field(default_factory=Network)

    @property
    def is_head(self) -> bool:
        """Whether this is the first worker of node 0."""
        return self.global_worker_index == 0

    @property
    def global_worker_index(self) -> int:
        """The rank of this worker over all nodes."""
        return self.node * self.workers_per_node + self.worker

    @property
    def total_workers(self) -> int:
        """Number of workers in the pool."""
        return self.total_nodes * self.workers_per_node

    @property
    def hostname(self) -> str:
        """Host name of the machine or container."""
        return socket.gethostname()

    @classmethod
    def current(cls) -> InstanceInfo | None:
        """Return the place of the calling process, None outside a pool. The same as `sky.instance_info()`."""
        return place_of_worker() or _alone.get()

    def to_json(self) -> str:
        """Return the `COMPUTE_POOL` document of this place."""
        return json.dumps(asdict(self), separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> InstanceInfo:
        """Parse a `COMPUTE_POOL` document.

        Raises:
            ConfigError: the text is not such a document.
        """
        known = {f.name for f in fields(cls)}
        try:
            document = json.loads(text)
            values: dict[str, Any] = {k: v for k, v in document.items() if k in known}
            values["peers"] = tuple(Peer(**p) for p in document.get("peers") or ())
            values["network"] = Network(**(document.get("network") or {}))
            accelerator = document.get("accelerator")
            values["accelerator"] = AcceleratorInfo(**accelerator) if accelerator else None
            info = cls(**values)
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{ENV_VAR} does not describe a place in a pool ({error}). The pool sets it; do not set it by hand."
            ) from None
        if not (0 <= info.node < info.total_nodes and 0 <= info.worker < info.workers_per_node):
            raise ConfigError(f"{ENV_VAR} describes no place in a pool: {text}")
        return info


def place_of_worker() -> InstanceInfo | None:
    """Return the place that a pool has assigned to this process; None in processes outside pools, `.local` included."""
    text = os.environ.get(ENV_VAR)
    return _parse(text) if text else None


_alone: ContextVar[InstanceInfo | None] = ContextVar("skyward_only_node", default=None)  # of the call that runs here


@contextmanager
def only_node(job_id: str) -> Iterator[None]:
    """Make the code of this context (thread or asyncio task) the one node of a pool, unless it has a place."""
    if InstanceInfo.current() is not None:
        yield
        return
    with socket.socket() as sock:
        sock.bind((_HOST, 0))
        port = int(sock.getsockname()[1])
    peers = (Peer(node=0, private_ip=_HOST),)
    place = InstanceInfo(node=0, total_nodes=1, head_addr=_HOST, head_port=port, peers=peers, job_id=job_id)
    before = _alone.set(place)
    try:
        yield
    finally:
        _alone.reset(before)


@lru_cache(maxsize=4)
def _parse(text: str) -> InstanceInfo:
    return InstanceInfo.from_json(text)
