"""The specification of a pool: nodes, workers, and the plan that plugins see before any machine exists."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from skyward.errors import ConfigError
from skyward.model.accelerator import Accelerator
from skyward.model.parameters import suggesting

MOST_NODES = 10_000
MOST_SLOTS = 4_096  # more meet the limits that machines have on the threads of one user or container


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@suggesting("sky.Nodes")
@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """How many nodes a pool wants: `desired`, and the bounds within which it may work.

    It opens as soon as `min` of them are ready, and more join; it goes on while as many are left. None for `desired`.
    There are at most 10,000.
    """

    desired: int
    min: int | None = None
    max: int | None = None

    def __post_init__(self) -> None:
        low = self.desired if self.min is None else self.min
        high = self.desired if self.max is None else self.max
        if not all(map(_is_whole, (low, self.desired, high))):
            raise ConfigError(
                f"nodes takes a whole number, (min, max) or Nodes(...); found min={low!r}, desired={self.desired!r}, "
                f"max={high!r}."
            )
        if not 1 <= low <= self.desired <= high:
            raise ConfigError(
                f"nodes: 1 <= min <= desired <= max must hold; found min={low}, desired={self.desired}, max={high}."
            )
        if high > MOST_NODES:
            raise ConfigError(f"A pool has at most {MOST_NODES:,} nodes; found {high:,}.")

    @property
    def least(self) -> int:
        """With how many nodes the pool opens, and goes on."""
        return self.desired if self.min is None else self.min

    @classmethod
    def of(cls, value: int | tuple[int, int] | Nodes) -> Nodes:
        """The nodes a caller means: a number, `(min, max)`, or a `Nodes`."""
        if isinstance(value, Nodes):
            return value
        if isinstance(value, tuple):
            if len(value) != 2:
                raise ConfigError(f"nodes as a tuple is (min, max); found {value!r}.")
            low, high = value
            if _is_whole(low) and _is_whole(high) and high < low:
                raise ConfigError(f"nodes as a tuple is (min, max); found {value!r}: write ({high}, {low}).")
            return cls(desired=high, min=low, max=high)
        if not _is_whole(value) or value < 1:
            raise ConfigError(
                f"nodes= takes a whole number, at least 1, (min, max) or sky.Nodes(...); found {value!r}."
            )
        return cls(desired=value)


@suggesting("sky.Worker")
@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """How calls run on a node.

    Attributes:
        concurrency: calls that run at once on a node, at most 4,096.
        buffer: calls a node may hold beyond the running ones; 0 lets the pool choose by the calls' duration.
        executor: where concurrent calls run: "thread" (one process, the default), "process" (one process per
            slot, for code that holds the interpreter lock), "auto" (thread).
        per_node: ranks on each node: processes that each have a place of their own in `instance_info()` and their part
            of the node's GPUs in `CUDA_VISIBLE_DEVICES`. `@` reaches every rank. "gpu" for one per GPU of the node.
            `concurrency` and `buffer` are then those of a rank.
    """

    concurrency: int = 1
    buffer: int = 0
    executor: Literal["auto", "thread", "process"] = "auto"
    per_node: int | Literal["gpu"] = 1

    def __post_init__(self) -> None:
        if not (_is_whole(self.concurrency) and self.concurrency >= 1):
            raise ConfigError(
                f"concurrency is the number of calls at once per node, at least 1; found {self.concurrency!r}."
            )
        if self.concurrency > MOST_SLOTS:
            raise ConfigError(
                f"concurrency= takes at most {MOST_SLOTS:,} calls at once on a node, which are threads or processes "
                f"there; found {self.concurrency:,}. Give more nodes; calls that wait for a slot need none."
            )
        if not (_is_whole(self.buffer) and self.buffer >= 0):
            raise ConfigError(f"buffer is a number of calls, at least 0; found {self.buffer!r}.")
        if self.executor not in ("auto", "thread", "process"):
            raise ConfigError(f"executor must be 'auto', 'thread' or 'process'; found {self.executor!r}.")
        if self.per_node != "gpu" and not (_is_whole(self.per_node) and self.per_node >= 1):
            raise ConfigError(f"per_node is the number of ranks on each node, or 'gpu'; found {self.per_node!r}.")
        if self.executor == "process" and self.per_node != 1:
            raise ConfigError(
                "executor='process' gives a node several processes that share one rank, per_node= several ranks; "
                "choose one of them."
            )

    def on(self, accelerator: Accelerator | None) -> Worker:
        """The same with "gpu" replaced by the number of GPUs on a node.

        Raises:
            ConfigError: one rank per GPU is asked for, and there is no GPU.
        """
        if self.per_node != "gpu":
            return self
        if accelerator is None:
            raise ConfigError(
                "Worker(per_node='gpu') is one rank for each GPU of a node, but the pool has no accelerator; name it "
                "(accelerator='A100:8'), or give a number of ranks."
            )
        return replace(self, per_node=accelerator.count)

    @property
    def ranks(self) -> int:
        """Ranks per node, once "gpu" has been replaced."""
        assert self.per_node != "gpu"
        return self.per_node

    @property
    def processes(self) -> int:
        """Worker processes per node."""
        return self.concurrency if self.executor == "process" else self.ranks

    def ranks_of_node(self, node: int) -> range:
        """The numbers of a node's worker processes."""
        return range(node * self.processes, (node + 1) * self.processes)

    def rank_names(self, nodes: int) -> dict[int, str]:
        """The numbers of the worker processes that are ranks, in their order, each with its name in messages.

        With `executor="process"` the processes of a node are one rank, which its first process stands for.
        """
        if self.processes != self.ranks:
            return {node * self.processes: f"node {node}" for node in range(nodes)}
        return {rank: f"rank {rank} (node {rank // self.ranks})" for rank in range(nodes * self.ranks)}

    @property
    def slots(self) -> int:
        """Calls at once per process."""
        return 1 if self.executor == "process" else self.concurrency


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """The planned pool, as a plugin's image transform may read it: known before anything is provisioned.

    Attributes:
        nodes: number of nodes.
        accelerator: accelerators of each node, None for CPU nodes.
        platform: OCI platform of the nodes, such as "linux/amd64".
        python: minor version of Python in the image, such as "3.11".
        workers_per_node: ranks on each node.
    """

    nodes: int = 1
    accelerator: Accelerator | None = None
    platform: str = "linux/amd64"
    python: str = "3.11"
    workers_per_node: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What plugin hooks on the client see: the plan in `spec`."""

    spec: ClusterSpec
