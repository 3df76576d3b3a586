"""The launch of a pool's machines at Compute Engine: one bulk insert, behind the pool's own firewall rules."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from skyward.errors import PoolClosedError
from skyward.providers.base import PoolRequest
from skyward.providers.cloud.base import LaunchRequest, RefusedError
from skyward.providers.gcp import resources
from skyward.providers.gcp.api import MIN_COUNT, Api
from skyward.providers.gcp.catalog import attached

# Google has no such machine now, or the project may have no more of them
NO_ROOM = frozenset(
    {"ZONE_RESOURCE_POOL_EXHAUSTED", "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "RESOURCE_POOL_EXHAUSTED", MIN_COUNT}
    | {"QUOTA_EXCEEDED", "quotaExceeded", "resourcePoolExhausted"}
    | {"UNSUPPORTED_OPERATION"}  # taken away again while they started
)
_HYPERDISK = ("a3-ultra", "a4", "c4", "n4")  # what boots from no other disk
_LONGEST_S = 120 * 86400  # Google's own limit of `maxRunDuration`


@dataclass(frozen=True, slots=True, kw_only=True)
class GcpLauncher:
    """Launches the machines of one pool.

    Attributes:
        api: the region.
        request: the pool.
        image: what the machines boot from.
        disk_gb: size of their disk.
        subnet: where they are.
        client: the addresses that may log in, such as "203.0.113.7/32".
        account: the machines' service account; None for no credentials.
        private: whether they get no public address.
        secure_boot: whether they load signed kernel modules only.
    """

    api: Api
    request: PoolRequest
    image: str
    disk_gb: int
    subnet: Any
    client: str
    account: str | None
    private: bool
    secure_boot: bool

    def prepare(self) -> None:
        """Make the pool's firewall rules, which come before those of the network."""
        pool, name = self.request.pool_id, resources.rules_name(self.request.pool_id)
        common = {"network": self.subnet.network, "target_tags": [name], "direction": "INGRESS"}
        about = resources.describe(pool, region=self.api.region)
        sources: dict[str, dict[str, Any]] = {
            "client": {"source_ranges": [self.client], "allowed": [{"I_p_protocol": "tcp", "ports": ["22"]}]},
            "machines": {"source_tags": [name], "allowed": [{"I_p_protocol": "all"}]},
            "others": {"source_ranges": ["0.0.0.0/0"], "denied": [{"I_p_protocol": "all"}], "priority": 20},
        }
        made = []
        for suffix in resources.RULES:
            rule = {"priority": 10, **common, **sources[suffix], "name": f"{name}-{suffix}", "description": about}
            token = request_id(pool, rule["name"])
            made.append(self.api.call("firewalls", "insert_unary", firewall_resource=rule, request_id=token))
        for operation in made:
            self.api.finish(operation)

    def launch(self, request: LaunchRequest) -> Sequence[str]:
        """Launch machines; their ids, "ZONE/NAME", in node order."""
        names = [f"{request.token}-{index}" for index in range(request.nodes)]
        resource = {
            "count": request.nodes,
            "min_count": request.nodes,  # all or none
            "per_instance_properties": {name: {"name": name} for name in names},
            "instance_properties": self.properties(request),
        }
        zone, token = request.offer.zone, request_id(self.request.pool_id, request.token)
        fields = {"bulk_insert_instance_resource_resource": resource, "request_id": token}
        self.api.finish(self.api.call("instances", "bulk_insert_unary", zone=zone, **fields))
        return [f"{zone}/{name}" for name in names]

    def renew(self) -> None:
        """Write the present time into the description of a firewall rule.

        Raises:
            PoolClosedError: the rule is gone.
        """
        pool = self.request.pool_id
        about = {"description": resources.describe(pool, region=self.api.region)}
        name = f"{resources.rules_name(pool)}-{resources.RULES[0]}"
        try:
            self.api.call("firewalls", "patch_unary", firewall=name, firewall_resource=about)
        except RefusedError as error:
            if error.code == "notFound":
                raise PoolClosedError(f"Pool {pool} was ended by another client: its firewall rule is gone.") from error
            raise

    def properties(self, request: LaunchRequest) -> dict[str, Any]:
        """What all machines of a launch have in common."""
        pool, offer = self.request.pool_id, request.offer
        labels, gpus = {resources.POOL: pool}, attached(self.request, offer.type)
        disk = "hyperdisk-balanced" if offer.type.name.startswith(_HYPERDISK) else "pd-balanced"
        start = {"source_image": self.image, "disk_size_gb": self.disk_gb, "disk_type": disk, "labels": labels}
        interface: dict[str, Any] = {"subnetwork": self.subnet.self_link}
        if not self.private:
            interface["access_configs"] = [{"type_": "ONE_TO_ONE_NAT", "name": "External NAT"}]
        schedule: dict[str, Any] = {"automatic_restart": False, "provisioning_model": "STANDARD"}
        if offer.market == "spot":
            schedule |= {"provisioning_model": "SPOT", "instance_termination_action": "DELETE"}
        if request.longest_s is not None:
            seconds = min(max(int(request.longest_s), 30), _LONGEST_S)
            schedule |= {"max_run_duration": {"seconds": seconds}, "instance_termination_action": "DELETE"}
        if offer.type.gpus or offer.market == "spot":
            schedule["on_host_maintenance"] = "TERMINATE"
        metadata = {"user-data": request.user_data, "block-project-ssh-keys": "TRUE", "enable-oslogin": "FALSE"}
        shield = {"enable_secure_boot": self.secure_boot, "enable_vtpm": True, "enable_integrity_monitoring": True}
        scopes = ["https://www.googleapis.com/auth/cloud-platform"]
        return {
            "machine_type": offer.type.name,
            "description": resources.describe(pool, hourly=offer.hourly),
            "labels": labels,
            "tags": {"items": [resources.rules_name(pool)]},
            "disks": [{"boot": True, "auto_delete": True, "initialize_params": start}],
            "network_interfaces": [interface],
            "metadata": {"items": [{"key": key, "value": value} for key, value in metadata.items()]},
            "scheduling": schedule,
            "guest_accelerators": gpus,
            "service_accounts": [{"email": self.account, "scopes": scopes}] if self.account else [],
            "shielded_instance_config": shield if offer.type.platform == "linux/amd64" else None,
        }


def request_id(pool: str, token: str) -> str:
    """The id by which Google knows a repeated request; its beginning tells the pool, see `resources.pending`."""
    rest = hashlib.sha256(f"{pool} {token}".encode()).digest()
    return str(UUID(bytes=bytes.fromhex(resources.pool_prefix(pool)) + rest[:12], version=4))
