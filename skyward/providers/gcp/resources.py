"""The resources of all pools at Compute Engine: machines by label, firewall rules by name; there is no other record.

A label takes few characters, and a firewall rule has none. Their descriptions hold the rest, as JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from skyward.model.resource import Resource
from skyward.nodes.process_id import ProcessId, current_user
from skyward.providers.cloud.base import Instance, RefusedError, State
from skyward.providers.gcp.api import Api
from skyward.system import time
from skyward.system.futures import ThreadPoolExecutor

POOL: Final = "skyward-pool"
RULES: Final = ("client", "machines", "others")  # what the names of a pool's firewall rules end with
_PARALLEL = 16
_STATES: Mapping[str, State] = {
    **dict.fromkeys(("PROVISIONING", "STAGING", "REPAIRING", "PENDING"), "pending"),
    "RUNNING": "running",
    **dict.fromkeys(("PENDING_STOP", "STOPPING", "SUSPENDING", "DEPROVISIONING"), "ending"),
}  # and everything else is stopped, and costs its disk until it is deleted


def rules_name(pool: str) -> str:
    """The name that a pool's firewall rules begin with, which is also the network tag of its machines."""
    return f"skyward-{pool}"


def pool_prefix(pool: str) -> str:
    """The first eight digits of the ids of a pool's requests."""
    return hashlib.sha256(pool.encode()).hexdigest()[:8]


def describe(pool: str, **more: str | float | None) -> str:
    """The description of something of a pool that is made, or renewed, now."""
    owner = ProcessId.of(os.getpid()).for_people
    return json.dumps({"pool": pool, "owner": owner, "user": current_user(), "seen": round(time.time()), **more})


def _described(text: str) -> dict[str, Any]:
    """A description as it was written; empty where it is something else, since anybody in the project may write it."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _instance(found: Any, private: bool) -> Instance:
    about, interface = _described(found.description), next(iter(found.network_interfaces), None)
    public = next(iter(interface.access_configs), None) if interface else None
    address = (interface.network_i_p if interface else "") if private else (public.nat_i_p if public else "")
    return Instance(
        id=f"{found.zone.rpartition('/')[2]}/{found.name}",
        pool=found.labels.get(POOL, ""),
        index=int(found.name.rpartition("-")[2]),
        state=_STATES.get(found.status, "stopped"),
        type=found.machine_type.rpartition("/")[2],
        market="spot" if found.scheduling.provisioning_model == "SPOT" else "on-demand",
        address=address,
        owner=str(about.get("owner", "")),
        user=str(about.get("user", "")),
        hourly=_number(about.get("hourly")),
        launched=datetime.fromisoformat(found.creation_timestamp).timestamp(),
        reason=found.status_message.rstrip("."),
    )


def _ignoring_gone(api: Api, service: str, **fields: str) -> Any:
    try:
        return api.call(service, "delete_unary", **fields)
    except RefusedError as error:
        if error.code not in ("notFound", "resourceNotReady"):
            raise
        return None


def _rules(pool: str, owner: str = "", user: str = "", seen: float | None = None) -> Resource:
    name = rules_name(pool)
    return Resource(pool=pool, node=-1, name=name, state="firewall rules", owner=owner, user=user, seen=seen)


def pending(api: Api, pool: str) -> bool:
    """Whether machines or rules of a pool are being made: they are listed only when that has ended."""
    scopes = api.all("global_operations", "aggregated_list", filter='status != "DONE"')
    prefix = pool_prefix(pool)
    return any(each.client_operation_id.startswith(prefix) for _, scope in scopes for each in scope.operations)


class Resources:
    """What Compute Engine has of pools in one region.

    Args:
        api: the region.
        private: whether machines are reached at their private addresses.
    """

    def __init__(self, api: Api, *, private: bool) -> None:
        self.api, self._private = api, private

    def instances(self, pool: str | None = None) -> Sequence[Instance]:
        """The machines of a pool, or of all pools of the region."""
        region = f"{self.api.region}-"
        label = f'labels.{POOL}="{pool}"' if pool else f"labels.{POOL}:*"
        by_zone = self.api.all("instances", "aggregated_list", filter=label)
        found = [_instance(each, self._private) for _, zone in by_zone for each in zone.instances]
        return sorted((each for each in found if each.id.startswith(region)), key=lambda each: (each.pool, each.index))

    def terminate(self, ids: Sequence[str]) -> None:
        """Begin to delete machines; those that do not exist, or are being deleted, are ignored."""

        def delete(ident: str) -> None:
            zone, _, name = ident.partition("/")
            _ignoring_gone(self.api, "instances", zone=zone, instance=name)

        with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="skyward-delete") as threads:
            list(threads.map(delete, ids))

    def others(self, pool: str | None = None) -> Sequence[Resource]:
        """The firewall rules of a pool, or of all pools of the region, as one thing; also while one is made."""
        found: dict[str, Resource] = {}
        for rule in self.api.all("firewalls", filter=f'name eq "{rules_name(pool or "")}.*"'):
            about = _described(rule.description)
            if about.get("region") != self.api.region:
                continue
            name, _, _ = rule.name.rpartition("-")
            before = found.get(name)
            seen = max(
                (each for each in (_number(about.get("seen")), before and before.get("seen")) if each), default=None
            )
            owner, user = str(about.get("owner", "")), str(about.get("user", ""))
            found[name] = _rules(name.removeprefix("skyward-"), owner, user, seen)
        if pool and not found and pending(self.api, pool):
            return [_rules(pool)]
        return list(found.values())

    def remove(self, name: str) -> bool:
        """Delete the firewall rules of a pool; False while something of it is being made, or a machine is not ending.

        Google deletes rules though machines have them. A launch that was under way when the caller looked for machines
        may have ended since: they are looked for after it.
        """
        pool = name.removeprefix("skyward-")
        if pending(self.api, pool) or any(each.state != "ending" for each in self.instances(pool)):
            return False
        begun = [_ignoring_gone(self.api, "firewalls", firewall=f"{name}-{suffix}") for suffix in RULES]
        for operation in begun:
            if operation is not None:
                self.api.finish(operation)
        return True
