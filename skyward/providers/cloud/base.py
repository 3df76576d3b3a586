"""The API of a cloud as the generic code sees it, the values that both exchange, and how pools are found and ended.

A cloud implements `Cloud` and `Launcher` with single calls of its API. The order of these calls, retries, waiting, keys
and cost are the generic code's, here and in the other modules of this package. What exists of pools is found by tags
alone.
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

from skyward.errors import ConfigError, PoolClosedError, ProviderError
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
GONE: Final = "gone"  # code of a machine that is not listed any more while it starts
_log = logging.getLogger(__name__)
_FORGOTTEN_S = 3600.0  # since the last sign of life; the reaper of a dead client tries for an hour as well
_ENDED_WITHIN_S = 300.0  # large machines take minutes to end
_POLL_S = 2.0
_POLL_AFTER_REQUEST_S = 0.2
_PARALLEL = 16  # calls


class RefusedError(ProviderError):
    """The cloud refused a call.

    Attributes:
        code: the cloud's own word for the reason, such as "InsufficientInstanceCapacity".
    """

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code

    @property
    def is_gone(self) -> bool:
        """Whether what the call was about does not exist, or does so no more."""
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
        market: "spot" is cheaper, and the cloud may take the machine back after a short notice.
        zone: availability zone, such as "us-east-1a".
        hourly: price of one machine in USD per hour; None where the cloud does not publish it.
    """

    type: MachineType
    market: Market
    zone: str
    hourly: float | None

    @property
    def key(self) -> tuple[str, str, Market]:
        """What stays the same when prices move."""
        return (self.type.name, self.zone, self.market)

    def cost(self, nodes: int) -> float | None:
        """USD per hour for this many machines."""
        return None if self.hourly is None else self.hourly * nodes

    def text(self, nodes: int) -> str:
        """A description with the price for this many machines."""
        cost = self.cost(nodes)
        price = "at an unknown price" if cost is None else f"for {cost:.3f} USD per hour"
        return f"{nodes} x {self.type.name} ({self.market}) in {self.zone} {price}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """A request for machines of one offer; the cloud launches all of them or none.

    Attributes:
        token: identifies the request. A cloud that gets the same token twice launches nothing the second time.
        nodes: number of machines.
        offer: their type, market and zone.
        user_data: cloud-init's configuration.
        longest_s: seconds after which the pool's budget is spent whatever becomes of its other machines; a cloud that
            can end a machine at a given time does that. None for no limit.
    """

    token: str
    nodes: int
    offer: MachineOffer
    user_data: str
    longest_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A machine as the cloud describes it.

    Attributes:
        id: such as "i-0123".
        pool: the pool that it is tagged with.
        index: its number within its launch.
        state: what it is doing; "ending" and "ended" machines cost nothing any more.
        type: name of the machine type.
        market: market that it was rented in.
        address: where the client reaches it; "" while it has no address.
        noted: what `notes` has written on it at its launch.
        launched: time of the launch, in seconds since the epoch.
        reason: why it has ended, in the cloud's words.
        code: the cloud's code for that, as of a refused call.
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
        """Whether somebody still has to end it."""
        return self.state not in ("ending", "ended")

    @property
    def hourly(self) -> float | None:
        """USD per hour at its launch; None where no price was known."""
        return _number(self.noted.get("hourly"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """What the cloud is going to do with a machine.

    Attributes:
        action: such as "terminate".
        at: when.
    """

    action: str
    at: datetime

    @classmethod
    def read(cls, text: str) -> Notice:
        """What `FirstStart.read_notice` has printed; a ValueError, KeyError or TypeError means that it is no notice."""
        found = json.loads(text)
        return cls(action=str(found["action"]), at=datetime.fromisoformat(found["time"]).astimezone(UTC))

    @property
    def left_s(self) -> float:
        """Seconds until then, by the clock of this machine."""
        return (self.at - datetime.now(UTC)).total_seconds()


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstStart:
    """What machines of a cloud do at their first start, beyond what all machines do.

    Attributes:
        read_notice: body of a POSIX shell function that prints the notice of the machine's end, and prints nothing
            while there is none: {"action": "terminate", "time": "2030-01-01T12:00:00Z"}. It may use `ask`, which is
            curl with a short timeout. It runs every two seconds.
        open_metadata: whether containers may reach the metadata service of their machine.
        open_ports: ports of 169.254.169.254 that stay open to everybody, such as 53 where it is the name server too.
        files: text of further files, by path; they are there before sshd starts.
        commands: further shell commands.
    """

    read_notice: str
    open_metadata: bool = False
    open_ports: Sequence[int] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    commands: Sequence[str] = ()


class Cloud(Protocol):
    """The API of a cloud in one region, with the settings of one provider.

    Every method may raise ProviderError when the cloud cannot be reached, and RefusedError when it refuses.
    """

    @property
    def name(self) -> str:
        """The cloud in sentences, such as "AWS"."""
        ...

    @property
    def region(self) -> str:
        """The region in sentences."""
        ...

    @property
    def no_room(self) -> frozenset[str]:
        """The codes of a RefusedError, and of a machine that ended at once, after which another offer may succeed."""
        ...

    @property
    def first_start(self) -> FirstStart:
        """What machines of this cloud do at their first start."""
        ...

    def offers(self, request: PoolRequest, markets: Sequence[Market]) -> Sequence[MachineOffer]:
        """All offers that have what a pool requests, in any order.

        Raises:
            ConfigError: the cloud has no such accelerator.
            ProviderError: the region has no such machine.
        """
        ...

    def launcher(self, request: PoolRequest) -> Launcher:
        """Look up what the pool's machines boot from and which network they join. Creates nothing."""
        ...

    def instances(self, pool: str | None = None) -> Sequence[Instance]:
        """The machines of a pool, or of all pools, by tag; also those that are ending.

        Those that have ended are listed for a while as "ended", or not at all.
        """
        ...

    def terminate(self, ids: Sequence[str]) -> None:
        """End machines. Those that do not exist any more are ignored."""
        ...

    def others(self, pool: str | None = None) -> Sequence[Resource]:
        """What else is tagged with a pool, or with any pool, such as a security group: with `node` -1.

        Also what is only being made. `seen` is when the pool's client last noted that it is alive.
        """
        ...

    def remove(self, name: str) -> bool:
        """Remove one of these; False if that has to wait for machines that are ending."""
        ...


