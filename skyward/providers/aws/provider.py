"""`sky.AWS`: machines rented from EC2 for one pool, accessed by SSH, and terminated at its end.

Resources of pools are found by tags: there is no other record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

from skyward.errors import ProviderError
from skyward.model.parameters import suggesting
from skyward.model.resource import Resource
from skyward.model.spec import Accelerator
from skyward.providers.aws.api import POOL, TAG, Api
from skyward.providers.aws.catalog import find_offers, find_types
from skyward.providers.base import PoolRequest
from skyward.providers.cloud.base import (
    FirstStart,
    Instance,
    LaunchRequest,
    MachineOffer,
    Market,
    RefusedError,
    State,
    ignoring,
    leftover,
    notes,
)
from skyward.providers.cloud.provider import CloudProvider

_STATES: Mapping[str, State] = {
    "pending": "pending", "running": "running", "stopping": "stopped", "stopped": "stopped",
    "shutting-down": "ending", "terminated": "ended",
}  # fmt: skip
# AWS's names of its newest images: that of the container service for CPUs, the Deep Learning AMI for GPUs
_CPU_IMAGE = "/aws/service/ecs/optimized-ami/amazon-linux-2023/{arm}recommended/image_id"
_GPU_IMAGE = "/aws/service/deeplearning/ami/{cpu}/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
# its open driver does not support GPUs before Turing
_OLD_GPU_IMAGE = "/aws/service/ecs/optimized-ami/amazon-linux-2/gpu/recommended/image_id"
_OLD_GPUS = ("K80", "V100")
# `tries` and `token` keep their values between calls; a token is valid for 300 s
_READ_NOTICE = """
if [ "${tries:-0}" -eq 0 ]; then
    token=$(ask -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 300' http://$address/latest/api/token) || return
    tries=100
fi
tries=$((tries - 1))
ask -H "X-aws-ec2-metadata-token: $token" http://$address/latest/meta-data/spot/instance-action
"""
_STOP_ECS_AGENT = "systemctl disable --now --no-block ecs 2>/dev/null || true"  # part of AWS's image, and not used here


@suggesting("sky.AWS")
@dataclass(frozen=True, kw_only=True)
class AWS(CloudProvider):
    """Machines of EC2: `sky.AWS("us-east-1")`, with `ComputePool(accelerator="A100", allocation=..., machine=...)`.

    Requires boto3 (`pip install 'skyward[aws]'`) and credentials for boto3, such as AWS_PROFILE. Machines are launched
    in the region's default network, all of one type and in one zone. From outside, only the client can reach them, by
    SSH.

    Attributes:
        region: such as "us-east-1"; None for the one in AWS's configuration.
        disk_gb: size of a machine's disk in GB; None for the size that the machine image and the pool's image require,
            see docs/aws.md.
        use_private_ip: use the machines' private addresses, from within their network; they get no public ones.
        registry: repository through which images reach the machines; None to send them over the SSH connections.
        build: "local" builds images on the engine here, "remote" on the first machine.
        user: user that functions run as in their containers; see `sky.Docker`. The caller's own user is here the
            machine's.
        privileges: capabilities that their programs can have; see `sky.Docker`.
        ami: machine image to boot, with cloud-init, systemd and Docker; None for AWS's own with Docker, and for GPUs
            with NVIDIA's driver and toolkit.
        instance_profile: instance profile with the machines' permissions at AWS; None for no permissions.

    Raises:
        ConfigError: a value is invalid.
    """

    name: ClassVar[str] = "aws"
    library: ClassVar[tuple[str, str]] = ("boto3", "boto3")
    ami: str | None = None
    instance_profile: str | None = None

    def cloud(self) -> Ec2:
        """Return the API of EC2, with these settings."""
        self.check_installed()
        return Ec2(Api(self.region), self)


class Ec2:
    """EC2 in one region, for the common code of `providers/cloud`.

    Args:
        api: the API in the region.
        settings: the user's settings.
    """

    name = "AWS"
    no_room = frozenset(  # AWS has no such machine at present, or the account's limit is reached
        {"InsufficientInstanceCapacity", "InsufficientHostCapacity", "InsufficientReservedInstanceCapacity"}
        | {"InsufficientCapacity", "UnfulfillableCapacity", "SpotMaxPriceTooLow", "MaxSpotInstanceCountExceeded"}
        | {"InstanceLimitExceeded", "VcpuLimitExceeded", "Unsupported", "InsufficientFreeAddressesInSubnet"}
        | {"SpotInstanceTermination", "SpotInstanceShutdown"}  # reclaimed while they started
    )

    def __init__(self, api: Api, settings: AWS) -> None:
        self.api, self._settings = api, settings

    @property
    def region(self) -> str:
        """The region; raises ConfigError if none is configured."""
        return self.api.region

    @property
    def first_start(self) -> FirstStart:
        """Actions to read spot notices by version 2 of the metadata service, open to containers only with a profile."""
        has_profile = self._settings.instance_profile is not None
        return FirstStart(read_notice=_READ_NOTICE, open_metadata=has_profile, commands=[_STOP_ECS_AGENT])

    @cached_property
    def network(self) -> Network:
        """The default network of the region.

        Raises:
            ProviderError: there is none.
        """
        filters = [{"Name": "default-for-az", "Values": ["true"]}]
        found = list(self.api.all("ec2", "describe_subnets", "Subnets", Filters=filters))
        if not found:
            raise ProviderError(
                f"{self.region} has no default subnets. Create them (`aws ec2 create-default-vpc`), or name another "
                "region."
            )
        vpc = str(found[0]["VpcId"])
        described = self.api.call("ec2", "describe_vpcs", VpcIds=[vpc])["Vpcs"][0]
        subnets = {each["AvailabilityZone"]: each["SubnetId"] for each in found if each["VpcId"] == vpc}
        return Network(vpc, described["CidrBlock"], subnets)

    def offers(self, request: PoolRequest, markets: Sequence[Market]) -> Sequence[MachineOffer]:
        """Return the offers for a pool."""
        zones = list(self.network.subnets)
        return find_offers(self.api, find_types(self.api, request), zones, markets)

    def launcher(self, request: PoolRequest) -> Ec2Launcher:
        """Look up machine image, network, and the address of this client."""
        return Ec2Launcher(self.api, self._settings, self.network, request)

    def instances(self, pool: str | None = None) -> Sequence[Instance]:
        """Return the machines of a pool, or of all pools, including those that are ending or have just ended."""
        address = "PrivateIpAddress" if self._settings.use_private_ip else "PublicIpAddress"
        reservations = self.api.all("ec2", "describe_instances", "Reservations", Filters=[_of(pool)])
        return [_instance(each, address) for reservation in reservations for each in reservation["Instances"]]

    def terminate(self, ids: Sequence[str]) -> None:
        """End machines; those that do not exist are ignored."""
        with ignoring("InvalidInstanceID.NotFound"):
            self.api.call("ec2", "terminate_instances", InstanceIds=list(ids))

    def others(self, pool: str | None = None) -> Sequence[Resource]:
        """Return the security groups of a pool, or of all pools."""
        return [leftover("security group", each["GroupId"], tags(each)) for each in groups(self.api, pool)]

    def remove(self, name: str) -> bool:
        """Delete a security group; return False if it is in use.

        Network interfaces outlive their machines by some seconds.
        """
        try:
            self.api.call("ec2", "delete_security_group", GroupId=name)
        except RefusedError as error:
            if not error.is_gone and error.code != "DependencyViolation":
                raise
            return error.is_gone
        return True


def _instance(found: Mapping[str, Any], address: str) -> Instance:
    reason, noted = found.get("StateReason", {}), tags(found)
    return Instance(
        id=found["InstanceId"],
        pool=noted.get("pool", ""),
        index=found["AmiLaunchIndex"],
        state=_STATES[found["State"]["Name"]],
        type=found["InstanceType"],
        market="spot" if found.get("InstanceLifecycle") == "spot" else "on-demand",
        address=found.get(address) or "",
        noted=noted,
        launched=found["LaunchTime"].timestamp(),
        reason=str(reason.get("Message", "")).rstrip("."),
        code=str(reason.get("Code", "")).removeprefix("Server.").removeprefix("Client."),
    )


def _of(pool: str | None) -> dict[str, Any]:
    """Return the filter for resources of a pool, or of any pool."""
    return {"Name": f"tag:{POOL}", "Values": [pool]} if pool else {"Name": "tag-key", "Values": [POOL]}


def groups(api: Api, pool: str | None = None) -> list[dict[str, Any]]:
    """Return the security groups of a pool, or of all pools."""
    return list(api.all("ec2", "describe_security_groups", "SecurityGroups", Filters=[_of(pool)]))


def tags(resource: Mapping[str, Any]) -> dict[str, str]:
    """Return skyward's tags of a resource, without the prefix of their names."""
    ours = (each for each in resource.get("Tags", ()) if each["Key"].startswith(TAG))
    return {each["Key"].removeprefix(TAG): str(each["Value"]) for each in ours}


def tagged(pool: str, *kinds: str, hourly: float | None = None) -> list[dict[str, Any]]:
    """Return the TagSpecifications of a call that creates resources of these kinds; instances also get their price."""
    pairs = {"Name": f"skyward-{pool}", **{f"{TAG}{key}": value for key, value in notes(pool).items()}}
    price = {} if hourly is None else {f"{TAG}hourly": f"{hourly:.6f}"}
    tags = {kind: pairs | price if kind == "instance" else pairs for kind in kinds}
    return [
        {"ResourceType": kind, "Tags": [{"Key": key, "Value": value} for key, value in values.items()]}
        for kind, values in tags.items()
    ]


# the launch -----------------------------------------------------------------------------------------------------


class Ec2Launcher:
    """Launches the machines of one pool, from one image in one network."""

    def __init__(self, api: Api, settings: AWS, network: Network, request: PoolRequest) -> None:
        self._api, self._settings, self._network, self._pool = api, settings, network, request.pool_id
        self._image = find_image(api, settings, request)
        self._client = settings.client_cidr(network.cidr)
        self._group = ""

    def prepare(self) -> None:
        """Create the pool's security group: port 22 from the client, all traffic among the pool's machines."""
        about = {"GroupName": f"skyward-{self._pool}", "Description": f"Machines of the skyward pool {self._pool}"}
        about["VpcId"], tagging = self._network.vpc, tagged(self._pool, "security-group")
        try:
            made = self._api.call("ec2", "create_security_group", TagSpecifications=tagging, **about)
        except RefusedError as error:
            if error.code != "InvalidGroup.Duplicate":  # created by an earlier attempt whose answer was lost
                raise
            (made,) = groups(self._api, self._pool)
        self._group = str(made["GroupId"])
        version = "Ipv6" if ":" in self._client else "Ip"
        ranges = {f"{version}Ranges": [{f"Cidr{version}": self._client, "Description": "client of the pool"}]}
        pool = {"GroupId": self._group, "Description": "machines of the pool"}
        ssh = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, **ranges}
        rules = [ssh, {"IpProtocol": "-1", "UserIdGroupPairs": [pool]}]
        tagging = tagged(self._pool, "security-group-rule")
        ingress = {"GroupId": self._group, "IpPermissions": rules, "TagSpecifications": tagging}
        with ignoring("InvalidPermission.Duplicate"):
            self._api.call("ec2", "authorize_security_group_ingress", **ingress)

    def launch(self, request: LaunchRequest) -> Sequence[str]:
        """Launch machines, and return their ids in node order."""
        made = self._api.call("ec2", "run_instances", **self.run_instances(request))["Instances"]
        return [each["InstanceId"] for each in sorted(made, key=lambda each: int(each["AmiLaunchIndex"]))]

    def run_instances(self, request: LaunchRequest) -> dict[str, Any]:
        """Return the arguments of the call, which launches all machines or none."""
        offer, (image, disk) = request.offer, self._image
        subnet, is_public = self._network.subnets[offer.zone], not self._settings.use_private_ip
        interface = {"DeviceIndex": 0, "SubnetId": subnet, "Groups": [self._group], "DeleteOnTermination": True}
        interface["AssociatePublicIpAddress"] = is_public
        kinds = ["instance", "volume", "network-interface"]
        arguments: dict[str, Any] = {
            "ImageId": image,
            "InstanceType": offer.type.name,
            "MinCount": request.nodes,
            "MaxCount": request.nodes,
            "ClientToken": request.token,
            "InstanceInitiatedShutdownBehavior": "terminate",
            "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1},
            "BlockDeviceMappings": [disk],
            "NetworkInterfaces": [interface],
            "UserData": request.user_data,
        }
        if offer.market == "spot":
            once = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
            arguments["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": once}
            kinds.append("spot-instances-request")
        if self._settings.instance_profile:
            arguments["IamInstanceProfile"] = {"Name": self._settings.instance_profile}
        return {**arguments, "TagSpecifications": tagged(self._pool, *kinds, hourly=offer.hourly)}


