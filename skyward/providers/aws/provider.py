"""`sky.AWS`: machines rented of EC2 for one pool, reached by SSH like any others, and given back at its end."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from skyward.build.events import note
from skyward.errors import ConfigError, PoolClosedError, ProviderError, SkywardError
from skyward.model.accelerator import Accelerator
from skyward.model.image import Image
from skyward.model.rights import Rights
from skyward.model.spec import Cluster
from skyward.model.ssh import SshHost
from skyward.providers.aws import estate
from skyward.providers.aws.ami import find_image
from skyward.providers.aws.api import Api, RefusedError
from skyward.providers.aws.boot import USER, FirstKey, Keys
from skyward.providers.aws.disk import room_gb, size_here
from skyward.providers.aws.launch import Order, Rented, launch
from skyward.providers.aws.meter import Meter
from skyward.providers.aws.network import client_address, find_network, make_group
from skyward.providers.aws.notice import Notice, NoticeWatch
from skyward.providers.aws.offers import allocation_of, find_offers, within
from skyward.providers.aws.terms import Offer
from skyward.providers.aws.types import find_types
from skyward.providers.aws.waiting import Launched, wait_up
from skyward.providers.base import Host, Leaving, Terms
from skyward.providers.heir import Heir
from skyward.providers.rundir import PoolDirectory, runtime_base, sweep_orphans
from skyward.providers.ssh import SSH, SshNodeHost
from skyward.system import threading

if TYPE_CHECKING:
    from skyward.build.events import Report

_log = logging.getLogger(__name__)
LEASE_S = 300.0


@dataclass(frozen=True)
class AWS:
    """Machines of EC2: `sky.AWS("us-east-1")`, with `ComputePool(accelerator="A100", allocation=..., machine=...)`.

    Takes boto3 (`pip install 'skyward[aws]'`) and credentials where boto3 finds them; AWS_PROFILE counts. Machines are
    put into the region's default network, one type and one zone for a pool. Nothing but the client reaches them from
    outside, by SSH.

    Attributes:
        region: None for the one that AWS' configuration names.
        ami: machine image to boot, with cloud-init, systemd and Docker; None for AWS' own with Docker, and for GPUs
            NVIDIA's driver and toolkit.
        disk_gb: size of a machine's disk in GB; None for what the machine image and the pool's take, see docs/aws.md.
        instance_profile: what the machines may do at AWS; None for nothing.
        use_private_ip: reach the machines at their private addresses, from within their network; they get no others.
        registry: repository through which images reach the machines; None to send them through the SSH connections.
        build: "local" builds images on the engine here, "remote" on the first machine.
        user: whom functions run as in their containers; see `sky.Docker`. The caller's own user is the machine's.
        privileges: capabilities that their programs can have; see `sky.Docker`.
        terms: what a pool asks; the pool sets it.

    Raises:
        ConfigError: a value is wrong.
    """

    can_mount: ClassVar[bool] = True
    region: str | None = None
    _: KW_ONLY
    ami: str | None = None
    disk_gb: int | None = None
    instance_profile: str | None = None
    use_private_ip: bool = False
    registry: str | None = None
    build: Literal["local", "remote"] = "local"
    user: str | None = None
    privileges: Sequence[str] = ()
    terms: Terms = field(default=Terms(), repr=False)
    _pools: dict[str, _Pool] = field(default_factory=dict, repr=False, compare=False)
    _expected: dict[str, tuple[Image, Cluster]] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.build not in ("local", "remote"):
            raise ConfigError(f"sky.AWS: build must be 'local' or 'remote'; found {self.build!r}.")
        if self.disk_gb is not None and self.disk_gb <= 0:
            raise ConfigError(f"sky.AWS: disk_gb is a number of GB above 0; found {self.disk_gb!r}.")
        if self.registry is not None:
            from skyward.build.registry import parse_reference

            parse_reference(self.registry)
        allocation_of(self.terms.allocation)
        object.__setattr__(self, "privileges", self._rights.privileges)

    def on(self, terms: Terms) -> AWS:
        """The same for one pool.

        Raises:
            ConfigError: it asks for what there is not.
        """
        return replace(self, terms=terms)

    @property
    def _rights(self) -> Rights:
        return Rights.of("sky.AWS", self.user, self.privileges)

    @property
    def name(self) -> str:
        """Name of the provider."""
        return "aws"

    @property
    def lease_s(self) -> float:
        """Seconds a container outlives a client that is silent; its machine ends a minute later."""
        return LEASE_S

    @property
    def _api(self) -> Api:
        return Api(self.region)

    def offers(self, nodes: int, accelerator: Accelerator | None) -> list[Offer]:
        """What a pool of so many nodes can have, in the order in which it is tried.

        Raises:
            ConfigError: AWS has no such accelerator.
            ProviderError: there is nothing, or nothing within `max_hourly_cost`.
        """
        api = self._api
        return self._offers(api, list(find_network(api).subnets), nodes, accelerator)

    def _offers(self, api: Api, zones: Sequence[str], nodes: int, accelerator: Accelerator | None) -> list[Offer]:
        terms = self.terms
        types = find_types(
            api,
            terms.platform,
            machine=terms.machine,
            accelerator=accelerator,
            cpus=terms.cpus,
            memory_gb=terms.memory_gb,
        )
        return within(find_offers(api, types, zones, allocation_of(terms.allocation)), nodes, terms.max_hourly_cost)

    def acquire(
        self,
        pool: str,
        nodes: int,
        accelerator: Accelerator | None,
        at_least: int | None = None,  # noqa: ARG002
    ) -> Sequence[Host]:
        """Rent a machine for each node, and connect to all.

        Raises:
            ConfigError: boto3 is missing, no region is named, or AWS has no such accelerator.
            ProviderError: nothing is offered, affordable or available; or machines do not come up. Those that were
                launched are ended by `release`.
            ImageError: the pool's image cannot be had; nothing has been launched.
        """
        api, terms = self._api, self.terms
        self._pools[pool] = opened = _Pool(pool, api, terms)  # from here on `release` ends it
        terms.report(note(f"looking for machines in {api.region}"))
        network = find_network(api)
        offers = self._offers(api, list(network.subnets), nodes, accelerator)
        image = find_image(api, terms.platform, accelerator, self.ami, self.disk_gb, self._room_gb(pool))
        estate.sweep(api)
        client = network.cidr if self.use_private_ip else _exactly(client_address())
        opened.begin(open_metadata=self.instance_profile is not None)
        opened.order = order = Order(
            pool=pool,
            nodes=nodes,
            image=image,
            network=network,
            group=opened.renewed(make_group(api, pool, network, client)),
            user_data=opened.user_data(0),
            profile=self.instance_profile,
            private=self.use_private_ip,
        )
        opened.rent(*launch(api, order, offers, terms.report))
        opened.connect(self.registry, self.build, self._rights, gpus=accelerator is not None)
        return opened.acquire(accelerator)

    def expect(self, pool: str, image: Image, cluster: Cluster) -> None:
        """Have the disks of a pool's machines sized for what they will run."""
        self._expected[pool] = (image, cluster)

    def _room_gb(self, pool: str) -> int:
        """What a root disk holds beyond the machine image, where the caller does not say."""
        expected = self._expected.pop(pool, None)
        if self.disk_gb is not None or expected is None or self.build == "remote":
            return room_gb(None)  # the machines will be the first to know
        return room_gb(size_here(*expected))

    def replace(self, pool: str, lost: Host | None, accelerator: Accelerator | None) -> Host:
        """Rent one more machine, of the pool's type if there are any. The lost one is ended, unless AWS does that.

        Raises:
            ProviderError: none is available or affordable now; or it does not come up.
            PoolClosedError: the pool has ended, or another client has ended it.
        """
        opened = self._pools.get(pool)
        if opened is None or opened.order is None or opened.offer is None:
            raise PoolClosedError(f"Pool {pool} has ended; no machine is rented for it.")
        if isinstance(lost, SshNodeHost) and not lost.machine.is_gone and not opened.is_leaving(lost):
            return lost  # its node has ended, not the machine
        api, order = self._api, opened.order
        if not estate.groups(api, pool):
            raise PoolClosedError(f"Pool {pool} was ended by another client: its security group is gone.")
        nodes = order.nodes  # of the whole pool, which keeps within its limit
        offers = self._offers(api, list(order.network.subnets), nodes, accelerator)
        offers.sort(key=lambda each: (each.type.name, each.zone, each.market) != opened.offer_key)  # the same first
        return opened.another(offers, lost, accelerator)

    def prepare(self, hosts: Sequence[Host], image: Image, cluster: Cluster, report: Report) -> str | None:
        """Compile the image, have it built unless it is anywhere, and bring it to every machine; see `sky.SSH`."""
        provider = next(opened.ssh for opened in self._pools.values() if opened.has(hosts))
        assert provider
        return provider.prepare(hosts, image, cluster, report)

    def release(self, pool: str) -> None:
        """End everything of the pool at AWS, whoever started it, and wait until it is gone. Idempotent.

        Raises:
            ProviderError: AWS cannot be asked, or machines do not end; names them.
        """
        opened = self._pools.pop(pool, None)
        if opened is None:
            estate.clear(self._api, pool)
        else:
            opened.close()

    def find(self) -> Iterable[Mapping[str, Any]]:
        """Every machine of every pool in the region, by its tags: pool, node, name, state, owner, type, market, host.

        And what it costs in USD: `hourly`, the price at its launch, and `cost` so far; None where AWS told none.

        A security group that is left without machines is found too; its node is -1.

        Raises:
            ProviderError: AWS cannot be asked.
        """
        return estate.describe(self._api)


