"""The specification of a pool: nodes, workers, accelerators and volumes. `Cluster` is what plugins receive of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Literal

from skyward.errors import ConfigError
from skyward.model.parameters import suggesting

MOST_NODES = 10_000
MOST_SLOTS = 4_096  # more would exceed limits of machines on the threads of one user or container
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
OWN_FOLDERS = ("/", "/bin", "/dev", "/etc", "/lib", "/opt", "/proc", "/run", "/sbin", "/sys", "/tmp", "/usr", "/var")
# memory of one device in GB, by common name; all of them run CUDA
_NVIDIA = {
    "T4": 16, "T4G": 16, "L4": 24, "L20": 48, "L40": 48, "L40S": 48, "A2": 16, "A10": 24, "A10G": 24, "A30": 24,
    "A40": 48, "V100": 16, "P4": 8, "P40": 24, "P100": 16, "K80": 12,
    "A100": 40, "A100-80GB": 80, "H20": 96, "H100": 80, "H200": 141, "GH200": 96, "B200": 180, "B300": 270,
    "RTX3070": 8, "RTX3080": 10, "RTX3090": 24, "RTX4080": 16, "RTX4090": 24, "RTX5080": 16, "RTX5090": 32,
    "A4000": 16, "A5000": 24, "A6000": 48,
}  # fmt: skip
_OTHER = {"Trainium": 32, "Trainium2": 96, "Inferentia2": 32, "MI300X": 192, "MI250X": 128}
_SPELLING = {name.lower(): name for name in (*_NVIDIA, *_OTHER)}


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@suggesting("sky.Nodes")
@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """The wanted number of nodes of a pool: `desired`, and the bounds for it.

    The pool opens as soon as `min` of them are ready, and more join later; it continues while at least `min` are left.
    None means `desired`. The maximum is 10,000.
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
        """The number of nodes that the pool needs to open and to continue."""
        return self.desired if self.min is None else self.min

    @classmethod
    def of(cls, value: int | tuple[int, int] | Nodes) -> Nodes:
        """Return the nodes that a caller means: a number, `(min, max)`, or a `Nodes`."""
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
        concurrency: number of calls that run concurrently on a node, at most 4,096.
        buffer: number of calls that a node may hold beyond the running ones; 0 lets the pool choose by the calls'
            duration.
        executor: where concurrent calls run: "thread" (one process, the default), "process" (one process per
            slot, for code that holds the interpreter lock), "auto" (thread).
        per_node: ranks on each node: processes with a separate place in `instance_info()` and their share of the node's
            GPUs in `CUDA_VISIBLE_DEVICES`. `@` reaches every rank. "gpu" for one per GPU of the node. `concurrency` and
            `buffer` then apply to each rank.
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
        """Return the same with "gpu" replaced by the number of GPUs on a node.

        Raises:
            ConfigError: one rank per GPU is requested, and there is no GPU.
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
        """Return the numbers of a node's worker processes."""
        return range(node * self.processes, (node + 1) * self.processes)

    def rank_names(self, nodes: int) -> dict[int, str]:
        """Return the numbers of the worker processes that are ranks, in order, each with its name for messages.

        With `executor="process"` the processes of a node are one rank, represented by its first process.
        """
        if self.processes != self.ranks:
            return {node * self.processes: f"node {node}" for node in range(nodes)}
        return {rank: f"rank {rank} (node {rank // self.ranks})" for rank in range(nodes * self.ranks)}

    @property
    def slots(self) -> int:
        """Concurrent calls per process."""
        return 1 if self.executor == "process" else self.concurrency


@suggesting("sky.Accelerator")
@dataclass(frozen=True, slots=True)
class Accelerator:
    """A kind and number of accelerators on each node.

    Attributes:
        name: common name such as "A100" or "T4"; any other one needs `cuda=`.
        count: devices per node.
        memory_gb: memory of one device in GB; None for the usual amount for the name.
        cuda: whether it runs CUDA; None to decide by the name.

    Raises:
        ConfigError: the name is empty, or unknown and `cuda` not given; or the count is below 1.
    """

    name: str
    count: int = 1
    memory_gb: float | None = None
    cuda: bool | None = None

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ConfigError("An accelerator needs a name such as 'A100'; found an empty one.")
        if isinstance(self.count, bool) or self.count < 1:
            raise ConfigError(
                f"An accelerator's count is the number of devices per node, at least 1; found {self.count}."
            )
        name = _SPELLING.get(self.name.strip().lower(), self.name.strip())
        object.__setattr__(self, "name", name)
        if self.memory_gb is None:
            object.__setattr__(self, "memory_gb", {**_NVIDIA, **_OTHER}.get(name))
        if self.cuda is None:
            if name not in _NVIDIA and name not in _OTHER:
                raise ConfigError(_unknown_accelerator(name))
            object.__setattr__(self, "cuda", name not in _OTHER)

    @classmethod
    def of(cls, value: Accelerator | str | None) -> Accelerator | None:
        """Return the accelerator that a caller means: an object, a name ("A100"), one with a count ("A100:4"), None."""
        if value is None or isinstance(value, Accelerator):
            return value
        if not isinstance(value, str):
            raise ConfigError(
                "accelerator= takes a name, with the devices per node if there are several, such as 'A100:4', or "
                f"sky.Accelerator(...); found {value!r}."
            )
        name, _, count = value.partition(":")
        if count and not count.isdigit():
            raise ConfigError(
                f"Accelerator {value!r}: after the colon stands the number of devices per node, as in 'A100:4'."
            )
        return cls(name, int(count) if count else 1)

    @property
    def is_trainium(self) -> bool:
        """Whether this is one of AWS's own training chips."""
        return self.name.startswith("Trainium")


