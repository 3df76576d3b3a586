"""What exists at AWS of any pool, found by tags alone, and its removal."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from skyward.errors import ProviderError
from skyward.providers.aws.api import Api, RefusedError
from skyward.providers.aws.tags import OWNER, POOL, SEEN, hourly_of, pool_of, seen_of, tag
from skyward.providers.owner import USER
from skyward.system import time

_log = logging.getLogger(__name__)
_THERE = ("pending", "running", "stopping", "stopped")
_GONE_S = 300.0  # large machines take minutes to end
_LOOK_S = 2.0
RENEW_S = 600.0  # between two signs of life of a pool
_ASKED_S = 0.2  # after the request to end
_FORGOTTEN_S = 3600.0  # for which a client may be silent; its heir tries for an hour as well


def instances(api: Api, pool: str | None = None, states: Sequence[str] = _THERE) -> list[dict[str, Any]]:
    """The machines of a pool, or of all pools."""
    which = {"Name": f"tag:{POOL}", "Values": [pool]} if pool else {"Name": "tag-key", "Values": [POOL]}
    filters = [which, {"Name": "instance-state-name", "Values": list(states)}]
    reservations = api.all("ec2", "describe_instances", "Reservations", Filters=filters)
    found = [each for reservation in reservations for each in reservation["Instances"]]
    return sorted(found, key=lambda each: (pool_of(each), each["AmiLaunchIndex"]))


def groups(api: Api, pool: str | None = None) -> list[dict[str, Any]]:
    """The security groups of a pool, or of all pools."""
    which = {"Name": f"tag:{POOL}", "Values": [pool]} if pool else {"Name": "tag-key", "Values": [POOL]}
    return list(api.all("ec2", "describe_security_groups", "SecurityGroups", Filters=[which]))


def describe(api: Api) -> list[Mapping[str, Any]]:
    """Everything of all pools in the form of `Provider.find`; a group without machines has the node -1."""
    machines = instances(api)
    having = {pool_of(each) for each in instances(api, states=(*_THERE, "shutting-down"))}
    found: list[Mapping[str, Any]] = [
        {
            "pool": pool_of(each),
            "node": each["AmiLaunchIndex"],
            "name": each["InstanceId"],
            "state": each["State"]["Name"],
            "owner": tag(each, OWNER),
            "user": tag(each, USER),
            "type": each["InstanceType"],
            "market": "spot" if each.get("InstanceLifecycle") == "spot" else "on-demand",
            "host": each.get("PublicIpAddress") or each.get("PrivateIpAddress", ""),
            "hourly": hourly_of(each),
            "cost": _cost(each),
        }
        for each in machines
    ]
    left = [group for group in groups(api) if pool_of(group) not in having]
    return found + [
        {
            "pool": pool_of(group),
            "node": -1,
            "name": group["GroupId"],
            "state": "security group",
            "owner": tag(group, OWNER),
            "user": tag(group, USER),
        }
        for group in left
    ]


def _cost(machine: dict[str, Any]) -> float | None:
    """What a machine has cost so far, in USD, at the price of its launch; AWS bills from the launch on."""
    hourly = hourly_of(machine)
    return None if hourly is None else hourly * max(0.0, time.time() - machine["LaunchTime"].timestamp()) / 3600


def terminate(api: Api, found: Sequence[Mapping[str, Any]]) -> None:
    """Have machines ended; those that are gone are fine."""
    ids = [each["InstanceId"] for each in found]
    if not ids:
        return
    try:
        api.call("ec2", "terminate_instances", InstanceIds=ids)
    except RefusedError as error:
        if error.code != "InvalidInstanceID.NotFound":
            raise


def clear(api: Api, pool: str) -> None:
    """End all machines of a pool, wait until they are gone, and delete its security groups. Idempotent.

    A machine whose launch was still under way needs the group: either it cannot start any more, or the group cannot be
    deleted, and the machine is found when it is looked for again.

    Raises:
        ProviderError: AWS refuses, or machines do not end in time; the message says what is left.
    """
    deadline = time.monotonic() + _GONE_S
    while True:
        _end_machines(api, pool, deadline)
        try:
            for group in groups(api, pool):
                _delete(api, group)
        except RefusedError as error:
            # the network interfaces of machines outlive them by some seconds
            if error.code != "DependencyViolation" or time.monotonic() > deadline:
                raise
            time.sleep(_LOOK_S)
            continue
        return


def _end_machines(api: Api, pool: str, deadline: float) -> None:
    while left := instances(api, pool, (*_THERE, "shutting-down")):
        if time.monotonic() > deadline:
            names = ", ".join(f"{each['InstanceId']} ({each['State']['Name']})" for each in left)
            raise ProviderError(f"Machines of pool {pool} have not ended within {_GONE_S:g} s: {names}.")
        running = [each for each in left if each["State"]["Name"] in _THERE]
        terminate(api, running)
        time.sleep(_LOOK_S if not running else _ASKED_S)


def renew(api: Api, group: str) -> None:
    """Write into a tag of a pool's security group that the pool's client lives; see `sweep`.

    Raises:
        ProviderError: AWS refuses or cannot be asked.
    """
    api.call("ec2", "create_tags", Resources=[group], Tags=[{"Key": SEEN, "Value": f"{time.time():.0f}"}])


def sweep(api: Api) -> None:
    """Delete the security groups of dead pools: no client has renewed them for an hour, and they have no machine.

    A pool that has lost all its machines and waits for others has a group without machines as well, for any length of
    time, but its client renews that (`RENEW_S`). Clocks agree well enough, since AWS refuses requests of a clock that
    is 5 minutes wrong. A group that no tag gives a time for is left alone. What cannot be deleted is told as a warning:
    it is no matter of the pool that is being opened.
    """
    old = [group for group in groups(api) if (at := seen_of(group)) is not None and time.time() - at > _FORGOTTEN_S]
    having = {pool_of(each) for each in instances(api, states=(*_THERE, "shutting-down"))} if old else set()
    for group in old:
        if pool_of(group) in having:
            continue
        try:
            _delete(api, group)
        except ProviderError as error:
            _log.warning("The security group %s of pool %s is left: %s", group["GroupId"], pool_of(group), error)


def _delete(api: Api, group: Mapping[str, Any]) -> None:
    try:
        api.call("ec2", "delete_security_group", GroupId=group["GroupId"])
    except RefusedError as error:
        if error.code != "InvalidGroup.NotFound":
            raise
