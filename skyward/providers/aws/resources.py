"""The resources of all pools at EC2, found by their tags: there is no other record."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from skyward.model.resource import Resource
from skyward.nodes.process_id import USER, ProcessId, current_user
from skyward.providers.aws.api import Api
from skyward.providers.cloud.base import Instance, RefusedError, State
from skyward.system import time

POOL: Final = "skyward.pool"
OWNER: Final = "skyward.owner"
BEGAN: Final = "skyward.began"
HOURLY: Final = "skyward.hourly"
SEEN: Final = "skyward.seen"  # of a security group: when its pool's client last noted that it is alive
_STATES: Mapping[str, State] = {
    "pending": "pending",
    "running": "running",
    "stopping": "stopped",
    "stopped": "stopped",
    "shutting-down": "ending",
    "terminated": "ended",
}


def tagged(pool: str, *kinds: str, hourly: float | None = None) -> list[dict[str, Any]]:
    """The TagSpecifications of a call that creates resources of these kinds; instances are tagged with their price."""
    tags = {
        "Name": f"skyward-{pool}",
        POOL: pool,
        OWNER: ProcessId.of(os.getpid()).for_people,
        USER: current_user(),
        BEGAN: f"{time.time():.0f}",
    }
    pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
    price = [] if hourly is None else [{"Key": HOURLY, "Value": f"{hourly:.6f}"}]
    return [{"ResourceType": kind, "Tags": pairs + price * (kind == "instance")} for kind in kinds]


def tag(resource: Mapping[str, Any], key: str) -> str:
    """Value of a resource's tag; "" without it."""
    return next((str(each["Value"]) for each in resource.get("Tags", ()) if each["Key"] == key), "")


def _number(resource: Mapping[str, Any], key: str) -> float | None:
    """A tag's number; None if it is none, since anybody in the account may write tags."""
    try:
        return float(tag(resource, key))
    except ValueError:
        return None


def _of(pool: str | None) -> dict[str, Any]:
    return {"Name": f"tag:{POOL}", "Values": [pool]} if pool else {"Name": "tag-key", "Values": [POOL]}


def _instance(found: Mapping[str, Any], address: str) -> Instance:
    reason = found.get("StateReason", {})
    return Instance(
        id=found["InstanceId"],
        pool=tag(found, POOL),
        index=found["AmiLaunchIndex"],
        state=_STATES[found["State"]["Name"]],
        type=found["InstanceType"],
        market="spot" if found.get("InstanceLifecycle") == "spot" else "on-demand",
        address=found.get(address) or "",
        owner=tag(found, OWNER),
        user=tag(found, USER),
        hourly=_number(found, HOURLY),
        launched=found["LaunchTime"].timestamp(),
        reason=str(reason.get("Message", "")).rstrip("."),
        code=str(reason.get("Code", "")).removeprefix("Server.").removeprefix("Client."),
    )


def groups(api: Api, pool: str | None = None) -> list[dict[str, Any]]:
    """The security groups of a pool, or of all pools."""
    return list(api.all("ec2", "describe_security_groups", "SecurityGroups", Filters=[_of(pool)]))


def renew(api: Api, group: str) -> None:
    """Write into a tag of a pool's security group that the pool's client is alive; see `sweep` in `cloud`.

    Raises:
        ProviderError: AWS refuses or cannot be reached.
    """
    api.call("ec2", "create_tags", Resources=[group], Tags=[{"Key": SEEN, "Value": f"{time.time():.0f}"}])


def _last_seen(group: Mapping[str, Any]) -> float | None:
    """When a group's client was last known to be alive, in seconds since the epoch; None if no tag says so."""
    return max((known for key in (BEGAN, SEEN) if (known := _number(group, key)) is not None), default=None)


class Resources:
    """What EC2 has of pools in one region.

    Args:
        api: the region.
        private: whether machines are reached at their private addresses.
    """

    def __init__(self, api: Api, *, private: bool) -> None:
        self.api, self._private = api, private

    def instances(self, pool: str | None = None) -> Sequence[Instance]:
        """The machines of a pool, or of all pools, also those that end or have just ended."""
        reservations = self.api.all("ec2", "describe_instances", "Reservations", Filters=[_of(pool)])
        found = [each for reservation in reservations for each in reservation["Instances"]]
        described = [_instance(each, "PrivateIpAddress" if self._private else "PublicIpAddress") for each in found]
        return sorted(described, key=lambda each: (each.pool, each.index))

    def terminate(self, ids: Sequence[str]) -> None:
        """End machines; those that do not exist are ignored."""
        try:
            self.api.call("ec2", "terminate_instances", InstanceIds=list(ids))
        except RefusedError as error:
            if error.code != "InvalidInstanceID.NotFound":
                raise

    def others(self, pool: str | None = None) -> Sequence[Resource]:
        """The security groups of a pool, or of all pools."""
        return [
            Resource(
                pool=tag(each, POOL),
                node=-1,
                name=each["GroupId"],
                state="security group",
                owner=tag(each, OWNER),
                user=tag(each, USER),
                seen=_last_seen(each),
            )
            for each in groups(self.api, pool)
        ]

    def remove(self, name: str) -> bool:
        """Delete a security group; False if it is in use: network interfaces outlive their machines by some seconds."""
        try:
            self.api.call("ec2", "delete_security_group", GroupId=name)
        except RefusedError as error:
            if error.code == "DependencyViolation":
                return False
            if error.code != "InvalidGroup.NotFound":
                raise
        return True
