"""Machines of EC2 from launch to end: what they boot, what they are told, how they are tagged, found and cleared."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from skyward.build.events import Event
from skyward.errors import ProviderError
from skyward.model.accelerator import Accelerator
from skyward.providers.aws import estate, meter
from skyward.providers.aws.ami import find_image, parameter
from skyward.providers.aws.api import Api, RefusedError
from skyward.providers.aws.disk import room_gb
from skyward.providers.aws.launch import Order, launch
from skyward.providers.aws.network import find_network, make_group
from skyward.providers.aws.provider import _Pool
from skyward.providers.aws.tags import BEGAN, SEEN
from skyward.providers.aws.terms import MachineType, Offer
from skyward.providers.base import Terms

TYPE = MachineType(name="m6i.large", cpus=2, memory_gb=8, platform="linux/amd64")


def offer(market: Any = "spot", zone: str = "us-east-1a") -> Offer:
    return Offer(type=TYPE, market=market, zone=zone, hourly=0.1)


def order(api: Api, pool: str = "p1", nodes: int = 2) -> Order:
    network = find_network(api)
    return Order(
        pool=pool,
        nodes=nodes,
        image=find_image(api, "linux/amd64", None, None, None),
        network=network,
        group=make_group(api, pool, network, "203.0.113.7/32"),
        user_data="#cloud-config\n{}",
        profile=None,
        private=False,
    )


class Crowded(Api):
    """The account, where some launches find no room.

    Args:
        account: where the others do.
        full: market and zone that have none.
        code: what AWS says then.
    """

    def __init__(self, account: Api, full: set[tuple[str, str]], code: str = "InsufficientInstanceCapacity") -> None:
        super().__init__("us-east-1")
        self.account = account
        self.full, self.code, self.asked = full, code, list[Mapping[str, Any]]()

    def call(self, service: str, action: str, **arguments: Any) -> Mapping[str, Any]:
        if action == "run_instances":
            self.asked.append(arguments)
            subnet = arguments["NetworkInterfaces"][0]["SubnetId"]
            zone = next(zone for zone, known in find_network(self).subnets.items() if known == subnet)
            if (arguments.get("InstanceMarketOptions", {}).get("MarketType", "on-demand"), zone) in self.full:
                raise RefusedError("no", self.code)
        return self.account.call(service, action, **arguments)


def test_want_of_room_leads_to_the_next_offer(account: Api) -> None:
    """Each try is one call with a token of its own; the result is of the first that worked."""
    api, said = Crowded(account, {("spot", "us-east-1a"), ("spot", "us-east-1b")}), list[Event]()
    offers = [offer(), offer(zone="us-east-1b"), offer("on-demand"), offer("on-demand", "us-east-1b")]

    taken, machines = launch(api, order(api), offers, said.append)

    assert taken == offers[2]
    assert [asked["ClientToken"] for asked in api.asked] == ["skyward-p1-0", "skyward-p1-1", "skyward-p1-2"]
    assert len({machine.id for machine in machines}) == len({machine.address for machine in machines}) == 2
    assert sum("no room for m6i.large (spot)" in str(event) for event in said) == 2


def test_another_refusal_is_told_at_once(account: Api) -> None:
    """A missing permission is not cured by another zone."""
    api = Crowded(account, {("spot", "us-east-1a")}, "UnauthorizedOperation")

    with pytest.raises(RefusedError):
        launch(api, order(api), [offer(), offer(zone="us-east-1b")], lambda _: None)
    assert len(api.asked) == 1


def test_the_same_launch_twice_makes_one(account: Api) -> None:
    """A call that is repeated because its answer was lost has the same token, and so the same machines."""
    api = Crowded(account, set())
    launch(api, order(api), [offer("on-demand")], lambda _: None)

    assert [asked["ClientToken"] for asked in api.asked] == ["skyward-p1-0"]
    assert make_group(api, "p1", find_network(api), "203.0.113.7/32") == estate.groups(api, "p1")[0]["GroupId"]


@pytest.mark.parametrize("market", ["spot", "on-demand"])
def test_everything_is_tagged_at_creation_and_ends_with_the_pool(account: Api, market: str) -> None:
    """What the launch asks for, and what AWS then has."""
    api = Crowded(account, set())
    launch(api, order(api), [offer(market)], lambda _: None)

    (asked,) = api.asked
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
    found = estate.describe(api)
    assert [(each["pool"], each["node"], each["state"], each["type"], each["market"]) for each in found] == [
        ("p1", 0, "running", "m6i.large", market),
        ("p1", 1, "running", "m6i.large", market),
    ]


def test_the_price_of_the_launch_is_a_tag_of_each_machine(account: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """From which anybody can tell what has been spent; where no price was known there is none."""
    launch(account, order(account, "p1", 1), [offer()], lambda _: None)
    unpriced = replace(offer(zone="us-east-1b"), hourly=None)
    launch(account, order(account, "p2", 1), [unpriced], lambda _: None)
    (machine,) = estate.instances(account, "p1")
    monkeypatch.setattr(estate, "time", SimpleNamespace(time=lambda: machine["LaunchTime"].timestamp() + 1800))

    known, unknown = estate.describe(account)

    assert (known["hourly"], known["cost"]) == (0.1, pytest.approx(0.05))
    assert (unknown["hourly"], unknown["cost"]) == (None, None)
    assert "skyward.hourly" not in {tag["Key"] for tag in estate.groups(account, "p1")[0]["Tags"]}


def test_the_cost_is_told_now_and_then_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the time that it is for; a price that nobody knows is left out."""
    monkeypatch.setattr(meter, "_SAY_EVERY_S", 0.01)
    said, twice = list[str](), threading.Event()

    def report(event: Event) -> None:
        said.append(str(event))
        if len(said) == 2:
            twice.set()

    running = meter.Meter(report)
    running.start(offer(), ["i-1", "i-2", "i-3"])
    assert twice.wait(60)
    running.end()
    assert re.fullmatch(r"3 x m6i\.large for \d\.\d min so far, about 0\.\d{3} USD", said[0])
    assert any(re.fullmatch(r"3 x m6i\.large for \d\.\d min, about 0\.\d{3} USD", each) for each in said)

    unpriced = meter.Meter(report)
    unpriced.start(replace(offer(), hourly=None), ["i-4"])
    unpriced.end()
    assert any(re.fullmatch(r"1 x m6i\.large for \d\.\d min", each) for each in said)


