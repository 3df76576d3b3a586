"""The interface of providers: a `Provider` is a source of machines, an `Allocation` holds the machines of one pool.

A provider is an immutable value. All state of one pool (connections, processes, launched machines) is in the allocation
that `Provider.open` returns, and `find` and `destroy` work from labels alone, in any process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

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
    """Advance notice that a host will be reclaimed, such as a rented spot machine.

    Attributes:
        host: the host.
        text: the reason, completing a sentence "Node 1 ...": "will be reclaimed by AWS at 12:00".
        left_s: seconds until then; calls that have not ended by that time are lost.
    """

    host: Host
    text: str
    left_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Declaration of what a provider can do.

    Attributes:
        mounts: whether its nodes may mount file systems, as required for volumes.
        rents: whether its machines are paid for by the hour; `machine=`, `allocation=`, `max_hourly_cost=` and
            `budget=` apply only then.
        keeps: whether a named pool can be kept after its block, for the next client to take over.
        default_lease_s: seconds that a node lives without its client, unless the pool sets another value.
    """

    mounts: bool = False
    rents: bool = False
    keeps: bool = False
    default_lease_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One way to get all machines of a pool.

    Attributes:
        text: description: "2 x g5.xlarge (spot) in us-east-1a".
        hourly_cost: cost of all machines together, in USD per hour; None if unknown.
        machine, market, zone: for rented machines, in the provider's terms: "g5.xlarge", "spot", "us-east-1a".
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
    """The request of a pool to its provider.

    Attributes:
        pool_id: the pool's identifier, which labels everything that is created for it.
        nodes: number of nodes.
        at_least: number of nodes with which the pool can start; None for all of them.
        accelerator: GPUs of each node.
        image: image of the nodes, with the plugins' additions.
        cpus, memory_gb: limits of a node, and minimum of a rented machine; the memory in GiB.
        platform: OCI platform of the nodes' image.
        lease_s: how long a node lives without a client.
        name: name of a pool that may be kept.
        kept: the results of `Allocation.about` for nodes kept by an earlier client.
        machine: the machine type to rent, by the provider's name.
        allocation: which of the provider's markets to use, in its terms; None for its default.
        max_hourly_cost: limit in USD per hour for all machines together.
        budget: USD that all machines together may cost, from the first launch to the end of the pool.
        report: receives events while machines are found, launched and released, and while images are built.
        on_preemption: called when a host will be reclaimed, in any thread; returns at once.
        on_budget_spent: called with a sentence when the budget is spent and the machines are about to be ended.
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
        """The request for the image compiler, with the nodes' version of Python."""
        python = self.image.python if self.image.python != "auto" else local_minor()
        spec = ClusterSpec(nodes=self.nodes, accelerator=self.accelerator, platform=self.platform, python=python)
        return Cluster(spec=spec)

    @property
    def fewest(self) -> int:
        """The minimum number of nodes with which the pool can start."""
        return self.nodes if self.at_least is None else self.at_least

    @property
    def gpus(self) -> int:
        """The number of GPUs of each node."""
        return self.accelerator.count if self.accelerator else 0

    @property
    def rental_parameter(self) -> str | None:
        """The name of a given parameter that only applies to rented machines; None if there is none."""
        names = ("machine", "allocation", "max_hourly_cost", "budget")
        return next((name for name in names if getattr(self, name) is not None), None)


