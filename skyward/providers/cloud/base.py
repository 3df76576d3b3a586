"""The interface of clouds to the common code, the values that they exchange, and the search for and end of pools.

A cloud implements `Cloud` and `Launcher` with single calls of its API. The order of these calls, retries, waiting, keys
and cost are handled by the common code, here and in the other modules of this package. Pools are found by tags alone.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeVar

from skyward.errors import ConfigError, ProviderError
from skyward.model.resource import Resource
from skyward.nodes.process_id import ProcessId, current_user
from skyward.system import time
from skyward.system.futures import ThreadPoolExecutor

if TYPE_CHECKING:
    from skyward.providers.base import PoolRequest

T = TypeVar("T")
R = TypeVar("R")
Market = Literal["spot", "on-demand"]
State = Literal["pending", "running", "stopped", "ending", "ended"]
GONE: Final = "gone"  # code of a machine that disappears from the list while it starts
_log = logging.getLogger(__name__)
_ENDED_WITHIN_S = 300.0  # large machines take minutes to end
_POLL_S = 2.0
_POLL_AFTER_REQUEST_S = 0.2
_PARALLEL = 16  # calls


class RefusedError(ProviderError):
    """The cloud refused a call.

    Attributes:
        code: the cloud's code for the reason, such as "InsufficientInstanceCapacity".
    """

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code

    @property
    def is_gone(self) -> bool:
        """Whether the object of the call does not exist."""
        return self.code.lower().endswith("notfound")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineType:
    """A type of machine.

    Attributes:
        name: such as "g5.xlarge".
        cpus: number of virtual processors.
        memory_gb: memory in GiB.
        platform: "linux/amd64" or "linux/arm64".
        gpus: number of NVIDIA GPUs.
    """

    name: str
    cpus: int
    memory_gb: float
    platform: str
    gpus: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineOffer:
    """One way to get a pool's machines: all of one type, in one zone, in one market.

    Attributes:
        type: the machine type.
        market: "spot" is cheaper, but the cloud may take the machine back at short notice.
        zone: availability zone, such as "us-east-1a".
        hourly: price of one machine in USD per hour; None if the cloud does not publish it.
    """

    type: MachineType
    market: Market
    zone: str
    hourly: float | None

    @property
    def key(self) -> tuple[str, str, Market]:
        """The part of the offer that does not change with the price."""
        return (self.type.name, self.zone, self.market)

    def cost(self, nodes: int) -> float | None:
        """Return the cost of this many machines in USD per hour; None if unknown."""
        return None if self.hourly is None else self.hourly * nodes

    def text(self, nodes: int) -> str:
        """Return a description with the price for this many machines."""
        cost = self.cost(nodes)
        price = "at an unknown price" if cost is None else f"for {cost:.3f} USD per hour"
        return f"{nodes} x {self.type.name} ({self.market}) in {self.zone} {price}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """A request for machines of one offer; the cloud launches all of them or none.

    Attributes:
        token: identifies the request. A cloud that receives the same token again launches nothing.
        nodes: number of machines.
        offer: their type, market and zone.
        user_data: configuration for cloud-init.
    """

    token: str
    nodes: int
    offer: MachineOffer
    user_data: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A machine as the cloud describes it.

    Attributes:
        id: such as "i-0123".
        pool: the pool that it is tagged with.
        index: its number within its launch.
        state: its state; "ending" and "ended" machines no longer cost anything.
        type: name of the machine type.
        market: market in which it was rented.
        address: where the client can reach it; "" while it has no address.
        noted: the result of `notes`, with which it was tagged at its launch.
        launched: time of the launch, in seconds since the epoch.
        reason: why it has ended, as stated by the cloud.
        code: the cloud's code for the reason, like that of a refused call.
    """

    id: str
    pool: str
    index: int
    state: State
    type: str
    market: Market
    address: str = ""
    noted: Mapping[str, object] = field(default_factory=dict)
    launched: float = 0.0
    reason: str = ""
    code: str = ""

    @property
    def exists(self) -> bool:
        """Whether it still has to be ended."""
        return self.state not in ("ending", "ended")

    @property
    def hourly(self) -> float | None:
        """The price in USD per hour at its launch; None if it was unknown."""
        return _number(self.noted.get("hourly"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """What the cloud will do with a machine.

    Attributes:
        action: such as "terminate".
        at: time of the action.
    """

    action: str
    at: datetime

    @classmethod
    def read(cls, text: str) -> Notice:
        """Parse the output of `FirstStart.read_notice`; raises ValueError, KeyError or TypeError if it is no notice."""
        found = json.loads(text)
        return cls(action=str(found["action"]), at=datetime.fromisoformat(found["time"]).astimezone(UTC))

    @property
    def left_s(self) -> float:
        """The seconds until then, by the clock of this machine."""
        return (self.at - datetime.now(UTC)).total_seconds()


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstStart:
    """Actions of a cloud's machines at their first start, in addition to those of all machines.

    Attributes:
        read_notice: body of a POSIX shell function that prints the notice of the machine's end, or nothing while there
            is none: {"action": "terminate", "time": "2030-01-01T12:00:00Z"}. It may use `ask`, which is curl with a
            short timeout. It runs every two seconds.
        open_metadata: whether containers may access the metadata service of their machine.
        open_ports: ports of 169.254.169.254 that remain open, such as 53 if it is also the name server.
        files: text of further files, by path; they are written before sshd starts.
        commands: further shell commands.
    """

    read_notice: str
    open_metadata: bool = False
    open_ports: Sequence[int] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    commands: Sequence[str] = ()


class Cloud(Protocol):
    """The API of a cloud in one region, with the settings of one provider.

    Every method may raise ProviderError if the cloud cannot be reached, and RefusedError if it refuses.
    """

    @property
    def name(self) -> str:
        """The cloud in messages, such as "AWS"."""

    @property
    def region(self) -> str:
        """The region in messages."""

    @property
    def no_room(self) -> frozenset[str]:
        """The codes of a RefusedError, or of a machine that ended at once, after which another offer may succeed."""

    @property
    def first_start(self) -> FirstStart:
        """The actions of this cloud's machines at their first start."""

    def offers(self, request: PoolRequest, markets: Sequence[Market]) -> Sequence[MachineOffer]:
        """Return all offers that satisfy a pool's request, in any order.

        Raises:
            ConfigError: the cloud has no such accelerator.
            ProviderError: the region has no such machine.
        """

    def launcher(self, request: PoolRequest) -> Launcher:
        """Look up the boot image and the network of the pool's machines. Creates nothing."""

    def instances(self, pool: str | None = None) -> Sequence[Instance]:
        """Return the machines of a pool, or of all pools, by tag, including those that are ending.

        Ended ones are listed for a while as "ended", or not at all.
        """

    def terminate(self, ids: Sequence[str]) -> None:
        """End machines. Those that no longer exist are ignored."""

    def others(self, pool: str | None = None) -> Sequence[Resource]:
        """Return other resources tagged with a pool, or with any pool, such as a security group: with `node` -1.

        Those still being created are included.
        """

    def remove(self, name: str) -> bool:
        """Remove one of these; return False if that has to wait for machines that are ending."""


class Launcher(Protocol):
    """Launches the machines of one pool."""

    def prepare(self) -> None:
        """Create what the machines require, such as a security group, tagged with the pool."""

    def launch(self, request: LaunchRequest) -> Sequence[str]:
        """Launch machines, and return their ids in node order."""


# for classes of clouds --------------------------------------------------------------------------------------------


@contextmanager
def ignoring(*codes: str) -> Iterator[None]:
    """Ignore a refusal with one of these codes."""
    try:
        yield
    except RefusedError as error:
        if error.code not in codes:
            raise


def named(found: object, what: str, example: str, variable: str) -> str:
    """Return the name of a region or project, as found in any of its sources.

    Raises:
        ConfigError: it was found in none; the message says how to set it.
    """
    if not found:
        raise ConfigError(f"No {what} is named. Write {example}, or set {variable}.")
    return str(found)


def at_once(do: Callable[[T], R], given: Sequence[T]) -> list[R]:
    """Call the function for each argument, in parallel; return the results."""
    with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="skyward-cloud") as threads:
        return list(threads.map(do, given))


def notes(pool: str) -> dict[str, str]:
    """Return the tags of all resources created for a pool: which client has created them, for people to read."""
    return {"pool": pool, "owner": ProcessId.of(os.getpid()).for_people, "user": current_user()}


def leftover(kind: str, name: str, noted: Mapping[str, object]) -> Resource:
    """Return the description of a pool's resource that is not a machine. Its tags are untrusted input."""
    pool, owner, user = (str(noted.get(key, "")) for key in ("pool", "owner", "user"))
    return Resource(pool=pool, node=-1, name=name, state=kind, owner=owner, user=user)


def _number(noted: object) -> float | None:
    try:
        return float(str(noted))
    except ValueError:
        return None


# resources of pools ---------------------------------------------------------------------------------------------


def find(cloud: Cloud) -> Sequence[Resource]:
    """Return all machines of all pools in the form of `Provider.find`; resources without machines have node -1."""
    instances = cloud.instances()
    pools = {each.pool for each in instances if each.state != "ended"}
    machines = [_describe(each) for each in sorted(instances, key=lambda each: (each.pool, each.index)) if each.exists]
    return machines + [each for each in cloud.others() if each["pool"] not in pools]


def sweep(cloud: Cloud) -> None:
    """End this user's machines that have shut themselves down, of any pool; if the cloud keeps them, their disks cost
    money.

    No client starts a stopped machine again. A failure is logged as a warning, since the pool being opened does not
    depend on it.
    """
    mine = (each for each in cloud.instances() if each.noted.get("user") == current_user())
    stopped = [each.id for each in mine if each.state == "stopped"]
    try:
        if stopped:
            cloud.terminate(stopped)
    except ProviderError as error:
        _log.warning("Stopped machines of other pools were not deleted: %s", error)


def _describe(instance: Instance) -> Resource:
    hours = max(0.0, time.time() - instance.launched) / 3600
    return {
        "pool": instance.pool,
        "node": instance.index,
        "name": instance.id,
        "state": instance.state,
        "owner": str(instance.noted.get("owner", "")),
        "user": str(instance.noted.get("user", "")),
        "type": instance.type,
        "market": instance.market,
        "host": instance.address,
        "hourly": instance.hourly,
        "cost": None if instance.hourly is None else instance.hourly * hours,
    }


def destroy(cloud: Cloud, pool: str) -> None:
    """End all machines of a pool, wait until they have ended, and remove its other resources. Idempotent.

    A launch may be in progress in another process. Its machines need those resources, such as a security group: either
    they can no longer start, or the resource cannot be removed yet, and the machines are found by the next search.

    Raises:
        ProviderError: the cloud refuses, or machines do not end in time; the message names what remains.
    """
    deadline = time.monotonic() + _ENDED_WITHIN_S
    while True:
        _end_machines(cloud, pool, deadline)
        in_use = [each for each in cloud.others(pool) if not cloud.remove(each["name"])]
        if not in_use:
            return
        if time.monotonic() > deadline:
            names = ", ".join(f"{each['state']} {each['name']}" for each in in_use)
            raise ProviderError(f"The machines of pool {pool} have ended, but {cloud.name} still uses {names}.")
        time.sleep(_POLL_S)


def _end_machines(cloud: Cloud, pool: str, deadline: float) -> None:
    while left := [each for each in cloud.instances(pool) if each.state != "ended"]:
        if time.monotonic() > deadline:
            names = ", ".join(f"{each.id} ({each.state})" for each in left)
            raise ProviderError(f"Machines of pool {pool} have not ended within {_ENDED_WITHIN_S:g} s: {names}.")
        running = [each.id for each in left if each.exists]
        if running:
            cloud.terminate(running)
        time.sleep(_POLL_AFTER_REQUEST_S if running else _POLL_S)
