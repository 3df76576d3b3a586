"""The base class of providers that rent machines from a cloud: common settings and methods."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from importlib.util import find_spec
from ipaddress import ip_address
from typing import ClassVar, Literal

from skyward.delivery.checks import FLOOR_GB, built_size, room_gb
from skyward.errors import ConfigError, ProviderError
from skyward.model.instance import ENV_VAR
from skyward.model.resource import Resource
from skyward.model.rights import Rights
from skyward.model.ssh import SshHost
from skyward.nodes.access import NodeAccess
from skyward.nodes.run_directory import pool_directories
from skyward.providers.base import Allocation, Capabilities, Offer, PoolRequest, Provider, check_delivery
from skyward.providers.cloud.allocation import CloudAllocation
from skyward.providers.cloud.base import Cloud, destroy, find
from skyward.providers.cloud.boot import USER, PoolKeys
from skyward.providers.cloud.cost import find_offers, strategy_of
from skyward.providers.ssh import SSH, SshAllocation
from skyward.ssh.connection import handed_hosts

_ADDRESS_SERVICE = "https://checkip.amazonaws.com"  # returns the public address of any caller, even without AWS
_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class CloudProvider(Provider):
    """A provider that rents machines; see `sky.AWS` for the meaning of the fields."""

    capabilities: ClassVar[Capabilities] = Capabilities(mounts=True, rents=True, default_lease_s=300.0)
    library: ClassVar[tuple[str, str]]  # a module of the cloud's library, and its package
    region: str | None = None
    _: KW_ONLY
    disk_gb: int | None = None
    use_private_ip: bool = False
    registry: str | None = None
    build: Literal["local", "remote"] = "local"
    user: str | None = None
    privileges: Sequence[str] = ()

    def __post_init__(self) -> None:
        title = f"sky.{type(self).__name__}"
        region: object = self.region
        if region is not None and not isinstance(region, str):
            raise ConfigError(f"{title}: region is a string, the provider's name for it; found {region!r}.")
        if self.disk_gb is not None and self.disk_gb <= 0:
            raise ConfigError(f"{title}: disk_gb is a number of GB above 0; found {self.disk_gb!r}.")
        check_delivery(title, self.build, self.registry)
        object.__setattr__(self, "privileges", Rights.of(title, self.user, self.privileges).privileges)

    @abstractmethod
    def cloud(self) -> Cloud:
        """Return the API of the cloud, with these settings."""

    def check_installed(self) -> None:
        """Raise ConfigError if the cloud's library is not installed; does not import it, as that takes long."""
        module, package = self.library
        try:
            found = find_spec(module)
        except ModuleNotFoundError:  # its parent package is missing
            found = None
        if found is None:
            title = f"sky.{type(self).__name__}()"
            raise ConfigError(f"{title} needs {package}. Install it with `pip install 'skyward[{self.name}]'`.")

    def check(self, request: PoolRequest) -> None:
        """Reject an unknown `allocation=`, and pools without the cloud's library."""
        super().check(request)
        strategy_of(request.allocation)
        on_node = ENV_VAR in os.environ  # where a user module may create a pool that is never opened
        if not on_node and not handed_hosts():  # machines of a detached run were rented by the starting client
            self.check_installed()

    def offers(self, request: PoolRequest) -> Sequence[Offer]:
        """Return the offers for a pool, in the order in which they are tried."""
        nodes, found = request.nodes, find_offers(self.cloud(), request)
        return [
            Offer(
                text=each.text(nodes),
                hourly_cost=each.cost(nodes),
                machine=each.type.name,
                market=each.market,
                zone=each.zone,
            )
            for each in found
        ]

    def open(self, request: PoolRequest) -> Allocation:
        """Return the allocation of a pool's machines, none of which is rented yet; in a detached run, those rented for
        it.
        """
        handed = handed_hosts()
        if not handed:
            return self.rent(request)
        if request.nodes > len(handed):
            raise ConfigError(
                f"This pool asks for {request.nodes} machines, and {len(handed)} were rented for its detached run: "
                "write its nodes= with a constant, from which that is known before the run."
            )
        return self.ssh_allocation(request, list(handed.values()))

    def rent(self, request: PoolRequest) -> CloudAllocation:
        """Return the allocation of a pool's machines, none of which is rented yet."""
        return CloudAllocation(self, self.cloud(), request)

    def find(self) -> Sequence[Resource]:
        """Return every machine of every pool in the region: pool, node, name, state, owner, user, type, market, host.

        Also their cost in USD: `hourly`, the price at the launch, and `cost` so far; None if no price was known.
        Resources of a pool without machines are included, with node -1.
        """
        return find(self.cloud())

    def enter(self, node: Resource) -> NodeAccess:
        """Return access to a node, using its pool's keys, which exist on the client's machine while the client runs."""
        folder = next((each for each in pool_directories() if each.pool == f"{node['pool']}.{self.name}"), None)
        if folder is None:
            raise ProviderError(
                f"The keys of pool {node['pool']} are not here: they are kept by the process that has opened the pool, "
                "for its user and on its machine alone. Run this command there."
            )
        keys, address = PoolKeys(folder.path), str(node.get("host"))
        ssh = SSH(f"{USER}@{address}", key=keys.login_key, known_hosts=keys.known_hosts)
        found = [each for each in ssh.find() if (each["pool"], each["node"]) == (node["pool"], node["node"])]
        if not found:
            raise ProviderError(f"Machine {node['name']} of pool {node['pool']} runs no node {node['node']} now.")
        return ssh.enter(found[0])

    def destroy(self, pool_id: str) -> None:
        """End all resources of a pool at the cloud, whichever client started it, and wait for their end. Idempotent."""
        destroy(self.cloud(), pool_id)

    def ssh_allocation(self, request: PoolRequest, hosts: Sequence[SshHost]) -> SshAllocation:
        """Return the allocation of running machines as SSH hosts."""
        rights = Rights.of(f"sky.{type(self).__name__}", self.user, self.privileges)
        everything = replace(request, at_least=None)  # all machines cost money, so none may be left out
        return SshAllocation(everything, hosts, registry=self.registry, build=self.build, rights=rights)

    def client_cidr(self, inside: str) -> str:
        """Return the addresses that may log in to machines: this client's, or those of the machines' network.

        Raises:
            ProviderError: this client's public address cannot be determined.
        """
        if self.use_private_ip:
            return inside
        import requests

        try:
            answer = requests.get(_ADDRESS_SERVICE, timeout=_TIMEOUT_S)
            answer.raise_for_status()
            address = ip_address(answer.text.strip())
        except (requests.RequestException, ValueError) as error:
            raise ProviderError(
                "This machine's public address, from which alone the pool's machines may be reached, is unknown: no "
                f"answer from {_ADDRESS_SERVICE}: {error}. Inside the cloud's own network write "
                f"sky.{type(self).__name__}(use_private_ip=True)."
            ) from error
        return f"{address}/{address.max_prefixlen}"

    def root_disk_gb(self, image: str, own_gb: int, request: PoolRequest) -> int:
        """Return the size of a machine's root disk in GB, with room for the pool's image beside the machine image.

        Args:
            image: the machine image in messages.
            own_gb: size of the machine image in GB.
            request: the pool.

        Raises:
            ProviderError: `disk_gb` is smaller than the machine image.
            ImageError: the pool's image is unavailable, which is better noticed before machines are rented.
            EngineMissingError: there is no engine here.
        """
        if self.disk_gb is not None:
            if self.disk_gb < own_gb:
                raise ProviderError(f"disk_gb={self.disk_gb} is too small: the {image} takes {own_gb} GB.")
            return self.disk_gb
        if self.build == "remote":
            return own_gb + FLOOR_GB  # the size of the pool's image is only known on the machines
        return own_gb + room_gb(built_size(request.image, request.cluster))
