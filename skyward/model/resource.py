"""What is told of a pool: `Resource`, one thing that belongs to it as its provider's labels tell, and its `stats()`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NotRequired, TypedDict


class Resource(TypedDict):
    """A node, or something else that a pool has at its provider.

    `node` is -1 for what belongs to no node. `user` is who started the pool, as "name@host", and `owner` the process;
    each is "" where no label says so. `hourly` and `cost` are of what is rented, in USD per hour and so far, None where
    they are not known. `seen`, in seconds since 1970, is when the pool's client last noted that it is alive.
    `pool_name` is the name of a pool that has one; while it is kept it lives `until`, in seconds since 1970.
    """

    pool: str
    node: int
    name: str
    state: str
    user: str
    owner: NotRequired[str]
    image: NotRequired[str]
    id: NotRequired[str]
    host: NotRequired[str]
    pid: NotRequired[int]
    type: NotRequired[str]
    market: NotRequired[str]
    hourly: NotRequired[float | None]
    cost: NotRequired[float | None]
    seen: NotRequired[float | None]
    pool_name: NotRequired[str]
    until: NotRequired[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuStats:
    """One GPU.

    Attributes:
        name: the driver's name for it.
        utilization: share of the time in which it computed, 0 to 1; None where it is not told.
        memory, memory_limit: bytes in use, and bytes that it has.
    """

    name: str
    utilization: float | None
    memory: int | None
    memory_limit: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStats:
    """One node. Figures of use are None where the node has not answered in time.

    Attributes:
        node: its index.
        host: address of its machine.
        running: calls that run there now.
        queued: calls that it has been sent and that have not begun.
        done: calls that it has answered since the pool was opened, by a result or an error; of its predecessors, too.
        failed: those of them that it has answered by an error.
        cores: processors in use, such as 1.5; the mean of the time since it was asked before, 0.25 to 10 seconds.
        cpu_s: seconds of processor time used so far.
        memory: bytes in use, without the cache of files.
        memory_limit: bytes that it may use: the container's limit, or what the machine has.
        received, sent: bytes over its network interfaces so far, without loopback. Where nodes share the network of
            their machine, as containers and processes do, these are the machine's.
        received_rate, sent_rate: the same per second.
        gpus: the GPUs that it sees.
    """

    node: int
    host: str
    running: int
    queued: int
    done: int
    failed: int
    cores: float | None = None
    cpu_s: float | None = None
    memory: int | None = None
    memory_limit: int | None = None
    received: int | None = None
    sent: int | None = None
    received_rate: float | None = None
    sent_rate: float | None = None
    gpus: tuple[GpuStats, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStats:
    """A pool at one moment.

    Attributes:
        pool: its identifier.
        at: seconds since 1970.
        nodes: its nodes as they are now.
        running, queued: calls that run, and that wait, here or on a node.
        done, failed: calls that nodes have answered since the pool was opened; those that ended with an error.
    """

    pool: str
    at: float
    nodes: tuple[NodeStats, ...]
    running: int
    queued: int
    done: int
    failed: int

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> PoolStats:
        """Of what `to_dict` gave.

        Raises:
            TypeError, KeyError: it is not such a document.
        """
        nodes = tuple(
            NodeStats(**{**node, "gpus": tuple(GpuStats(**gpu) for gpu in node["gpus"])}) for node in document["nodes"]
        )
        return cls(**{**document, "nodes": nodes})