class Allocation(ABC):
    """The machines of one pool, and all its other resources at the provider.

    The pool creates it before any resource exists, and closes it in any case. `replace` and `prepare` are called by
    several threads at once, even while `close` runs: none of their resources may remain after that.
    """

    def __init__(self, request: PoolRequest) -> None:
        """Store the request. Nothing is connected or created before `acquire`."""
        self.request = request
        self.ended = threading.Event()

    def check_open(self) -> None:
        """Refuse to create anything once the pool is being closed.

        To be called under the lock that `release` or `let_go` takes before it collects what is to be removed.

        Raises:
            PoolClosedError: `close` has been called.
        """
        if self.ended.is_set():
            raise PoolClosedError(f"Pool {self.request.pool_id} has ended; no node of it can be started.")

    def close(self) -> None:
        """Remove all resources of the pool. Further calls do nothing.

        Raises:
            SkywardError: a resource could not be removed; it ends by its lease.
        """
        if not self.ended.is_set():
            self.ended.set()
            self.release()

    def keep(self, keep_s: float, nodes: Collection[int]) -> None:
        """Leave these nodes to the next client of the pool, for at most `keep_s` seconds; instead of `close`."""
        if not self.ended.is_set():
            self.ended.set()
            self.let_go(keep_s, nodes)

    @abstractmethod
    def acquire(self) -> Sequence[Host]:
        """Return one host per node, in node order; the same host may appear several times. Checks before it creates.

        It may return fewer than `request.nodes` if some are unavailable at present, but not fewer than
        `request.fewest`, and reports the reason for each in a separate line. The pool requests the others with
        `replace`.

        Raises:
            ProviderError: they are unavailable; another provider may have them.
        """

    @abstractmethod
    def prepare(self, hosts: Sequence[Host]) -> str | None:
        """Make the request's image available on these hosts, building it if necessary; return its reference there.

        None if nodes run no image. Called after `acquire` with its hosts, and for each host from `replace` separately.
        """

    @abstractmethod
    def replace(self, lost: Host | None) -> Host:
        """Return a host for a node whose own is `lost`, or could not run it; `lost` is None if it never had one.

        The lost host is released, unless it works and is returned again. Blocks until the host can be prepared.

        Raises:
            ProviderError: none is available now; the pool tries again a few times.
            PoolClosedError: the pool has ended, or another client has ended it; the pool does not try again.
        """

    @abstractmethod
    def release(self) -> None:
        """Remove all resources of the pool, in any state; called once, by `close`."""

    # for providers whose capabilities have `keeps`

    def adopt(
        self,
        launch: Launch,  # noqa: ARG002
        about: Mapping[str, Any],  # noqa: ARG002
        agent: str,  # noqa: ARG002
    ) -> tuple[Node, Mapping[str, str] | None]:
        """Return a node of this pool started by an earlier client, and the environment for its workers.

        Args:
            launch: the launch with which it would be started; its key is that of the node.
            about: the result of `about` for it.
            agent: address of its agent.

        Returns:
            The node, whether or not it still runs, and a complete environment; None to leave it unchanged.
        """
        raise self._cannot_keep()

    def about(self, node: int) -> Mapping[str, Any]:  # noqa: ARG002
        """Return the values, as JSON types, that `adopt` needs to find a node again."""
        raise self._cannot_keep()

    def let_go(self, keep_s: float, nodes: Collection[int]) -> None:  # noqa: ARG002
        """Leave these nodes running, and remove everything else; called once, by `keep`."""
        raise self._cannot_keep()

    def _cannot_keep(self) -> ProviderError:
        return ProviderError(f"{type(self).__name__} keeps no pools.")


class Provider(ABC):
    """A source of machines: an immutable value without the state of any pool.

    Subclasses are frozen dataclasses. Their arguments are checked when they are created.

    Attributes:
        registry: repository through which images reach the nodes; None for none.
    """

    registry: str | None = None

    @property
    @abstractmethod
    def name(self) -> str:
        """Its name in messages."""

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """Its capabilities."""

    def check(self, request: PoolRequest) -> None:
        """Reject requests that can never be fulfilled. Called when a pool is created, before anything exists; purely
        local.

        Raises:
            ConfigError: the request is incompatible with the provider.
        """
        if not self.capabilities.rents and (asked := request.rental_parameter):
            raise ConfigError(f"{asked}= is for providers of rented machines; sky.{type(self).__name__} rents none.")
        if request.name is not None and not self.capabilities.keeps:
            raise ConfigError(
                "name= and keep= are for pools of sky.Local, sky.Docker and sky.SSH, whose nodes can wait for the "
                f"next client; sky.{type(self).__name__} keeps none."
            )

    def offers(self, request: PoolRequest) -> Sequence[Offer]:  # noqa: ARG002 - equal for all that rent nothing
        """Return the ways to get a pool's machines, in the order in which they are tried; at least one.

        Raises:
            ProviderError: there is none.
        """
        return [Offer(text=f"machines of {self.name}, which are not rented", hourly_cost=0.0)]

    @abstractmethod
    def open(self, request: PoolRequest) -> Allocation:
        """Return the allocation of a pool. It is empty: only its `acquire` creates resources."""

    @abstractmethod
    def find(self) -> Sequence[Resource]:
        """Return skyward's resources at this provider, by label: pool, node, name, state, user (who started it).

        Rented ones also have `hourly` and `cost`: USD per hour and so far, None if unknown.
        """

    @abstractmethod
    def destroy(self, pool_id: str) -> None:
        """Remove all resources of a pool, found by its label, whichever client has created them. Idempotent."""

    def enter(self, node: Resource) -> NodeAccess:
        """Return access to a node listed by `find`, for any process of a user who may use the provider.

        It opens no ports, and leaves nothing behind.

        Raises:
            ProviderError: the node cannot be entered from here; the message gives the reason.
        """
        raise ProviderError(f"sky.{type(self).__name__} has no way into a node for another process ({node['name']}).")


def check_delivery(title: str, build: object, registry: str | None) -> None:
    """Check a provider's settings for building and delivering images; `title` is its name for users.

    Raises:
        ConfigError: a value is invalid.
    """
    if build not in ("local", "remote"):
        raise ConfigError(f"{title}: build must be 'local' or 'remote'; found {build!r}.")
    if registry is not None:
        from skyward.builder.registry.reference import parse_reference

        parse_reference(registry)
