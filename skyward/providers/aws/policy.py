"""The least permissions that `sky.AWS` needs, as an IAM policy.

It allows to create only what has a pool's tag, and to change and delete only that. Which actions take which resources
and conditions: https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2.html
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from skyward.nodes.process_id import USER
from skyward.providers.aws.resources import BEGAN, HOURLY, OWNER, POOL, SEEN

# actions that AWS can limit to no resource; they change nothing
_LOOKS = (
    *("ec2:DescribeImages", "ec2:DescribeInstances", "ec2:DescribeInstanceTypeOfferings", "ec2:DescribeInstanceTypes"),
    *("ec2:DescribeSecurityGroups", "ec2:DescribeSpotPriceHistory", "ec2:DescribeSubnets", "ec2:DescribeVpcs"),
    "pricing:GetProducts",
)
_MACHINE = ("instance", "volume", "network-interface", "spot-instances-request")  # what a launch makes
_GROUP = ("security-group", "security-group-rule")
_TAGS = ("Name", POOL, USER, OWNER, BEGAN, HOURLY)  # at a creation
_IS_A_POOLS = {"StringLike": {f"aws:ResourceTag/{POOL}": "?*"}}
_BECOMES_A_POOLS = {
    "StringLike": {f"aws:RequestTag/{POOL}": "?*"},
    "ForAllValues:StringEquals": {"aws:TagKeys": list(_TAGS)},
}


def policy() -> dict[str, Any]:
    """The policy's document, for all regions of the account that it is attached in."""
    return {
        "Version": "2012-10-17",
        "Statement": [
            _allow("Look", _LOOKS, ["*"]),
            _allow("FindMachineImages", ["ssm:GetParameter"], ["arn:aws:ssm:*::parameter/aws/service/*"]),
            _allow(
                "LaunchFromAndInto",
                ["ec2:RunInstances"],
                ["arn:aws:ec2:*::image/*", "arn:aws:ec2:*:*:image/*", *_ours("subnet")],
            ),
            _allow("LaunchIntoGroupsOfPools", ["ec2:RunInstances"], _ours("security-group"), _IS_A_POOLS),
            _allow("LaunchMachinesOfPools", ["ec2:RunInstances"], _ours(*_MACHINE), _BECOMES_A_POOLS),
            _allow("MakeGroupsIn", ["ec2:CreateSecurityGroup"], _ours("vpc")),
            _allow("MakeGroupsOfPools", ["ec2:CreateSecurityGroup"], _ours("security-group"), _BECOMES_A_POOLS),
            _allow("OpenGroupsOfPools", ["ec2:AuthorizeSecurityGroupIngress"], _ours("security-group"), _IS_A_POOLS),
            _allow("TagRules", ["ec2:AuthorizeSecurityGroupIngress"], _ours("security-group-rule"), _BECOMES_A_POOLS),
            _allow(
                "TagAtCreation",
                ["ec2:CreateTags"],
                _ours(*_MACHINE, *_GROUP),
                {
                    "StringEquals": {
                        "ec2:CreateAction": ["RunInstances", "CreateSecurityGroup", "AuthorizeSecurityGroupIngress"]
                    }
                },
            ),
            _allow(
                "RenewGroupsOfPools",
                ["ec2:CreateTags"],
                _ours("security-group"),
                {**_IS_A_POOLS, "ForAllValues:StringEquals": {"aws:TagKeys": [SEEN]}},
            ),
            _allow("EndMachinesOfPools", ["ec2:TerminateInstances"], _ours("instance"), _IS_A_POOLS),
            _allow("EndGroupsOfPools", ["ec2:DeleteSecurityGroup"], _ours("security-group"), _IS_A_POOLS),
        ],
    }


def _ours(*kinds: str) -> list[str]:
    """All resources of these kinds in the account."""
    return [f"arn:aws:ec2:*:*:{kind}/*" for kind in kinds]


def _allow(
    name: str, actions: Sequence[str], resources: Sequence[str], condition: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    statement = {"Sid": name, "Effect": "Allow", "Action": list(actions), "Resource": list(resources)}
    return {**statement, "Condition": dict(condition)} if condition else statement