def test_each_machine_is_counted_from_its_launch_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that took another's place, and cost something else."""
    now, said = [0.0], list[str]()
    monkeypatch.setattr(meter, "time", SimpleNamespace(monotonic=lambda: now[0]))
    counted = meter.Meter(lambda event: said.append(str(event)))

    counted.start(offer(), ["i-1", "i-2"])
    now[0] = 1800.0
    counted.stop("i-1")
    now[0] = 2000.0
    counted.stop("i-1")  # another try to replace it
    now[0] = 1800.0
    other = replace(TYPE, name="m6a.large")
    counted.start(replace(offer(), type=other, hourly=0.4), ["i-3"])
    now[0] = 3600.0
    counted.end()

    assert said == ["1 x m6i.large, 1 x m6a.large for 60.0 min, about 0.350 USD"]


@pytest.mark.parametrize(
    ("image_bytes", "gb"), [(None, 50), (0, 50), (300_000_000, 50), (8_000_000_000, 50), (20_000_000_000, 80)]
)
def test_a_disk_has_room_for_the_image(image_bytes: int | None, gb: int) -> None:
    """Two and a half times as much as it takes, 30 GB to write to, and never less than 50."""
    assert room_gb(image_bytes) == gb


def test_only_the_client_and_the_pool_reach_the_machines(account: Api) -> None:
    """Port 22 from one address, everything among themselves, nothing else."""
    group = make_group(account, "p1", find_network(account), "203.0.113.7/32")

    (found,) = account.call("ec2", "describe_security_groups", GroupIds=[group])["SecurityGroups"]
    rules = {each["IpProtocol"]: each for each in found["IpPermissions"]}
    assert set(rules) == {"tcp", "-1"}
    assert (rules["tcp"]["FromPort"], rules["tcp"]["ToPort"]) == (22, 22)
    assert [each["CidrIp"] for each in rules["tcp"]["IpRanges"]] == ["203.0.113.7/32"]
    assert [each["GroupId"] for each in rules["-1"]["UserIdGroupPairs"]] == [group]
    assert not rules["-1"]["IpRanges"]
    said = [found["Description"], rules["tcp"]["IpRanges"][0]["Description"]]
    said.append(rules["-1"]["UserIdGroupPairs"][0].get("Description", ""))  # AWS takes no other characters
    assert all(re.fullmatch(r"[\w ._:/()#,@\[\]+=&;{}!$*-]*", text) for text in said)


def test_a_pool_is_cleared_by_its_tags_alone(account: Api) -> None:
    """It and no other; a second time does nothing."""
    for pool in ("p1", "p2"):
        launch(account, order(account, pool), [offer()], lambda _: None)

    estate.clear(account, "p1")
    estate.clear(account, "p1")

    assert {each["pool"] for each in estate.describe(account)} == {"p2"}
    assert [each["GroupName"] for each in estate.groups(account)] == ["skyward-p2"]


def test_a_group_without_machines_is_found_and_swept_when_it_is_old(account: Api) -> None:
    """A young one may be of a pool that is just being opened."""
    group = make_group(account, "p1", find_network(account), "203.0.113.7/32")
    estate.sweep(account)
    assert [(each["node"], each["state"]) for each in estate.describe(account)] == [(-1, "security group")]

    old = [{"Key": BEGAN, "Value": f"{time.time() - 4000:.0f}"}]
    account.call("ec2", "create_tags", Resources=[group], Tags=old)
    estate.sweep(account)
    assert estate.describe(account) == []