def fits(accelerator: Accelerator, shown: str) -> bool:
    """Return whether a GPU with this driver name may be this accelerator; False if it certainly is another.

    Driver names are like "NVIDIA A100-SXM4-80GB" or "NVIDIA GeForce RTX 4090". An unknown name matches all.
    """
    words = re.findall(r"[A-Z0-9]+", shown.upper())
    models = {*words, *map("".join, pairwise(words))} & _NVIDIA.keys()
    wanted, _, gigabytes = accelerator.name.partition("-")
    if not models or wanted not in _NVIDIA:
        return True
    if wanted not in models:
        return False
    told = next((int(word[:-2]) for word in words if re.fullmatch(r"[0-9]+GB", word)), None)
    return not gigabytes or told is None or f"{told}GB" == gigabytes


def _unknown_accelerator(name: str) -> str:
    from difflib import get_close_matches  # takes 5 ms, needed only for errors

    near = get_close_matches(name.lower(), _SPELLING, 1)
    counted = re.fullmatch(r"(?:(\d+)\s*x\s*)?(.*?)(?:\s*[x*]\s*(\d+))?", name, re.IGNORECASE)
    if counted and (counted[1] or counted[3]) and (known := _SPELLING.get(counted[2].lower())):
        meant = f"{known}:{counted[1] or counted[3]}"
        return f"The accelerator {name!r} is not known: for so many {known} on each node write {meant!r}."
    meant = f"is {_SPELLING[near[0]]!r} meant?" if near else f"known are {', '.join((*_NVIDIA, *_OTHER))}."
    return (
        f"The accelerator {name!r} is not known; {meant} For another one say whether it runs CUDA: "
        f"sky.Accelerator({name!r}, memory_gb=..., cuda=True)."
    )


@suggesting("sky.Volume")
@dataclass(frozen=True, slots=True)
class Volume:
    """An S3 bucket, or the part below a prefix, as a directory on every node: `sky.Volume("data", "/data")`.

    Attributes:
        bucket: its name.
        mount: the directory, as an absolute path; created if missing.
        prefix: common prefix of the objects' names, such as "runs/7"; "" for the whole bucket.
        read_only: whether nodes may only read. A file that is written sequentially, as models are saved, is in the
            bucket once it is closed; if two nodes write the same file, one overwrites the other's.

    Raises:
        ConfigError: a value is wrong.
    """

    bucket: str
    mount: str
    prefix: str = ""
    read_only: bool = True

    def __post_init__(self) -> None:
        bucket: object = self.bucket
        if not isinstance(bucket, str) or not _BUCKET.fullmatch(bucket):
            raise ConfigError(
                f"sky.Volume: {bucket!r} is not a name of a bucket: 3 to 63 small letters, digits, - and dots."
            )
        mount: object = self.mount
        if not isinstance(mount, str) or not PurePosixPath(mount).is_absolute() or ".." in PurePosixPath(mount).parts:
            raise ConfigError(f"sky.Volume: mount is an absolute path on the nodes, such as '/data'; found {mount!r}.")
        if str(PurePosixPath(mount)) in OWN_FOLDERS:
            raise ConfigError(
                f"sky.Volume: {mount} holds the node's own files, which a mount would hide; choose another."
            )
        others: tuple[object, object] = (self.prefix, self.read_only)
        if not isinstance(others[0], str) or not isinstance(others[1], bool):
            raise ConfigError(f"sky.Volume: prefix is a string and read_only True or False; found {self!r}.")

    @property
    def source(self) -> str:
        """Bucket and prefix as one path."""
        return f"{self.bucket}/{self.prefix.strip('/')}".rstrip("/")


def volumes_of(value: object) -> tuple[Volume, ...]:
    """Return the volumes that a caller means: a `Volume`, a list, or a mapping such as `{"/data": "s3://bucket/x"}`.

    Raises:
        ConfigError: it is none of these, or the directories of two volumes are equal or nested.
    """
    if value is None or isinstance(value, Volume):
        volumes: tuple[object, ...] = () if value is None else (value,)
    elif isinstance(value, Mapping):
        volumes = tuple(_volume_at(mount, url) for mount, url in value.items())
    elif isinstance(value, Sequence) and not isinstance(value, str):
        volumes = tuple(value)
    else:
        raise ConfigError(
            f"volumes= takes a list of sky.Volume(...), or a mapping from paths to URLs; found {value!r}."
        )
    found = []
    for each in volumes:
        if not isinstance(each, Volume):
            raise ConfigError(f"volumes= takes sky.Volume(bucket, mount); found {each!r} in the list.")
        found.append(each)
    for position, volume in enumerate(found):
        for other in found[:position]:
            one, two = PurePosixPath(volume.mount), PurePosixPath(other.mount)
            if one.is_relative_to(two) or two.is_relative_to(one):
                raise ConfigError(
                    f"volumes=: {other.mount} and {volume.mount} hide each other; choose other directories."
                )
    return tuple(found)


def _volume_at(mount: object, url: object) -> Volume:
    if not isinstance(url, str) or not url.startswith("s3://"):
        raise ConfigError(
            f"volumes=: the volume at {mount!r} is named by a URL such as 's3://bucket/prefix'; found {url!r}."
        )
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    return Volume(bucket, str(mount), prefix)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """The planned pool, as passed to a plugin's image transform: known before anything is provisioned.

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
    """The argument of plugin hooks on the client: the plan in `spec`."""

    spec: ClusterSpec
