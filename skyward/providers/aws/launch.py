"""The launch of a pool's machines at EC2: their image, the pool's security group, and one RunInstances call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from skyward.errors import PoolClosedError, ProviderError
from skyward.model.spec import Accelerator
from skyward.providers.aws import resources
from skyward.providers.aws.api import Api
from skyward.providers.aws.resources import tagged
from skyward.providers.cloud.base import LaunchRequest, RefusedError

# AWS has no such machine now, or the account may have no more of them
NO_ROOM = frozenset(
    {"InsufficientInstanceCapacity", "InsufficientHostCapacity", "InsufficientReservedInstanceCapacity"}
    | {"InsufficientCapacity", "UnfulfillableCapacity", "SpotMaxPriceTooLow", "MaxSpotInstanceCountExceeded"}
    | {"InstanceLimitExceeded", "VcpuLimitExceeded", "Unsupported", "InsufficientFreeAddressesInSubnet"}
    | {"SpotInstanceTermination", "SpotInstanceShutdown"}  # taken away again while they started
)
# AWS' own names for its newest images: the container service's for CPUs, the Deep Learning AMI for GPUs
_CPU = {
    "linux/amd64": "/aws/service/ecs/optimized-ami/amazon-linux-2023/recommended/image_id",
    "linux/arm64": "/aws/service/ecs/optimized-ami/amazon-linux-2023/arm64/recommended/image_id",
}
_GPU = {
    "linux/amd64": "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id",
    "linux/arm64": "/aws/service/deeplearning/ami/arm64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id",
}
# the open driver in those does not support GPUs before Turing
_OLD_GPU = "/aws/service/ecs/optimized-ami/amazon-linux-2/gpu/recommended/image_id"
_OLD = ("K80", "V100")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineImage:
    """A machine image, and the root disk that it boots from.

    Attributes:
        id: such as "ami-0123".
        root: device of its root disk.
        disk_gb: size of that disk.
    """

    id: str
    root: str
    disk_gb: int


def parameter(platform: str, accelerator: Accelerator | None) -> str:
    """Name of the public parameter that holds the image's id."""
    if accelerator is None:
        return _CPU[platform]
    return _OLD_GPU if accelerator.name in _OLD else _GPU[platform]


def find_image(
    api: Api, platform: str, accelerator: Accelerator | None, ami: str | None, disk_gb: int | None, room_gb: int
) -> MachineImage:
    """The machine image of a pool.

    Args:
        api: the region.
        platform: "linux/amd64" or "linux/arm64".
        accelerator: GPUs that it needs a driver for.
        ami: id of the image to boot instead of AWS' own.
        disk_gb: size of the root disk; None for the image's own size and `room_gb` more.
        room_gb: see `disk_gb`.

    Raises:
        ProviderError: the region has no such image, or the disk is smaller than it.
    """
    if ami is None:
        name = parameter(platform, accelerator)
        ami = str(api.call("ssm", "get_parameter", Name=name)["Parameter"]["Value"])
    found = api.call("ec2", "describe_images", ImageIds=[ami])["Images"]
    if not found:
        raise ProviderError(f"{api.region} has no machine image {ami}; images belong to one region each.")
    root = found[0].get("RootDeviceName") or "/dev/xvda"
    disks = {disk["DeviceName"]: disk["Ebs"] for disk in found[0].get("BlockDeviceMappings", ()) if "Ebs" in disk}
    own = int(disks.get(root, {}).get("VolumeSize", 8))
    if disk_gb is not None and disk_gb < own:
        raise ProviderError(f"disk_gb={disk_gb} is too small: the machine image {ami} takes {own} GB.")
    return MachineImage(id=ami, root=root, disk_gb=disk_gb or own + room_gb)


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The default network of a region.

    Attributes:
        vpc: its id.
        cidr: its private addresses.
        subnets: the default subnet of each availability zone.
    """

    vpc: str
    cidr: str
    subnets: dict[str, str]


def find_network(api: Api) -> Network:
    """The default network.

    Raises:
        ProviderError: the region has none.
    """
    filters = [{"Name": "default-for-az", "Values": ["true"]}]
    found = list(api.all("ec2", "describe_subnets", "Subnets", Filters=filters))
    if not found:
        raise ProviderError(
            f"{api.region} has no default subnets. Make them (`aws ec2 create-default-vpc`), or name another region."
        )
    vpc = str(found[0]["VpcId"])
    described = api.call("ec2", "describe_vpcs", VpcIds=[vpc])["Vpcs"][0]
    subnets = {each["AvailabilityZone"]: each["SubnetId"] for each in found if each["VpcId"] == vpc}
    return Network(vpc=vpc, cidr=described["CidrBlock"], subnets=subnets)


def make_group(api: Api, pool: str, network: Network, client: str) -> str:
    """Make the security group of a pool: port 22 from the client, everything among the pool's machines. Its id.

    Args:
        api: the region.
        pool: identifier of the pool.
        network: where it is made.
        client: the addresses that may log in, such as "203.0.113.7/32".
    """
    name = f"skyward-{pool}"
    about = {"Description": f"Machines of the skyward pool {pool}", "VpcId": network.vpc}
    tagging = tagged(pool, "security-group")
    try:
        made = api.call("ec2", "create_security_group", GroupName=name, TagSpecifications=tagging, **about)
        group = str(made["GroupId"])
    except RefusedError as error:
        if error.code != "InvalidGroup.Duplicate":  # made by an earlier attempt whose answer was lost
            raise
        filters = [{"Name": "group-name", "Values": [name]}, {"Name": "vpc-id", "Values": [network.vpc]}]
        group = str(api.call("ec2", "describe_security_groups", Filters=filters)["SecurityGroups"][0]["GroupId"])
    version = "CidrIpv6" if ":" in client else "CidrIp"
    ranges = {"Ipv6Ranges" if ":" in client else "IpRanges": [{version: client, "Description": "client of the pool"}]}
    permissions = [
        {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, **ranges},
        {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group, "Description": "machines of the pool"}]},
    ]
    try:
        api.call(
            "ec2",
            "authorize_security_group_ingress",
            GroupId=group,
            IpPermissions=permissions,
            TagSpecifications=tagged(pool, "security-group-rule"),
        )
    except RefusedError as error:
        if error.code != "InvalidPermission.Duplicate":
            raise
    return group
