"""Information about a pool: `Resource`, one of its resources according to its provider's labels, and its `stats()`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NotRequired, TypedDict


class Resource(TypedDict):
    """A node, or another resource of a pool at its provider.

    `node` is -1 for resources that belong to no node. `user` is who started the pool, as "name@host", and `owner` the
    process; each is "" if no label says so. `hourly` and `cost` apply to rented resources, in USD per hour and so far,
    None if unknown. `pool_name` is the name of a pool that has one; while it is kept it lives `until`, in seconds since
    1970.
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
    pool_name: NotRequired[str]
    until: NotRequired[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuStats:
    """One GPU.

    Attributes:
        name: the driver's name for it.
        utilization: share of the time in which it computed, 0 to 1; None if not reported.
        memory, memory_limit: bytes in use, and bytes in total.
    """

    name: str
    utilization: float | None
    memory: int | None
    memory_limit: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStats:
    """One node. Usage figures are None if the node has not answered in time.

    Attributes:
        node: its index.
        host: address of its machine.
        running: calls that are running there.
        queued: calls that have been sent to it and have not started.
        done: calls that it has answered since the pool was opened, by a result or an error; includes its predecessors'.
        failed: those of them that it has answered by an error.
        cores: processors in use, such as 1.5; the mean since the previous query, 0.25 to 10 seconds before.
        cpu_s: seconds of processor time used so far.
        memory: bytes in use, without the page cache.
        memory_limit: bytes that it may use: the container's limit, or the machine's memory.
        received, sent: bytes over its network interfaces so far, without loopback. If nodes share the network of their
            machine, as containers and processes do, these are the machine's.
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
    """Snapshot of a pool.

    Attributes:
        pool: its identifier.
        at: seconds since 1970.
        nodes: its current nodes.
        running, queued: calls that are running, and that are waiting, here or on a node.
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
        """Return the same as plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> PoolStats:
        """Create an instance from the result of `to_dict`.

        Raises:
            TypeError, KeyError: it is not such a document.
        """
        nodes = tuple(
            NodeStats(**{**node, "gpus": tuple(GpuStats(**gpu) for gpu in node["gpus"])}) for node in document["nodes"]
        )
        return cls(**{**document, "nodes": nodes})
