"""The contract of providers: a `Provider` names where machines come from, an `Allocation` holds those of one pool.

A provider is an immutable value. Everything that belongs to one pool (connections, processes, what was launched) is
in the allocation that `Provider.open` returns, and `find` and `destroy` work from labels alone, in any process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from skyward.delivery.checks import check_verifiable
from skyward.errors import ConfigError, PoolClosedError, ProviderError
from skyward.model.image import Image
from skyward.model.image_fields import local_minor
from skyward.model.resource import Resource
from skyward.model.spec import Accelerator, Cluster, ClusterSpec
from skyward.nodes.access import NodeAccess
from skyward.nodes.node import Host, Launch, Node
from skyward.system import threading

if TYPE_CHECKING:
    from skyward.builder.events import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionNotice:
    """A host that is going to be taken away, as its provider has learnt: a rented machine whose market wants it back.

    Attributes:
        host: which one.
        text: why, in words that complete "Node 1 ...": "will be taken away by AWS at 12:00".
        left_s: seconds until then; what has not ended by that time is lost.
        is_replaced: whether its pool gets another one; else the pool ends with it, as `Allocation.replace` then says.
    """

    host: Host
    text: str
    left_s: float
    is_replaced: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a provider can do, declared.

    Attributes:
        mounts: whether its nodes may mount file systems, which volumes need.
        rents: whether its machines are paid for by the hour; only then do `machine=`, `allocation=`,
            `max_hourly_cost=` and `budget=` mean anything.
        keeps: whether a pool with a name can be kept after its block, for the next client to take over.
        default_lease_s: seconds that a node lives without its client, unless the pool says otherwise.
    """

    mounts: bool = False
    rents: bool = False
    keeps: bool = False
    default_lease_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One way to get all machines of a pool.

    Attributes:
        text: in words: "2 x g5.xlarge (spot) in us-east-1a".
        hourly_cost: of all machines together, in USD per hour; None where it is not known.
        machine, market, zone: of what is rented, in the provider's words: "g5.xlarge", "spot", "us-east-1a".
    """

    text: str
    hourly_cost: float | None
    machine: str = ""
    market: str = ""
    zone: str = ""


def _ignore(_: object) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRequest:
    """What a pool asks of its provider.

    Attributes:
        pool_id: the pool's identifier, which labels everything that is made for it.
        nodes: how many.
        at_least: with how many the pool can begin; None for all of them.
        accelerator: GPUs of each node.
        image: what the nodes run, with the plugins' additions.
        cpus, memory_gb: limits of a node, and what a rented machine has at least; the memory in GiB.
        platform: OCI platform of the nodes' image.
        lease_s: how long a node lives without a client.
        name: that of a pool which may be kept.
        kept: what `Allocation.about` has said of its nodes, where an earlier client has left some.
        machine: the one type to rent, by the provider's own name.
        allocation: which of the provider's markets to use, in its words; None for its default.
        max_hourly_cost: limit in USD per hour for all machines together.
        budget: USD that all machines together may cost, from the first launch to the end of the pool.
        report: is told what happens while machines are found, launched and given back, and while images are built.
        on_preemption: is told of a host that is going to be taken away, in any thread; returns at once.
        on_budget_spent: is told, in a sentence, that the budget is spent and the machines are about to be ended.
    """

    pool_id: str
    nodes: int = 1
    at_least: int | None = None
    accelerator: Accelerator | None = None
    image: Image = field(default_factory=Image)
    cpus: float | None = None
    memory_gb: float | None = None
    platform: str = "linux/amd64"
    lease_s: float = 60.0
    name: str | None = None
    kept: Sequence[Mapping[str, Any]] = ()
    machine: str | None = None
    allocation: str | None = None
    max_hourly_cost: float | None = None
    budget: float | None = None
    report: Report = _ignore
    on_preemption: Callable[[PreemptionNotice], None] = _ignore
    on_budget_spent: Callable[[str], None] = _ignore

    @property
    def cluster(self) -> Cluster:
        """The same for the compiler of images: with the version of Python that the nodes run."""
        python = self.image.python if self.image.python != "auto" else local_minor()
        spec = ClusterSpec(nodes=self.nodes, accelerator=self.accelerator, platform=self.platform, python=python)
        return Cluster(spec=spec)

    @property
    def fewest(self) -> int:
        """The number of nodes without which the pool cannot begin."""
        return self.nodes if self.at_least is None else self.at_least

    @property
    def gpus(self) -> int:
        """GPUs of each node."""
        return self.accelerator.count if self.accelerator else 0

    @property
    def rental_parameter(self) -> str | None:
        """A parameter that was given and means nothing where no machine is rented; None if there is none."""
        given = {
            "machine": self.machine,
            "allocation": self.allocation,
            "max_hourly_cost": self.max_hourly_cost,
            "budget": self.budget,
        }
        return next((name for name, value in given.items() if value is not None), None)


class Allocation(ABC):
    """The machines of one pool, and everything else that the pool has at its provider.

    The pool holds it from before anything exists, and closes it in any case. `replace` and `prepare` are called by
    several threads at once, also while `close` runs: after that nothing may be left of what they were making.
    """

    def __init__(self, request: PoolRequest) -> None:
        """Note the request. Nothing is connected to and nothing made before `acquire`."""
        self.request = request
        self.ended = threading.Event()

    def check_open(self) -> None:
        """Refuse to make anything once the pool is being closed: call it under the lock under which that is noted.

        Raises:
            PoolClosedError: `close` has been called.
        """
        if self.ended.is_set():
            raise PoolClosedError(f"Pool {self.request.pool_id} has ended; no node of it can be started.")

    def close(self) -> None:
        """Remove everything that the pool has. Called again, it does nothing.

        Raises:
            SkywardError: something could not be removed, and ends by its lease.
        """
        if not self.ended.is_set():
            self.ended.set()
            self.release()

    def keep(self, keep_s: float, nodes: Collection[int]) -> None:
        """Leave these nodes to the next client of the pool, which may come for so long; instead of `close`."""
        if not self.ended.is_set():
            self.ended.set()
            self.let_go(keep_s, nodes)

    @abstractmethod
    def acquire(self) -> Sequence[Host]:
        """One host per node, in node order; the same host may appear more than once. Checks first, creates after.

        It may give fewer than `request.nodes` where some cannot be had now, but not fewer than `request.fewest`, and
        says of each why, in a line of its own. The pool asks for the others with `replace`.

        Raises:
            ProviderError: they cannot be had; another provider may have them.
        """

    @abstractmethod
    def prepare(self, hosts: Sequence[Host]) -> str | None:
        """Make the request's image available on these hosts, building it if it is nowhere; its reference there.

        None where nodes run no image. Called after `acquire` with its hosts, and with each host of `replace` alone.
        """

    @abstractmethod
    def replace(self, lost: Host | None) -> Host:
        """A host for a node whose own is `lost`, or could not run it; None for a node that never had one.

        The lost one is given up, unless it is what is given again because it is well. Blocks until the host can be
        prepared.

        Raises:
            ProviderError: none can be had now; the pool asks again a few times.
            PoolClosedError: the pool has ended, or another client has ended it; it asks no more.
        """

    @abstractmethod
    def release(self) -> None:
        """Remove everything of the pool, whatever state it is in; `close` calls it, once."""

    # what follows is for providers whose capabilities say `keeps`

    def adopt(
        self,
        launch: Launch,  # noqa: ARG002
        about: Mapping[str, Any],  # noqa: ARG002
        agent: str,  # noqa: ARG002
    ) -> tuple[Node, Mapping[str, str] | None]:
        """A node of this pool that an earlier client has started, and the environment that its workers shall have.

        Args:
            launch: what it would be started with; its key is that of the node.
            about: what `about` has said of it.
            agent: address of its agent.

        Returns:
            The node, whether or not it still runs, and an environment in whole; None for the one that it has.
        """
        raise self._cannot_keep()

    def about(self, node: int) -> Mapping[str, Any]:  # noqa: ARG002
        """What `adopt` needs to find a node again, in values of JSON."""
        raise self._cannot_keep()

    def let_go(self, keep_s: float, nodes: Collection[int]) -> None:  # noqa: ARG002
        """Leave these nodes running, and remove everything else; `keep` calls it, once."""
        raise self._cannot_keep()

    def _cannot_keep(self) -> ProviderError:
        return ProviderError(f"{type(self).__name__} keeps no pools.")


class Provider(ABC):
    """Where machines come from: an immutable value that knows no pool.

    Subclasses are frozen dataclasses. Whatever they are told is checked when they are made.

    Attributes:
        registry: repository that the image goes through to its nodes; None for none. Signatures are kept there.
    """

    registry: str | None = None

    @property
    @abstractmethod
    def name(self) -> str:
        """Its name in messages."""

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What it can do."""

    def check(self, request: PoolRequest) -> None:
        """Refuse what it can never give. Called when a pool is made, before anything exists; asks nobody.

        Raises:
            ConfigError: the request contradicts what the provider is.
        """
        if not self.capabilities.rents and (asked := request.rental_parameter):
            raise ConfigError(f"{asked}= is for providers of rented machines; sky.{type(self).__name__} rents none.")
        if request.name is not None and not self.capabilities.keeps:
            raise ConfigError(
                "name= and keep= are for pools of sky.Local, sky.Docker and sky.SSH, whose nodes can wait for the "
                f"next client; sky.{type(self).__name__} keeps none."
            )
        check_verifiable(request.image, self.registry)

    def offers(self, request: PoolRequest) -> Sequence[Offer]:  # noqa: ARG002 - the same for all that rent nothing
        """The ways to get a pool's machines, in the order in which they are tried; at least one.

        Raises:
            ProviderError: there is none.
        """
        return [Offer(text=f"machines of {self.name}, which are not rented", hourly_cost=0.0)]

    @abstractmethod
    def open(self, request: PoolRequest) -> Allocation:
        """The allocation of a pool, which is empty: only its `acquire` makes anything."""

    @abstractmethod
    def find(self) -> Sequence[Resource]:
        """What of skyward's exists at this provider, by label: pool, node, name, state, user (who started it).

        What is rented also has `hourly` and `cost`: USD per hour and so far, None where they are not known.
        """

    @abstractmethod
    def destroy(self, pool_id: str) -> None:
        """Remove everything of a pool that is there, found by its label, whoever made it. Idempotent."""

    def enter(self, node: Resource) -> NodeAccess:
        """A way into a node that `find` has listed, for any process of a user who may use the provider.

        It opens no port, and makes nothing that remains.

        Raises:
            ProviderError: there is no way from here; says why.
        """
        raise ProviderError(f"sky.{type(self).__name__} has no way into a node for another process ({node['name']}).")


def check_delivery(title: str, build: object, registry: str | None) -> None:
    """Check how a provider, of this name for users, has images built and brought to its machines.

    Raises:
        ConfigError: a value is wrong.
    """
    if build not in ("local", "remote"):
        raise ConfigError(f"{title}: build must be 'local' or 'remote'; found {build!r}.")
    if registry is not None:
        from skyward.builder.registry.reference import parse_reference

        parse_reference(registry)
