"""The IAM policy of docs/permissions: what the code calls and no more, on what is a pool's and no more."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import boto3
import pytest

from skyward.providers.aws import api as module
from skyward.providers.aws.api import Api
from skyward.providers.aws.provider import tagged
from skyward.providers.cloud.base import LaunchRequest
from tests.unit.providers.aws.test_machines import launcher, offer

POLICY = Path(__file__).parents[4] / "docs" / "permissions" / "aws.json"
ACCOUNT = "arn:aws:ec2:us-east-1:123456789012"
POOLS = {"aws:ResourceTag/skyward.pool": "1a2b3c4d"}
OTHERS = {"aws:ResourceTag/team": "billing"}


def policy() -> Any:
    return json.loads(POLICY.read_text(encoding="utf-8"))


def calls_of_the_code() -> set[str]:
    """The actions of all calls that the provider's modules make, from their source."""
    found = set()
    for path in Path(str(module.__file__)).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            words = [each.value for each in node.args[:2] if isinstance(each, ast.Constant)]
            if node.func.attr in ("call", "all") and len(words) == 2:
                service, action = map(str, words)
                found.add(f"{service}:{''.join(word.capitalize() for word in action.split('_'))}")
    return found


def holds(operator: str, key: str, wanted: Any, context: Mapping[str, Any]) -> bool:
    """Whether a request's context meets one condition, by IAM's rules for the operators that are used here."""
    values = wanted if isinstance(wanted, list) else [wanted]
    if operator == "ForAllValues:StringEquals":
        return all(each in values for each in context.get(key, ()))
    assert operator in ("StringEquals", "StringLike")
    return key in context and any(fnmatchcase(str(context[key]), each) for each in values)


def allows(action: str, resource: str, **context: Any) -> bool:
    """Whether the policy allows an action on one resource."""
    return any(
        action in statement["Action"]
        and any(fnmatchcase(resource, each) for each in statement["Resource"])
        and all(
            holds(operator, key, wanted, context)
            for operator, pairs in statement.get("Condition", {}).items()
            for key, wanted in pairs.items()
        )
        for statement in policy()["Statement"]
    )


def creating(specification: Mapping[str, Any]) -> dict[str, Any]:
    """The context of a creation with these tags."""
    tags = {each["Key"]: each["Value"] for each in specification["Tags"]}
    return {**{f"aws:RequestTag/{key}": value for key, value in tags.items()}, "aws:TagKeys": list(tags)}


def test_the_policy_covers_the_calls_of_the_code_and_no_others() -> None:
    """A new call must be entered in it, and what is called no more is taken out."""
    actions = {action for statement in policy()["Statement"] for action in statement["Action"]}
    assert actions - {"ec2:CreateTags"} == calls_of_the_code()  # which AWS asks for where tags are given at a creation
    assert len(actions) > 12


def test_iam_accepts_the_policy(account: Api) -> None:
    """As a managed policy, which has a size limit."""
    text = POLICY.read_text(encoding="utf-8")
    made = boto3.client("iam").create_policy(PolicyName="skyward", PolicyDocument=text)["Policy"]
    assert made["PolicyName"] == "skyward"
    assert len("".join(text.split())) < 6144


def test_a_launch_is_allowed_as_the_code_makes_it(account: Api) -> None:
    """With its tags on all that it makes, in the group of a pool."""
    asked = LaunchRequest(token="t", nodes=2, offer=offer(), user_data="")
    request = launcher(account).run_instances(asked)
    for specification in request["TagSpecifications"]:
        resource = f"{ACCOUNT}:{specification['ResourceType']}/new"
        assert allows("ec2:RunInstances", resource, **creating(specification))
        assert allows("ec2:CreateTags", resource, **creating(specification), **{"ec2:CreateAction": "RunInstances"})
    assert len(request["TagSpecifications"]) == 4
    assert allows("ec2:RunInstances", "arn:aws:ec2:us-east-1::image/ami-1")
    assert allows("ec2:RunInstances", f"{ACCOUNT}:subnet/subnet-1")
    assert allows("ec2:RunInstances", f"{ACCOUNT}:security-group/sg-1", **POOLS)


def test_a_group_is_made_opened_and_deleted() -> None:
    """As the launcher does, and the removal of a pool."""
    group, rule = f"{ACCOUNT}:security-group/sg-1", f"{ACCOUNT}:security-group-rule/sgr-1"
    made, opened = tagged("p1", "security-group")[0], tagged("p1", "security-group-rule")[0]
    assert allows("ec2:CreateSecurityGroup", f"{ACCOUNT}:vpc/vpc-1")
    assert allows("ec2:CreateSecurityGroup", group, **creating(made))
    assert allows("ec2:CreateTags", group, **creating(made), **{"ec2:CreateAction": "CreateSecurityGroup"})
    assert allows("ec2:AuthorizeSecurityGroupIngress", group, **POOLS)
    assert allows("ec2:AuthorizeSecurityGroupIngress", rule, **creating(opened))
    assert allows("ec2:CreateTags", rule, **{"ec2:CreateAction": "AuthorizeSecurityGroupIngress"})
    assert allows("ec2:DeleteSecurityGroup", group, **POOLS)
    assert allows("ec2:TerminateInstances", f"{ACCOUNT}:instance/i-1", **POOLS)
    image = "parameter/aws/service/ecs/optimized-ami/amazon-linux-2023/recommended/image_id"
    assert allows("ssm:GetParameter", f"arn:aws:ssm:us-east-1::{image}")


@pytest.mark.parametrize(
    ("action", "kind", "context"),
    [
        pytest.param("ec2:TerminateInstances", "instance", OTHERS, id="another's machine"),
        pytest.param("ec2:DeleteSecurityGroup", "security-group", OTHERS, id="another's group"),
        pytest.param("ec2:AuthorizeSecurityGroupIngress", "security-group", OTHERS, id="a hole in another's group"),
        pytest.param("ec2:RunInstances", "security-group", OTHERS, id="a machine in another's group"),
        pytest.param("ec2:RunInstances", "instance", {}, id="a machine without tags"),
        pytest.param("ec2:CreateSecurityGroup", "security-group", {}, id="a group without tags"),
        pytest.param("ec2:CreateTags", "instance", {"aws:TagKeys": ["skyward.pool"]}, id="to make a machine a pool's"),
        pytest.param("ec2:CreateTags", "security-group", POOLS, id="to give a group away"),
        pytest.param("ec2:DescribeInstanceAttribute", "instance", POOLS, id="user data"),
    ],
)
def test_what_is_no_pools_is_out_of_reach(action: str, kind: str, context: Mapping[str, Any]) -> None:
    """The policy's holder cannot touch it, nor make it a pool's."""
    assert not allows(action, f"{ACCOUNT}:{kind}/x", **context)