class Launcher(Protocol):
    """Launches the machines of one pool."""

    def prepare(self) -> None:
        """Create what the machines need, such as a security group, tagged with the pool."""
        ...

    def launch(self, request: LaunchRequest) -> Sequence[str]:
        """Launch machines; their ids in node order."""
        ...

    def renew(self) -> None:
        """Note at the cloud that the pool's client is alive; called every ten minutes, and before a replacement.

        Raises:
            PoolClosedError: another client has ended the pool.
        """
        ...


# for classes of clouds --------------------------------------------------------------------------------------------


@contextmanager
def ignoring(*codes: str) -> Iterator[None]:
    """Go on where a call is refused with one of these codes."""
    try:
        yield
    except RefusedError as error:
        if error.code not in codes:
            raise


@contextmanager
def while_open(pool: str, what: str) -> Iterator[None]:
    """Renew what a pool has at its cloud, in sentences such as "security group".

    Raises:
        PoolClosedError: it is gone.
    """
    try:
        yield
    except RefusedError as error:
        if not error.is_gone:
            raise
        raise PoolClosedError(f"Pool {pool} was ended by another client: its {what} is gone.") from error


def named(found: object, what: str, example: str, variable: str) -> str:
    """A region or project, wherever it was found.

    Raises:
        ConfigError: it was found nowhere; says how to name it.
    """
    if not found:
        raise ConfigError(f"No {what} is named. Write {example}, or set {variable}.")
    return str(found)


def at_once(do: Callable[[T], R], given: Sequence[T]) -> list[R]:
    """The results of calls of the cloud for each of these, made side by side."""
    with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="skyward-cloud") as threads:
        return list(threads.map(do, given))


def notes(pool: str) -> dict[str, str]:
    """What is written on everything that is made for a pool: who has made it, for people to read."""
    return {"pool": pool, "owner": ProcessId.of(os.getpid()).for_people, "user": current_user()}


def leftover(kind: str, name: str, noted: Mapping[str, object]) -> Resource:
    """Something of a pool that is no machine, with what is written on it; anybody at the cloud may write there."""
    times = (_number(noted.get(key)) for key in ("began", "seen"))
    pool, owner, user = (str(noted.get(key, "")) for key in ("pool", "owner", "user"))
    seen = max((each for each in times if each is not None), default=None)
    return Resource(pool=pool, node=-1, name=name, state=kind, owner=owner, user=user, seen=seen)


def _number(noted: object) -> float | None:
    try:
        return float(str(noted))
    except ValueError:
        return None


# what exists of pools -------------------------------------------------------------------------------------------


def find(cloud: Cloud) -> Sequence[Resource]:
    """All machines of all pools in the form of `Provider.find`; what is left without machines has the node -1."""
    instances = cloud.instances()
    pools = {each.pool for each in instances if each.state != "ended"}
    machines = [_describe(each) for each in sorted(instances, key=lambda each: (each.pool, each.index)) if each.exists]
    return machines + [each for each in cloud.others() if each["pool"] not in pools]


def sweep(cloud: Cloud) -> None:
    """Remove what dead pools have left: they have no machine that runs, and no client has renewed them for an hour.

    A pool that has lost all its machines and waits for others has something without machines as well, for any length
    of time, but its client renews that. Clocks agree well enough: clouds refuse requests of a clock that is minutes
    wrong. What does not say when it was seen is left alone. A failure is logged as a warning, since the pool that is
    being opened does not depend on it.
    """
    old = [each for each in cloud.others() if (seen := each.get("seen")) and time.time() - seen > _FORGOTTEN_S]
    machines = [each for each in cloud.instances() if each.state != "ended"] if old else []
    in_use = {each.pool for each in machines if each.state != "stopped"}
    for each in old:
        pool, name = each["pool"], each["name"]
        if pool in in_use:
            continue
        try:
            if stopped := [machine.id for machine in machines if machine.pool == pool]:
                cloud.terminate(stopped)
            cloud.remove(name)
        except ProviderError as error:
            _log.warning("The %s %s of pool %s could not be deleted: %s", each["state"], name, pool, error)


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
    """End all machines of a pool, wait until they are gone, and remove what is left. Idempotent.

    A launch may be under way in another process. Its machines need what is left, such as a security group: either they
    cannot start any more, or that cannot be removed yet, and the machines are found when they are looked for again.

    Raises:
        ProviderError: the cloud refuses, or machines do not end in time; the message says what is left.
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
