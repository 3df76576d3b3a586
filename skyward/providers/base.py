"""What a provider of machines must be able to do, as the pool uses it.

A provider gives hosts; a host starts nodes (one task-runner each) and knows how to reach, watch and remove them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from skyward.errors import NodeStartError
from skyward.model.accelerator import Accelerator
from skyward.model.image import Image
from skyward.model.spec import Cluster
from skyward.system import socket

if TYPE_CHECKING:
    from skyward.build.events import Report

ANNOUNCEMENT = "skyward-ready "  # what the runner's one line on its standard output starts with


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Everything a host needs to start one node.

    Attributes:
        pool: identifier of the pool; becomes the label `skyward.pool`.
        node: index of the node; becomes the label `skyward.node`.
        name: name of the container or process: `skyward-<pool>-<node>`.
        image: reference of the image to run, None where nodes are plain processes.
        compute_pool: the node's COMPUTE_POOL document.
        runner: the runner's own settings (JSON), injected as SKYWARD_RUNNER.
        key: the secret key of this start of the node, known to it and to the client; reaches the node through a file
            that only its owner can read, never by environment, label or command line.
        env: the user's run-time environment.
        mounts: whether the node may mount file systems, which takes a container with more rights than usual.
        quiet: whether the pool shows nothing, so that notices which ask for nothing are left out.
    """

    pool: str
    node: int
    name: str
    image: str | None
    compute_pool: str
    runner: str
    key: bytes = field(repr=False)
    env: Mapping[str, str] = field(default_factory=dict)
    accelerator: Accelerator | None = None
    cpus: float | None = None
    memory_gb: float | None = None
    mounts: bool = False
    quiet: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """What a runner says once it listens: the address of its agent and of each of its workers.

    An address is `unix:<file name in the run directory>` or `tcp:<ip>:<port>`; only the node's host can resolve it.
    """

    agent: str
    workers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a node ended: exit status, signal number, whether the kernel killed it for memory, in words, its last lines.

    `text` completes a sentence that starts with the node: "ended with exit status 1". A `code` of None: nobody knows.
    """

    code: int | None
    signal: int | None = None
    oom: bool = False
    text: str = ""
    log: str = ""


class Node(Protocol):
    """A started task-runner."""

    @property
    def channel(self) -> bytes:
        """What names the encrypted channel that `connect` leads through, for the handshake; empty if there is none."""
        ...

    def wait_ready(self, timeout_s: float) -> Announcement:
        """Block until the runner has announced itself.

        Raises:
            NodeStartError: it ended, or said nothing in time; the message holds its last lines.
        """
        ...

    def connect(self, address: str) -> socket.socket:
        """A connected, blocking stream socket to an announced address."""
        ...

    def wait_exit(self, timeout_s: float) -> Exit | None:
        """How it ended; None if it still runs after `timeout_s`."""
        ...

    def remove(self) -> None:
        """End it at once if it runs, and remove what it leaves. Does nothing the second time."""
        ...


class Host(Protocol):
    """A machine that can run nodes."""

    @property
    def name(self) -> str: ...
    @property
    def address(self) -> str: ...  # IP address at which the other hosts' nodes reach this host
    def claim_port(self) -> int:
        """A TCP port on this host that no other pool gets while this one lives."""
        ...

    def start(self, launch: Launch) -> Node: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """A host that is going to be taken away, as its provider has learnt: a rented machine whose market wants it back.

    Attributes:
        host: which one.
        text: why, in words that complete "Node 1 ...": "will be taken away by AWS at 12:00".
        left_s: seconds until then; what has not ended by that time is lost.
    """

    host: Host
    text: str
    left_s: float


def _tell_nobody(_: object) -> None:
    """What a pool that does not listen is told by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a pool asks of machines that are rented for it, beyond their number and accelerator.

    Attributes:
        machine: the one type to take, by the provider's own name.
        allocation: which of the provider's markets to use, in its words; None for its default.
        max_hourly_cost: limit in USD per hour for all machines together.
        cpus, memory_gb: what a machine has at least; the memory in GiB.
        platform: OCI platform of the nodes' image.
        lease_s: how long a node lives without a client.
        report: is told what happens while machines are found, launched and given back.
        leaving: is told of a host that is going to be taken away, in any thread; returns at once.
    """

    machine: str | None = None
    allocation: str | None = None
    max_hourly_cost: float | None = None
    cpus: float | None = None
    memory_gb: float | None = None
    platform: str = "linux/amd64"
    lease_s: float = 300.0
    report: Report = _tell_nobody
    leaving: Callable[[Leaving], None] = _tell_nobody

    @property
    def of_rented_machines(self) -> str | None:
        """A parameter that was given and means nothing where no machine is rented; None if there is none."""
        names = ("machine", "allocation", "max_hourly_cost")
        return next((name for name in names if getattr(self, name) is not None), None)


class Provider(Protocol):
    """Where hosts come from.

    One that rents machines also has `on(terms)`, which gives the provider for one pool; one whose nodes may mount file
    systems has a true `can_mount`; one that checks or chooses its hosts by what they will run has
    `expect(pool, image, cluster)`, called before `acquire`.
    """

    @property
    def name(self) -> str: ...
    @property
    def lease_s(self) -> float: ...  # how long a node lives without a client, unless the pool says otherwise
    def acquire(
        self, pool: str, nodes: int, accelerator: Accelerator | None, at_least: int | None = None
    ) -> Sequence[Host]:
        """One host per node, in node order; the same host may appear more than once. Checks first, creates after.

        It may give fewer than `nodes` where some cannot be had now, but not fewer than `at_least` (None for all of
        them), and says of each why, in a line of its own. The pool asks for the others with `replace`.
        """
        ...

    def replace(self, pool: str, lost: Host | None, accelerator: Accelerator | None) -> Host:
        """A host for a node whose own is `lost`, or could not run it; None for a node that never had one.

        The lost one is given up, unless it is what is given again because it is well. Blocks until the host can be
        prepared; called by several threads at once. When `release` ends the pool meanwhile, nothing is left of it.

        Raises:
            ProviderError: none can be had now; the pool asks again a few times.
            PoolClosedError: the pool has ended, or another client has ended it; it asks no more.
        """
        ...

    def prepare(self, hosts: Sequence[Host], image: Image, cluster: Cluster, report: Report) -> str | None:
        """Compile the image (plugins applied) for this cluster and make it available on the hosts; what they run.

        It is built if it is nowhere. None where nodes run no image. Asked again, alone, for a host of `replace`.
        """
        ...

    def release(self, pool: str) -> None:
        """Remove everything of this pool that is still there, found by its label. Idempotent."""
        ...

    def find(self) -> Iterable[Mapping[str, Any]]:
        """What of skyward's exists at this provider, by label: pool, node, name, state, user (who started it).

        What is rented also has `hourly` and `cost`: USD per hour and so far, None where they are not known.
        """
        ...


def parse_announcement(line: str) -> Announcement | None:
    """The announcement in a line of a runner's standard output, None if it is some other line."""
    if not line.startswith(ANNOUNCEMENT):
        return None
    try:
        document = json.loads(line.removeprefix(ANNOUNCEMENT))
        return Announcement(agent=document["agent"], workers=tuple(document["workers"]))
    except (ValueError, KeyError, TypeError) as error:
        raise NodeStartError(f"A node announced itself in an unknown form ({error}): {line!r}.") from None
