"""Machines of EC2 from launch to end: what they boot, and how they are tagged, found and removed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from skyward.errors import ProviderError
from skyward.model.resource import Resource
from skyward.model.spec import Accelerator
from skyward.providers.aws.api import Api
from skyward.providers.aws.provider import AWS, Ec2, Ec2Launcher, find_image, groups, parameter
from skyward.providers.base import PoolRequest
from skyward.providers.cloud import base as cloud_base
from skyward.providers.cloud.base import Instance, LaunchRequest, MachineOffer, MachineType
from skyward.providers.cloud.launch import launch

TYPE = MachineType(name="m6i.large", cpus=2, memory_gb=8, platform="linux/amd64")


def offer(market: Any = "spot", zone: str = "us-east-1a") -> MachineOffer:
    return MachineOffer(type=TYPE, market=market, zone=zone, hourly=0.1)


def launcher(api: Api, pool: str = "p1") -> Ec2Launcher:
    """That of a pool, with its security group."""
    made = ec2(api).launcher(PoolRequest(pool_id=pool))
    made.prepare()
    return made


def group_of(api: Api, pool: str = "p1") -> str:
    """The security group of a pool that has nothing else."""
    launcher(api, pool)
    return str(groups(api, pool)[0]["GroupId"])


def ec2(api: Api) -> Ec2:
    return Ec2(api, AWS("us-east-1", build="remote"))


def launch_pool(
    api: Api, offers: Sequence[MachineOffer], pool: str = "p1", nodes: int = 2
) -> tuple[MachineOffer, list[Instance]]:
    """Launch the machines of a pool."""

    def request(offer: MachineOffer, attempt: int) -> LaunchRequest:
        return LaunchRequest(token=f"skyward-{pool}-{attempt}", nodes=nodes, offer=offer, user_data="#cloud-config\n{}")

    return launch(ec2(api), launcher(api, pool), pool, offers, request, lambda _: None)


def found(api: Api) -> Sequence[Resource]:
    """All that exists of pools."""
    return cloud_base.find(ec2(api))


class Recorded(Api):
    """The account; `asked` is the launches."""

    def __init__(self, account: Api) -> None:
        super().__init__("us-east-1")
        self.account, self.asked = account, list[Mapping[str, Any]]()

    def call(self, service: str, action: str, **arguments: Any) -> Mapping[str, Any]:
        if action == "run_instances":
            self.asked.append(arguments)
        return self.account.call(service, action, **arguments)


@pytest.mark.parametrize("market", ["spot", "on-demand"])
def test_everything_is_tagged_at_creation_and_ends_with_the_pool(account: Api, market: str) -> None:
    """In the arguments of the launch, and in what AWS then has."""
    api = Recorded(account)
    launch_pool(api, [offer(market)])

    (asked,) = api.asked
    assert asked["ClientToken"] == "skyward-p1-0"
    assert asked["NetworkInterfaces"][0]["Groups"] == [groups(account, "p1")[0]["GroupId"]]
    kinds = {each["ResourceType"] for each in asked["TagSpecifications"]}
    assert kinds == {"instance", "volume", "network-interface"} | (
        {"spot-instances-request"} if market == "spot" else set()
    )
    assert asked["MetadataOptions"] == {"HttpTokens": "required", "HttpPutResponseHopLimit": 1}
    assert asked["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert asked["BlockDeviceMappings"][0]["Ebs"]["DeleteOnTermination"]
    assert asked["NetworkInterfaces"][0]["DeleteOnTermination"]
    assert asked.get("InstanceMarketOptions", {}).get("SpotOptions", {}).get("SpotInstanceType") == (
        "one-time" if market == "spot" else None
    )
    assert [(each["pool"], each["node"], each["state"], each["type"], each["market"]) for each in found(api)] == [
        ("p1", 0, "running", "m6i.large", market),
        ("p1", 1, "running", "m6i.large", market),
    ]


def test_the_price_of_the_launch_is_a_tag_of_each_machine(account: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody can see what has been spent; without a known price there is no tag."""
    launch_pool(account, [offer()], "p1", 1)
    unpriced = replace(offer(zone="us-east-1b"), hourly=None)
    launch_pool(account, [unpriced], "p2", 1)
    (machine,) = ec2(account).instances("p1")
    monkeypatch.setattr(cloud_base, "time", SimpleNamespace(time=lambda: machine.launched + 1800))

    known, unknown = found(account)

    assert known["hourly"] == 0.1
    assert known["cost"] == pytest.approx(0.05)
    assert (unknown["hourly"], unknown["cost"]) == (None, None)
    assert "skyward.hourly" not in {tag["Key"] for tag in groups(account, "p1")[0]["Tags"]}


def test_only_the_client_and_the_pool_reach_the_machines(account: Api) -> None:
    """Port 22 from one address, everything among themselves, nothing else."""
    group = group_of(account)

    (made,) = account.call("ec2", "describe_security_groups", GroupIds=[group])["SecurityGroups"]
    rules = {each["IpProtocol"]: each for each in made["IpPermissions"]}
    assert set(rules) == {"tcp", "-1"}
    assert (rules["tcp"]["FromPort"], rules["tcp"]["ToPort"]) == (22, 22)
    assert [each["CidrIp"] for each in rules["tcp"]["IpRanges"]] == ["203.0.113.7/32"]
    assert [each["GroupId"] for each in rules["-1"]["UserIdGroupPairs"]] == [group]
    assert not rules["-1"]["IpRanges"]
    said = [made["Description"], rules["tcp"]["IpRanges"][0]["Description"]]
    said.append(rules["-1"]["UserIdGroupPairs"][0].get("Description", ""))  # AWS takes no other characters
    assert all(re.fullmatch(r"[\w ._:/()#,@\[\]+=&;{}!$*-]*", text) for text in said)


def test_the_group_of_a_living_pool_without_machines_is_not_swept(account: Api) -> None:
    """It may be a pool that is being opened, or that has lost its machines: `find` shows it, `destroy` removes it."""
    group_of(account)
    cloud_base.sweep(ec2(account))
    assert [(each["node"], each["state"]) for each in found(account)] == [(-1, "security group")]
    cloud_base.destroy(ec2(account), "p1")
    assert found(account) == []


def test_machine_images_come_from_public_parameters(account: Api) -> None:
    """By architecture and GPU; the disk has room for the pool's image."""
    assert "ecs/optimized-ami/amazon-linux-2023" in parameter("linux/amd64", None)
    assert "/arm64/" in parameter("linux/arm64", None)
    assert "base-oss-nvidia-driver-gpu" in parameter("linux/amd64", Accelerator("H100", 8))
    assert "amazon-linux-2/gpu" in parameter("linux/amd64", Accelerator("V100", 8))
    own, disk = image(account)
    assert (own[:4], disk["DeviceName"], disk["Ebs"]["VolumeSize"]) == ("ami-", "/dev/xvda", 65)
    assert image(account, ami=own, disk_gb=200)[1]["Ebs"]["VolumeSize"] == 200
    with pytest.raises(ProviderError, match=r"disk_gb=10 is too small: the machine image ami-\w+ takes 15 GB"):
        image(account, ami=own, disk_gb=10)


def image(api: Api, **settings: Any) -> tuple[str, Mapping[str, Any]]:
    return find_image(api, AWS("us-east-1", build="remote", **settings), PoolRequest(pool_id="p1"))
