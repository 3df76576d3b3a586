"""Getting machines: one call per offer until AWS has room, and the wait until they run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from skyward.build.events import Report, note
from skyward.errors import ProviderError
from skyward.providers.aws import estate
from skyward.providers.aws.ami import MachineImage
from skyward.providers.aws.api import Api, RefusedError
from skyward.providers.aws.network import Network
from skyward.providers.aws.tags import tagged
from skyward.providers.aws.terms import Offer
from skyward.system import time

# AWS has no such machine now, or the account may have no more of them: the next offer may do
_NO_ROOM = frozenset(
    {"InsufficientInstanceCapacity", "InsufficientHostCapacity", "InsufficientReservedInstanceCapacity"}
    | {"InsufficientCapacity", "UnfulfillableCapacity", "SpotMaxPriceTooLow", "MaxSpotInstanceCountExceeded"}
    | {"InstanceLimitExceeded", "VcpuLimitExceeded", "Unsupported", "InsufficientFreeAddressesInSubnet"}
    | {"SpotInstanceTermination", "SpotInstanceShutdown"}  # taken away again while they started
)
_RUNNING_S = 300.0
_LOOK_S = 1.0
_SAY_EVERY_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a pool's machines have in common, whatever their type.

    Attributes:
        pool: identifier of the pool.
        nodes: how many machines.
        image: what they boot from.
        network: where they are.
        group: their security group.
        user_data: what they do at their first start.
        profile: name of their instance profile; None for no credentials of AWS.
        private: whether they get no public address.
        again: how many machines the pool has asked for, one at a time, after its first ones.
    """

    pool: str
    nodes: int
    image: MachineImage
    network: Network
    group: str
    user_data: str
    profile: str | None
    private: bool
    again: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rented:
    """A machine that runs.

    Attributes:
        id: such as "i-0123".
        address: where it is reached from here.
    """

    id: str
    address: str


def launch(api: Api, order: Order, offers: Sequence[Offer], report: Report) -> tuple[Offer, list[Rented]]:
    """Get all machines of a pool by the first offer that AWS has room for.

    Returns:
        The offer, and the machines in node order.

    Raises:
        ProviderError: AWS has room for none; lists what was tried.
    """
    tried = []
    for number, offer in enumerate(offers):
        report(note(f"launching {offer.text(order.nodes)}"))
        made: list[dict[str, Any]] = []
        try:
            made = api.call("ec2", "run_instances", **_request(order, offer, number))["Instances"]
            return offer, _wait_running(api, made, order, report)
        except ProviderError as error:
            estate.terminate(api, made)  # nobody else knows of these before the pool's end
            if not isinstance(error, RefusedError) or error.code not in _NO_ROOM:
                raise
            report(note(f"no room for {offer.type.name} ({offer.market}) in {offer.zone}: {error.code}"))
            tried.append(f"  {offer.type.name}  {offer.market}  {offer.zone}  {error.code}")
    raise ProviderError(
        f"AWS has no room for {order.nodes} machines in {api.region}:\n" + "\n".join(tried) + "\n"
        "Try later, another region, other types, or allocation='on-demand'; for limits of the account see its service "
        "quotas."
    )


def _request(order: Order, offer: Offer, number: int) -> dict[str, Any]:
    """The call that gets all machines or none. Sent twice it makes them once."""
    disk = {"VolumeSize": order.image.disk_gb, "VolumeType": "gp3", "DeleteOnTermination": True, "Encrypted": True}
    interface = {
        "DeviceIndex": 0,
        "SubnetId": order.network.subnets[offer.zone],
        "Groups": [order.group],
        "AssociatePublicIpAddress": not order.private,
        "DeleteOnTermination": True,
    }
    kinds = ["instance", "volume", "network-interface"]
    request: dict[str, Any] = {
        "ImageId": order.image.id,
        "InstanceType": offer.type.name,
        "MinCount": order.nodes,
        "MaxCount": order.nodes,
        "ClientToken": f"skyward-{order.pool}-{number}" + (f"-again-{order.again}" if order.again else ""),
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1},
        "BlockDeviceMappings": [{"DeviceName": order.image.root, "Ebs": disk}],
        "NetworkInterfaces": [interface],
        "UserData": order.user_data,
    }
    if offer.market == "spot":
        once = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
        request["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": once}
        kinds.append("spot-instances-request")
    if order.profile:
        request["IamInstanceProfile"] = {"Name": order.profile}
    return {**request, "TagSpecifications": tagged(order.pool, *kinds, hourly=offer.hourly)}


def _wait_running(api: Api, made: Sequence[Mapping[str, Any]], order: Order, report: Report) -> list[Rented]:
    """Wait until all run and have an address.

    Raises:
        RefusedError: one has ended already, for want of capacity for example.
        ProviderError: they do not run in time.
    """
    ids = [each["InstanceId"] for each in sorted(made, key=lambda each: each["AmiLaunchIndex"])]
    field = "PrivateIpAddress" if order.private else "PublicIpAddress"
    began = said = time.monotonic()
    while True:
        found = {each["InstanceId"]: each for each in estate.instances(api, order.pool, _ALL)}
        states = {ident: found[ident]["State"]["Name"] if ident in found else "pending" for ident in ids}
        for ident in ids:
            if states[ident] not in ("pending", "running"):
                reason = found[ident].get("StateReason", {})
                code = str(reason.get("Code", "")).removeprefix("Server.").removeprefix("Client.")
                raise RefusedError(
                    f"The machine {ident} ended at once: {reason.get('Message', 'no reason given')}.", code
                )
        if all(states[ident] == "running" and found[ident].get(field) for ident in ids):
            return [Rented(id=ident, address=found[ident][field]) for ident in ids]
        if time.monotonic() - began > _RUNNING_S:
            slow = ", ".join(ident for ident in ids if states[ident] != "running") or "which have no address"
            raise ProviderError(f"Machines do not run {_RUNNING_S:g} s after their launch: {slow}.")
        if time.monotonic() - said > _SAY_EVERY_S:
            said = time.monotonic()
            up = sum(state == "running" for state in states.values())
            report(note(f"{up} of {len(ids)} machines run after {said - began:.0f} s"))
        time.sleep(_LOOK_S)


_ALL = ("pending", "running", "shutting-down", "terminated", "stopping", "stopped")