def age(account: Api, group: str, **tags: float) -> None:
    """Set tags of a group to times so many seconds ago."""
    names = {"began": BEGAN, "seen": SEEN}
    old = [{"Key": names[name], "Value": f"{time.time() - ago:.0f}"} for name, ago in tags.items()]
    account.call("ec2", "create_tags", Resources=[group], Tags=old)


def test_the_group_of_a_living_pool_without_machines_is_not_swept(account: Api) -> None:
    """It has lost all of them hours ago and AWS has no room for others; its client says that it lives."""
    group = make_group(account, "p1", find_network(account), "203.0.113.7/32")
    age(account, group, began=90_000)
    estate.renew(account, group)
    estate.sweep(account)
    assert len(estate.groups(account, "p1")) == 1

    age(account, group, began=90_000, seen=4000)  # the client's computer went off
    estate.sweep(account)
    assert estate.groups(account, "p1") == []


def test_the_group_of_a_pool_with_machines_is_not_swept(account: Api) -> None:
    """However long nobody has renewed it."""
    launch(account, order(account), [offer()], lambda _: None)
    (group,) = estate.groups(account, "p1")
    age(account, group["GroupId"], began=90_000)
    estate.sweep(account)
    assert len(estate.groups(account, "p1")) == 1


@pytest.mark.parametrize("began", ["", "yesterday"])
def test_a_group_that_tells_no_time_is_left_alone(account: Api, began: str) -> None:
    """Anybody may write tags; they neither harm a pool nor lead to a deletion."""
    group = make_group(account, "p1", find_network(account), "203.0.113.7/32")
    account.call("ec2", "create_tags", Resources=[group], Tags=[{"Key": BEGAN, "Value": began}])
    estate.sweep(account)
    assert len(estate.groups(account, "p1")) == 1


def test_an_open_pool_renews_its_group_until_it_ends(account: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the group's making on; a try that fails is no end of it, but that the group is gone is."""
    monkeypatch.setattr(estate, "RENEW_S", 0.01)
    group = make_group(account, "p1", find_network(account), "203.0.113.7/32")
    age(account, group, began=90_000)
    failures, tries = [ProviderError("no answer"), RefusedError("no", "RequestLimitExceeded")], threading.Event()

    class Faulty(Api):
        def call(self, service: str, action: str, **arguments: Any) -> Mapping[str, Any]:
            if action == "create_tags" and failures:
                raise failures.pop()
            answer = account.call(service, action, **arguments)
            tries.set()
            return answer

    pool = _Pool("p1", Faulty("us-east-1"), Terms())
    assert pool.renewed(group) == group
    (renewing,) = (each for each in threading.enumerate() if each.name == "skyward-p1-renew")
    assert tries.wait(60)
    estate.sweep(account)
    assert len(estate.groups(account, "p1")) == 1
    estate.clear(account, "p1")
    renewing.join(60)
    assert not renewing.is_alive()


def test_machine_images_come_from_public_parameters(account: Api) -> None:
    """By architecture and GPU; the disk has room for the pool's image."""
    assert "ecs/optimized-ami/amazon-linux-2023" in parameter("linux/amd64", None)
    assert "/arm64/" in parameter("linux/arm64", None)
    assert "base-oss-nvidia-driver-gpu" in parameter("linux/amd64", Accelerator("H100", 8))
    assert "amazon-linux-2/gpu" in parameter("linux/amd64", Accelerator("V100", 8))
    found = find_image(account, "linux/amd64", None, None, None)
    assert (found.id[:4], found.root, found.disk_gb) == ("ami-", "/dev/xvda", 65)
    assert find_image(account, "linux/amd64", None, found.id, 200).disk_gb == 200
    assert find_image(account, "linux/amd64", None, found.id, None, 80).disk_gb == found.disk_gb - 50 + 80
    with pytest.raises(ProviderError, match=r"disk_gb=10 is too small: the machine image ami-\w+ takes 15 GB"):
        find_image(account, "linux/amd64", None, found.id, 10)


def test_a_machine_that_does_not_come_up_is_given_back_at_once(account: Api) -> None:
    """Also where the launch itself worked: nobody else would end it before its pool."""

    class Stuck(Api):
        def call(self, service: str, action: str, **arguments: Any) -> Mapping[str, Any]:
            if action == "describe_instances":
                raise ProviderError("no answer")
            return account.call(service, action, **arguments)

    with pytest.raises(ProviderError, match="no answer"):
        launch(Stuck("us-east-1"), order(account), [offer()], lambda _: None)
    assert [each["State"]["Name"] for each in estate.instances(account, "p1", ["pending", "running"])] == []