class _Machines(SSH):
    """Machines with host keys of the pool's own; jump hosts on the way to them have those of the SSH configuration."""

    def _host(self, text: str) -> SshHost:
        return replace(super()._host(text), trusts_jumps=True)


class _Pool:
    """What a pool of this process holds: keys, heir, machines, and the way to them."""

    def __init__(self, pool: str, api: Api, terms: Terms) -> None:
        self.id, self._api, self._terms, self._report = pool, api, terms, terms.report
        self.order: Order | None = None
        self._directory: PoolDirectory | None = None
        self._heir: Heir | None = None
        self.offer: Offer | None = None
        self._meter = Meter(self._report)
        self.machines: list[Rented] = []
        self.ssh: SSH | None = None
        self._hosts: list[Host] = []  # of `machines`, in their order
        self._trusted: dict[str, str] = {}  # the host key that each machine has made, by address
        self._first: dict[int, FirstKey] = {}  # by the launch's number
        self._watches: list[tuple[Host, NoticeWatch]] = []
        self._again = itertools.count(1)
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def begin(self, *, open_metadata: bool) -> None:
        """Make the pool's keys, and start its heir: after that something may be made at AWS.

        Args:
            open_metadata: whether containers may reach the metadata service of their machine.
        """
        self._open_metadata = open_metadata
        sweep_orphans()
        self._directory = PoolDirectory.create(f"{self.id}.aws", runtime_base())
        self._keys = Keys(self._directory.path)
        self._keys.make()
        self._heir = Heir("skyward.providers.aws.heir", self.id, self._api.region)

    def user_data(self, launch: int) -> str:
        """What the machines of a launch are told; each launch has a first host key of its own."""
        self._first[launch] = first = self._keys.first_key(launch)
        return self._keys.user_data(first, self._terms.lease_s, open_metadata=self._open_metadata)

    def renewed(self, group: str) -> str:
        """Say in a tag of the pool's security group that its client lives, from now on and as long as the pool is open.

        Without that other pools would take the group of a pool without machines for forgotten.
        """
        threading.Thread(target=self._renew, args=[group], name=f"skyward-{self.id}-renew", daemon=True).start()
        return group

    def _renew(self, group: str) -> None:
        while not self._ended.wait(estate.RENEW_S):
            try:
                estate.renew(self._api, group)
            except ProviderError as error:
                if isinstance(error, RefusedError) and error.code == "InvalidGroup.NotFound":
                    return  # the pool was ended by another client
                _log.warning(
                    "Pool %s could not say at AWS that it lives: %s After an hour without that, and while it has no "
                    "machine, another pool takes its security group %s for forgotten.",
                    self.id,
                    error,
                    group,
                )

    def rent(self, offer: Offer, machines: list[Rented]) -> None:
        """Take note of what was launched; from here on its price is counted."""
        self.offer, self.machines = offer, machines
        self._meter.start(offer, (machine.id for machine in machines))

    def connect(self, registry: str | None, build: Literal["local", "remote"], rights: Rights, *, gpus: bool) -> None:
        """Wait until the machines can be used, with the driver of their GPUs where the pool needs those."""
        names = [f"{USER}@{machine.address}" for machine in self.machines]
        ssh = _Machines(
            *names,
            key=self._keys.file,
            known_hosts=self._keys.known_hosts,
            registry=registry,
            build=build,
            user=rights.user,
            privileges=rights.privileges,
        )
        launched = self._launched(0, zip(self.machines, ssh.hosts, strict=True))
        wait_up(launched, gpus, self._trust, self._report)
        self.ssh = ssh  # there is something to release from now on

    def acquire(self, accelerator: Accelerator | None) -> Sequence[Host]:
        """The machines as hosts; those that can be taken away are asked for notices."""
        assert self.ssh
        assert self.offer
        self._hosts = list(self.ssh.acquire(self.id, len(self.machines), accelerator))
        for host, machine in zip(self._hosts, self.machines, strict=True):
            self._watch(host, machine, self.offer)
        return tuple(self._hosts)

    @property
    def offer_key(self) -> tuple[str, str, str] | None:
        """Type, zone and market of its first machines."""
        return (self.offer.type.name, self.offer.zone, self.offer.market) if self.offer else None

    def is_leaving(self, host: Host) -> bool:
        """Whether AWS has said that it takes this machine away."""
        return any(host is each and watch.notice for each, watch in self._watches)

    def another(self, offers: Sequence[Offer], lost: Host | None, accelerator: Accelerator | None) -> Host:
        """One more machine, in the place of a lost one, as a host."""
        assert self.ssh
        assert self.order
        if lost is not None:
            gone = self.machines[self._hosts.index(lost)]
            self._meter.stop(gone.id)
            if not self.is_leaving(lost):
                estate.terminate(self._api, [{"InstanceId": gone.id}])
        again = next(self._again)
        order = dataclasses.replace(self.order, nodes=1, again=again, user_data=self.user_data(again))
        offer, (machine,) = launch(self._api, order, offers, self._report)
        self._meter.start(offer, [machine.id])
        try:
            if self._ended.is_set():
                raise PoolClosedError(f"Pool {self.id} has ended; no machine is rented for it.")
            where = self.ssh.host_like(f"{USER}@{machine.address}")
            launched = self._launched(again, [(machine, where)])
            wait_up(launched, accelerator is not None, self._trust, self._report, self._ended)
            host = self.ssh.join(self.id, where, accelerator)
        except SkywardError:  # it is no node's, and the next try rents another
            self._meter.stop(machine.id)
            estate.terminate(self._api, [{"InstanceId": machine.id}])
            raise
        with self._lock:
            self.machines.append(machine)
            self._hosts.append(host)
        self._watch(host, machine, offer)
        return host

    def _launched(self, launch: int, machines: Iterable[tuple[Rented, SshHost]]) -> list[Launched]:
        """Machines of a launch, with the way to them for the first connection and for all others."""
        first = self._first.pop(launch)
        known = list(machines)
        first.trust(machine.address for machine, _ in known)
        return [
            Launched(machine=machine, first=replace(host, known_hosts=str(first.known_hosts)), host=host)
            for machine, host in known
        ]

    def _trust(self, address: str, key: str) -> None:
        """Trust a machine's own host key, and no other at its address."""
        with self._lock:
            self._trusted[address] = key
            self._keys.trust(self._trusted)

    def _watch(self, host: Host, machine: Rented, offer: Offer) -> None:
        """Ask a machine that can be taken away for the notice of that."""
        if offer.market != "spot":
            return

        def told(notice: Notice, left_s: float) -> None:
            text = f"will be taken away by AWS at {notice.time} ({notice.action})"
            self._terms.leaving(Leaving(host=host, text=text, left_s=left_s))

        assert isinstance(host, SshNodeHost)
        through = host.machine.connection.through
        self._watches.append((host, NoticeWatch(machine.id, self.id, through, told)))

    def has(self, hosts: Sequence[Host]) -> bool:
        """Whether these are its hosts."""
        return bool(hosts) and hosts[0] in self._hosts

    def close(self) -> None:
        """End everything, whatever state it is in."""
        with ExitStack() as last:  # what stands first here is done last, also after a failure
            last.callback(self._meter.end)
            if self._directory is not None:
                last.callback(self._directory.remove)
            if self._heir is not None:
                last.callback(self._heir.relieve, partial(estate.clear, self._api, self.id))
            if self.ssh is not None:
                last.callback(self.ssh.release, self.id)
            for _, watch in self._watches:
                last.callback(watch.close)
            with self._lock:
                self._ended.set()


def _exactly(address: str) -> str:
    return f"{address}/{128 if ':' in address else 32}"
