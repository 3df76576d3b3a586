"""The launch of a pool's machines at EC2: one RunInstances call, into the pool's security group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from skyward.errors import PoolClosedError
from skyward.providers.aws import resources
from skyward.providers.aws.ami import MachineImage
from skyward.providers.aws.api import Api
from skyward.providers.aws.network import Network, make_group
from skyward.providers.cloud.protocol import LaunchRequest, RefusedError

# AWS has no such machine now, or the account may have no more of them
NO_ROOM = frozenset(
    {"InsufficientInstanceCapacity", "InsufficientHostCapacity", "InsufficientReservedInstanceCapacity"}
    | {"InsufficientCapacity", "UnfulfillableCapacity", "SpotMaxPriceTooLow", "MaxSpotInstanceCountExceeded"}
    | {"InstanceLimitExceeded", "VcpuLimitExceeded", "Unsupported", "InsufficientFreeAddressesInSubnet"}
    | {"SpotInstanceTermination", "SpotInstanceShutdown"}  # taken away again while they started
)


class Ec2Launcher:
    """Launches the machines of one pool.

    Args:
        api: the region.
        pool: identifier of the pool.
        image: what the machines boot from.
        network: where they are.
        client: the addresses that may log in, such as "203.0.113.7/32".
        profile: name of their instance profile; None for no credentials of AWS.
        private: whether they get no public address.
    """

    def __init__(
        self,
        api: Api,
        pool: str,
        image: MachineImage,
        network: Network,
        client: str,
        profile: str | None = None,
        private: bool = False,
    ) -> None:
        self._api, self._pool, self._image, self._network = api, pool, image, network
        self._client, self._profile, self._private = client, profile, private
        self._group = ""

    def prepare(self) -> None:
        """Make the pool's security group."""
        self._group = make_group(self._api, self._pool, self._network, self._client)

    def launch(self, request: LaunchRequest) -> Sequence[str]:
        """Launch machines; their ids in node order."""
        made = self._api.call("ec2", "run_instances", **self.run_instances(request))["Instances"]
        return [each["InstanceId"] for each in sorted(made, key=lambda each: int(each["AmiLaunchIndex"]))]

    def renew(self) -> None:
        """Write the present time into a tag of the security group; see `cloud.resources.sweep`.

        Raises:
            PoolClosedError: the group is gone.
        """
        try:
            resources.renew(self._api, self._group)
        except RefusedError as error:
            if error.code.endswith(".NotFound"):
                raise PoolClosedError(
                    f"Pool {self._pool} was ended by another client: its security group is gone."
                ) from error
            raise

    def run_instances(self, request: LaunchRequest) -> dict[str, Any]:
        """The arguments of the call, which launches all machines or none."""
        offer, image = request.offer, self._image
        disk = {"VolumeSize": image.disk_gb, "VolumeType": "gp3", "DeleteOnTermination": True, "Encrypted": True}
        interface = {
            "DeviceIndex": 0,
            "SubnetId": self._network.subnets[offer.zone],
            "Groups": [self._group],
            "AssociatePublicIpAddress": not self._private,
            "DeleteOnTermination": True,
        }
        kinds = ["instance", "volume", "network-interface"]
        arguments: dict[str, Any] = {
            "ImageId": image.id,
            "InstanceType": offer.type.name,
            "MinCount": request.nodes,
            "MaxCount": request.nodes,
            "ClientToken": request.token,
            "InstanceInitiatedShutdownBehavior": "terminate",
            "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1},
            "BlockDeviceMappings": [{"DeviceName": image.root, "Ebs": disk}],
            "NetworkInterfaces": [interface],
            "UserData": request.user_data,
        }
        if offer.market == "spot":
            once = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
            arguments["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": once}
            kinds.append("spot-instances-request")
        if self._profile:
            arguments["IamInstanceProfile"] = {"Name": self._profile}
        return {**arguments, "TagSpecifications": resources.tagged(self._pool, *kinds, hourly=offer.hourly)}