class Network(NamedTuple):
    """The default network of a region: its id, its private addresses, and its subnet in each availability zone."""

    vpc: str
    cidr: str
    subnets: dict[str, str]


def find_image(api: Api, settings: AWS, request: PoolRequest) -> tuple[str, Mapping[str, Any]]:
    """Return the machine image of a pool, and the root disk that it boots from, with room for the pool's own image.

    Raises:
        ProviderError: the region has no such image, or the disk is smaller than it.
    """
    ami = settings.ami
    if ami is None:
        name = parameter(request.platform, request.accelerator)
        ami = str(api.call("ssm", "get_parameter", Name=name)["Parameter"]["Value"])
    found = api.call("ec2", "describe_images", ImageIds=[ami])["Images"]
    if not found:
        raise ProviderError(f"{api.region} has no machine image {ami}; images belong to one region each.")
    root = found[0].get("RootDeviceName") or "/dev/xvda"
    disks = {disk["DeviceName"]: disk["Ebs"] for disk in found[0].get("BlockDeviceMappings", ()) if "Ebs" in disk}
    own = int(disks.get(root, {}).get("VolumeSize", 8))
    size = settings.root_disk_gb(f"machine image {ami}", own, request)
    disk = {"VolumeSize": size, "VolumeType": "gp3", "DeleteOnTermination": True, "Encrypted": True}
    return ami, {"DeviceName": root, "Ebs": disk}


def parameter(platform: str, accelerator: Accelerator | None) -> str:
    """Return the name of the public parameter that holds the image's id."""
    if accelerator is not None and accelerator.name in _OLD_GPUS:
        return _OLD_GPU_IMAGE
    arm, cpu = ("arm64/", "arm64") if platform == "linux/arm64" else ("", "x86_64")
    return (_CPU_IMAGE if accelerator is None else _GPU_IMAGE).format(arm=arm, cpu=cpu)
