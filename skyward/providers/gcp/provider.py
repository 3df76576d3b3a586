"""`sky.GCP`: machines rented from Google's Compute Engine for one pool, accessed by SSH, and deleted at its end.

Resources of pools are found by the labels of machines and the names of firewall rules: there is no other record. Labels
have few characters, and firewall rules no labels. Their descriptions hold the other data, as JSON.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Final
from uuid import UUID

from skyward.errors import ProviderError
from skyward.model.parameters import suggesting
from skyward.model.resource import Resource
from skyward.providers.base import PoolRequest
from skyward.providers.cloud.base import (
    FirstStart,
    Instance,
    LaunchRequest,
    MachineOffer,
    Market,
    State,
    at_once,
    ignoring,
    leftover,
    notes,
)
from skyward.providers.cloud.provider import CloudProvider
from skyward.providers.gcp.api import MIN_COUNT, SCOPE, Api
from skyward.providers.gcp.catalog import attached, find_offers

_POOL: Final = "skyward-pool"
_RULES: Final = ("client", "machines", "others")  # suffixes of the names of a pool's firewall rules
_STATES: Mapping[str, State] = {
    **dict.fromkeys(("PROVISIONING", "STAGING", "REPAIRING", "PENDING"), "pending"),
    "RUNNING": "running",
    **dict.fromkeys(("PENDING_STOP", "STOPPING", "SUSPENDING", "DEPROVISIONING"), "ending"),
    **dict.fromkeys(("TERMINATED", "STOPPED", "SUSPENDED"), "stopped"),  # their disks cost money until they are deleted
}
_HYPERDISK = ("a3-ultra", "a4", "c4", "n4")  # types that boot from no other disk
_UBUNTU = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-"
_GPU_IMAGE = "projects/deeplearning-platform-release/global/images/family/common-cu129-ubuntu-2404-nvidia-580"
# Google ends a spot machine after 30 seconds, and does not report when they have started
_READ_NOTICE = """
found=$(ask -H 'Metadata-Flavor: Google' http://$address/computeMetadata/v1/instance/preempted) || return
[ "$found" = TRUE ] || return 0
date -u -d "@$(($(date +%s) + 30))" +'{"action": "preempt", "time": "%Y-%m-%dT%H:%M:%SZ"}'
"""
_INSTALL_DOCKER = (
    "command -v docker >/dev/null || "
    "{ apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -qy install docker.io; }"
)
# Google's agent would replace the first host key by its own, and add accounts of the project
_AGENT = {
    "/etc/default/instance_configs.cfg": "[Daemons]\naccounts_daemon = false\n[InstanceSetup]\nset_host_keys = false\n"
}


@suggesting("sky.GCP")
@dataclass(frozen=True, kw_only=True)
class GCP(CloudProvider):
    """Machines of Compute Engine: `sky.GCP("us-central1")`, with `ComputePool(accelerator="L4", allocation=...)`.

    Requires google-cloud-compute (`pip install 'skyward[gcp]'`) and Application Default Credentials. All machines of a
    pool are of one type and in one zone. From outside, only the client can reach them, by SSH. For `region`, `disk_gb`,
    `use_private_ip`, `registry`, `build`, `user` and `privileges` see `sky.AWS`.

    Attributes:
        region: a region of the credentials' project, or "PROJECT/REGION"; None for that of CLOUDSDK_COMPUTE_REGION.
        network: the network whose subnet in the region the machines join.
        image: image to boot, such as "projects/P/global/images/family/F", with cloud-init, systemd and apt or Docker;
            None for Ubuntu, and for GPUs for Google's Deep Learning VM with NVIDIA's driver and toolkit.
        service_account: e-mail address of the machines' service account; None for no credentials.

    Raises:
        ConfigError: a value is invalid.
    """

    name: ClassVar[str] = "gcp"
    library: ClassVar[tuple[str, str]] = ("google.cloud.compute_v1", "google-cloud-compute")
    network: str = "default"
    image: str | None = None
    service_account: str | None = None

    def cloud(self) -> ComputeEngine:
        """Return the API of Compute Engine, with these settings."""
        self.check_installed()
        return ComputeEngine(Api(self.region), self)


class ComputeEngine:
    """Compute Engine in one region, for the common code of `providers/cloud`.

    Args:
        api: the API in the region.
        settings: the user's settings.
    """

    name = "Google Cloud"
    no_room = frozenset(  # Google has no such machine at present, or the project's quota is reached
        {"ZONE_RESOURCE_POOL_EXHAUSTED", "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "RESOURCE_POOL_EXHAUSTED"}
        | {MIN_COUNT, "QUOTA_EXCEEDED", "quotaExceeded", "resourcePoolExhausted"}
        | {"UNSUPPORTED_OPERATION"}  # reclaimed while they started
    )

    def __init__(self, api: Api, settings: GCP) -> None:
        self.api, self._settings = api, settings

    @property
    def region(self) -> str:
        """Project and region, which name them in any process; raises ConfigError if none is set."""
        return f"{self.api.project}/{self.api.region}"

    @property
    def first_start(self) -> FirstStart:
        """First start with ports 53 (names) and 123 (clock) open, at the address of the metadata service."""
        return FirstStart(
            read_notice=_READ_NOTICE,
            open_metadata=self._settings.service_account is not None,
            open_ports=(53, 123),
            files=_AGENT,
            commands=[_INSTALL_DOCKER],
        )

    def offers(self, request: PoolRequest, markets: Sequence[Market]) -> Sequence[MachineOffer]:
        """Return the offers for a pool."""
        return find_offers(self.api, request, markets)

    def launcher(self, request: PoolRequest) -> GcpLauncher:
        """Look up machine image, network, and the address of this client."""
        return GcpLauncher(self.api, self._settings, request)

    def instances(self, pool: str | None = None) -> Sequence[Instance]:
        """Return the machines of a pool, or of all pools of the region."""
        region, label = f"{self.api.region}-", f'labels.{_POOL}="{pool}"' if pool else f"labels.{_POOL}:*"
        zones = self.api.all("instances", "aggregated_list", filter=label)
        found = [_instance(each, self._settings.use_private_ip) for _, zone in zones for each in zone.instances]
        return [each for each in found if each.id.startswith(region)]

    def terminate(self, ids: Sequence[str]) -> None:
        """Begin to delete machines; those that do not exist, or are being deleted, are ignored."""

        def delete(ident: str) -> None:
            zone, _, name = ident.partition("/")
            with ignoring("notFound", "resourceNotReady"):
                self.api.call("instances", "delete_unary", zone=zone, instance=name)

        at_once(delete, ids)

    def others(self, pool: str | None = None) -> Sequence[Resource]:
        """Return the firewall rules of a pool as one resource, or those of all pools of the region.

        For a pool this includes those still being created.
        """
        rules = self.api.all("firewalls", filter=f'name eq "{_rules_name(pool or "")}.*"')
        noted = [(rule.name.rpartition("-")[0], _noted(rule.description)) for rule in rules]
        found = [_rules(name, about) for name, about in noted if about.get("region") == self.api.region]
        if pool and not found and self._is_making(pool):
            found = [_rules(_rules_name(pool), {})]
        return list({each["name"]: each for each in found}.values())

    def remove(self, name: str) -> bool:
        """Delete a pool's firewall rules; return False while it has creations in progress or machines not ending.

        Google deletes rules even if machines use them. A launch that was in progress when the caller looked for
        machines may have ended since: the machines are looked for after checking for it.
        """
        pool = name.removeprefix("skyward-")
        if self._is_making(pool) or any(each.state != "ending" for each in self.instances(pool)):
            return False
        begun = []
        for rule in _RULES:
            with ignoring("notFound", "resourceNotReady"):
                begun.append(self.api.call("firewalls", "delete_unary", firewall=f"{name}-{rule}"))
        for operation in begun:
            self.api.finish(operation)
        return True

    def _is_making(self, pool: str) -> bool:
        """Return whether machines or rules of a pool are being created: until then they are not listed."""
        scopes = self.api.all("global_operations", "aggregated_list", filter='status != "DONE"')
        prefix = _pool_prefix(pool)
        return any(each.client_operation_id.startswith(prefix) for _, scope in scopes for each in scope.operations)


def _rules_name(pool: str) -> str:
    """Return the prefix of the names of a pool's firewall rules, which is also the network tag of its machines."""
    return f"skyward-{pool}"


def _rules(name: str, noted: Mapping[str, object]) -> Resource:
    return leftover("firewall rules", name, {**noted, "pool": name.removeprefix("skyward-")})


def _describe(pool: str, **more: str | float | None) -> str:
    """Return the description of a pool's resource that is being created."""
    return json.dumps({**notes(pool), **more})


def _noted(text: str) -> dict[str, Any]:
    """Parse a description; return an empty dict if it is something else, as anyone in the project may write it."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _instance(found: Any, private: bool) -> Instance:
    interface = next(iter(found.network_interfaces), None)
    public = next(iter(interface.access_configs), None) if interface else None
    address = (interface.network_i_p if interface else "") if private else (public.nat_i_p if public else "")
    return Instance(
        id=f"{found.zone.rpartition('/')[2]}/{found.name}",
        pool=found.labels.get(_POOL, ""),
        index=int(found.name.rpartition("-")[2]),
        state=_STATES.get(found.status, "pending"),
        type=found.machine_type.rpartition("/")[2],
        market="spot" if found.scheduling.provisioning_model == "SPOT" else "on-demand",
        address=address,
        noted=_noted(found.description),
        launched=datetime.fromisoformat(found.creation_timestamp).timestamp(),
        reason=found.status_message.rstrip("."),
    )


# the launch -----------------------------------------------------------------------------------------------------


class GcpLauncher:
    """Launches the machines of one pool, from one image in one subnet, behind the pool's firewall rules."""

    def __init__(self, api: Api, settings: GCP, request: PoolRequest) -> None:
        self._api, self._settings, self._request, self._pool = api, settings, request, request.pool_id
        self._subnet = _find_subnet(api, settings.network)
        self._image = _find_image(api, settings.image, request)
        self._disk_gb = settings.root_disk_gb("image", self._image.disk_size_gb, request)
        self.client = settings.client_cidr(self._subnet.ip_cidr_range)

    def prepare(self) -> None:
        """Create the pool's firewall rules, which take precedence over those of the network."""
        name = _rules_name(self._pool)
        common = {"network": self._subnet.network, "target_tags": [name], "direction": "INGRESS"}
        common["description"] = _describe(self._pool, region=self._api.region)
        sources: dict[str, dict[str, Any]] = {
            "client": {"source_ranges": [self.client], "allowed": [{"I_p_protocol": "tcp", "ports": ["22"]}]},
            "machines": {"source_tags": [name], "allowed": [{"I_p_protocol": "all"}]},
            "others": {"source_ranges": ["0.0.0.0/0"], "denied": [{"I_p_protocol": "all"}], "priority": 20},
        }
        made = []
        for suffix in _RULES:
            rule = {"priority": 10, **common, **sources[suffix], "name": f"{name}-{suffix}"}
            token = _request_id(self._pool, rule["name"])
            made.append(self._api.call("firewalls", "insert_unary", firewall_resource=rule, request_id=token))
        for operation in made:
            self._api.finish(operation)

    def launch(self, request: LaunchRequest) -> Sequence[str]:
        """Launch machines, and return their ids, "ZONE/NAME", in node order."""
        names = [f"{request.token}-{index}" for index in range(request.nodes)]
        resource = {
            "count": request.nodes,
            "min_count": request.nodes,  # all or none
            "per_instance_properties": {name: {"name": name} for name in names},
            "instance_properties": self.properties(request),
        }
        zone, token = request.offer.zone, _request_id(self._pool, request.token)
        fields = {"bulk_insert_instance_resource_resource": resource, "request_id": token}
        self._api.finish(self._api.call("instances", "bulk_insert_unary", zone=zone, **fields))
        return [f"{zone}/{name}" for name in names]

    def properties(self, request: LaunchRequest) -> dict[str, Any]:
        """Return the common properties of all machines of a launch."""
        settings, offer, labels = self._settings, request.offer, {_POOL: self._pool}
        disk = "hyperdisk-balanced" if offer.type.name.startswith(_HYPERDISK) else "pd-balanced"
        boots = {"source_image": self._image.self_link, "disk_size_gb": self._disk_gb, "disk_type": disk}
        interface: dict[str, Any] = {"subnetwork": self._subnet.self_link}
        if not settings.use_private_ip:
            interface["access_configs"] = [{"type_": "ONE_TO_ONE_NAT", "name": "External NAT"}]
        schedule: dict[str, Any] = {"automatic_restart": False, "provisioning_model": "STANDARD"}
        if offer.market == "spot":
            schedule |= {"provisioning_model": "SPOT", "instance_termination_action": "DELETE"}
        if offer.type.gpus or offer.market == "spot":
            schedule["on_host_maintenance"] = "TERMINATE"
        metadata = {"user-data": request.user_data, "block-project-ssh-keys": "TRUE", "enable-oslogin": "FALSE"}
        signed = settings.image is None and self._request.accelerator is None  # whether all kernel modules are signed
        shield = {"enable_secure_boot": signed, "enable_vtpm": True, "enable_integrity_monitoring": True}
        account = settings.service_account
        return {
            "machine_type": offer.type.name,
            "description": _describe(self._pool, hourly=offer.hourly),
            "labels": labels,
            "tags": {"items": [_rules_name(self._pool)]},
            "disks": [{"boot": True, "auto_delete": True, "initialize_params": {**boots, "labels": labels}}],
            "network_interfaces": [interface],
            "metadata": {"items": [{"key": key, "value": value} for key, value in metadata.items()]},
            "scheduling": schedule,
            "guest_accelerators": attached(self._request, offer.type),
            "service_accounts": [{"email": account, "scopes": [SCOPE]}]
            if (account := settings.service_account)
            else [],
            "shielded_instance_config": shield if offer.type.platform == "linux/amd64" else None,
        }


def _pool_prefix(pool: str) -> str:
    """Return the first eight digits of the ids of a pool's requests."""
    return hashlib.sha256(pool.encode()).hexdigest()[:8]


def _request_id(pool: str, token: str) -> str:
    """Return the id by which Google recognises a repeated request; its beginning identifies the pool."""
    rest = hashlib.sha256(f"{pool} {token}".encode()).digest()
    return str(UUID(bytes=bytes.fromhex(_pool_prefix(pool)) + rest[:12], version=4))


def _find_subnet(api: Api, network: str) -> Any:
    """Return the subnet of a network in the region."""
    subnets = api.all("subnetworks", region=api.region, filter=f'network eq ".*/networks/{network}"')
    subnet = next(subnets, None)
    if subnet is None:
        raise ProviderError(
            f"The network {network!r} of project {api.project} has no subnet in {api.region}. Name another "
            "(sky.GCP(network=...)), or create it (`gcloud compute networks create default`)."
        )
    return subnet


def _find_image(api: Api, image: str | None, request: PoolRequest) -> Any:
    """Return the machine image of this name, or Google's own for a pool."""
    arm = "arm64" if request.platform == "linux/arm64" else "amd64"
    own = f"{_UBUNTU}{arm}" if request.accelerator is None else _GPU_IMAGE
    project, name = (image or own).removeprefix("projects/").split("/global/images/")
    if name.startswith("family/"):
        return api.call("images", "get_from_family", project=project, family=name.removeprefix("family/"))
    return api.call("images", "get", project=project, image=name)
