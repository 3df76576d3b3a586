"""The network of a pool's machines: the region's default subnets, and a security group for each pool."""

from __future__ import annotations

from dataclasses import dataclass

from skyward.errors import ProviderError
from skyward.providers.aws.api import Api
from skyward.providers.aws.resources import tagged
from skyward.providers.cloud.protocol import RefusedError


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
