"""Pools on EC2: the API is moto's server on loopback, the machines are the stand's hosts, everything else is real."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest

import skyward as sky
from scripts.stand.place import Stand
from skyward.errors import ProviderError
from skyward.model.ssh import SshHost
from skyward.nodes.process_id import current_user
from skyward.nodes.run_directory import runtime_base
from skyward.providers.cloud.boot import HOST_KEY
from tests.e2e.cloud import PRICES, REGION, Cloud, left, wait_gone
from tests.e2e.cloud_clients import StartClients, calls_until, clients_of, hear, reapers_of, say
from tests.e2e.stand import IMAGE, forget_image, wait_until
from tests.e2e.stand_functions import ask_metadata, where, work_once

MakeSsh = Callable[..., sky.SSH]
QUIET = ("boto3", "botocore", "urllib3", "werkzeug", "moto")
REAPER_S = 120.0  # a reaper stays for some seconds after a killed client, and other tests run at the same time


@pytest.fixture
def cloud(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    """An empty account of AWS; it must be empty again after a test."""
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    made = Cloud(stand)
    for variable in ("AWS_PROFILE", "AWS_REGION", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in made.env.items():
        monkeypatch.setenv(variable, value)
    try:
        yield made
        wait_gone(made, REAPER_S)
        wait_until(lambda: not reapers(made), REAPER_S)
    finally:
        made.close()


def pool_on(provider: Any = None, **settings: Any) -> sky.ComputePool:
    """A pool on the cheapest of small machines."""
    defaults: dict[str, Any] = {"image": IMAGE, "machine": "m6i.large", "display": "quiet"}
    return sky.ComputePool(provider or sky.AWS(REGION, use_private_ip=True), **{**defaults, **settings})


def launches(cloud: Cloud) -> list[tuple[str, str]]:
    """Market and zone of each attempt to launch."""
    zones = {each.id: each.availability_zone for by in cloud.backend.subnets.values() for each in by.values()}
    return [
        (
            asked.get("InstanceMarketOptions.MarketType", "on-demand"),
            zones[asked["NetworkInterface.1.SubnetId"]],
        )
        for name, asked in cloud.calls
        if name == "RunInstances"
    ]


def reapers(cloud: Cloud) -> list[int]:
    """The reapers of this process and of the clients of these tests."""
    return reapers_of("aws", cloud.env["AWS_ENDPOINT_URL"])


def tags_of(resource: Any) -> dict[str, str]:
    return {tag["key"]: tag["value"] for tag in resource.get_tags()}


def test_the_digits_demo_on_rented_machines(cloud: Cloud, capsys: pytest.CaptureFixture[str]) -> None:
    """Launch, verified host key, image, training, termination; everything is tagged and closed to others."""
    from sklearn.datasets import load_digits

    import examples.digits as digits

    x, y = load_digits(return_X_y=True)
    with pool_on(nodes=2, image=digits.IMAGE, display="auto") as pool:
        results = digits.train(x / 16, y) @ pool
        machines = cloud.running()
        assert [machine.host.number for machine in machines] == [1, 2]
        known = [cloud.backend.get_instance(machine.id) for machine in machines]
        (group,) = (each for by in cloud.backend.groups.values() for each in by.values() if each.name != "default")
        for resource in (*known, group, *cloud.backend.volumes.values()):
            tags = tags_of(resource)
            assert tags["skyward.pool"] == pool.id
            assert tags["skyward.owner"].startswith(f"{os.getpid()}@")
            assert tags["skyward.user"] == current_user()
        described = boto3.client("ec2").describe_security_groups(GroupIds=[group.id])["SecurityGroups"][0]
        ingress = {
            (rule["IpProtocol"], rule.get("FromPort"), rule.get("ToPort"), *who)
            for rule in described["IpPermissions"]
            for who in (
                [each["CidrIp"] for each in rule["IpRanges"]] + [each["GroupId"] for each in rule["UserIdGroupPairs"]],
            )
        }
        assert ingress == {("tcp", 22, 22, "172.31.0.0/16"), ("-1", None, None, group.id)}
        found = list(sky.AWS(REGION).find())
        assert [(each["pool"], each["node"], each["state"], each["user"]) for each in found] == [
            (pool.id, node, "running", current_user()) for node in (0, 1)
        ]
    assert len(results) == 2
    (asked,) = (asked for name, asked in cloud.calls if name == "RunInstances")
    assert asked["ClientToken"] == f"skyward-{pool.id}-0"
    assert asked["MetadataOptions.HttpTokens"] == "required"
    assert asked["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert asked["BlockDeviceMapping.1.Ebs.DeleteOnTermination"] == "true"
    assert int(asked["BlockDeviceMapping.1.Ebs.VolumeSize"]) == 15 + 50
    assert asked["NetworkInterface.1.AssociatePublicIpAddress"] == "false"
    assert {asked[f"TagSpecification.{number}.ResourceType"] for number in (1, 2, 3, 4)} == {
        *("instance", "volume", "network-interface", "spot-instances-request")
    }
    assert left(cloud) == []
    said = capsys.readouterr().err
    assert "launching 2 x m6i.large (spot) in us-east-1a for 0.062 USD per hour" in said
    assert "2 x m6i.large for" in said
    assert not [path for path in Path("/tmp").glob(f"skyward-{pool.id}*") if path.exists()]


def reach(pool: sky.ComputePool, address: str) -> int:
    """Exit status of a connection to a machine with the pool's known hosts; 255 if it has another host key."""
    folder = runtime_base() / f"skyward-{pool.id}.aws"
    host = SshHost(host=address, user="skyward", key=str(folder / "key"), known_hosts=str(folder / "known_hosts"))
    return subprocess.run(host.command("true"), capture_output=True, check=False).returncode


def test_a_machine_has_a_host_key_that_no_user_data_holds(cloud: Cloud) -> None:
    """The key that it was launched with serves the first connection; a restarted machine keeps its own."""
    with pool_on(allocation="on-demand") as pool:
        assert where() >> pool == "stand1"
        (machine,) = cloud.running()
        told = machine.user_data["ssh_keys"]
        asked = ["ssh-keyscan", "-t", "ed25519", machine.address]
        served = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()[2]
        assert served != told["ed25519_public"].split()[1]
        known = (runtime_base() / f"skyward-{pool.id}.aws" / "known_hosts").read_text()
        assert known == f"{machine.address} ssh-ed25519 {served}\n"
        assert machine.host.run("cat", f"{machine.folder}{HOST_KEY}") != told["ed25519_private"]
        assert reach(pool, machine.address) == 0

        machine.stop_listening()
        machine.start_sshd()  # it has started again
        assert reach(pool, machine.address) == 0

        machine.stop_listening()
        machine.take_key(told["ed25519_private"])  # somebody has read user data, and answers at its address
        machine.start_sshd()
        assert reach(pool, machine.address) == 255
        assert where() >> pool == "stand1"  # through the connection that is open
    assert left(cloud) == []


@pytest.mark.parametrize(
    ("settings", "answer"),
    [
        pytest.param({}, "ConnectionRefusedError", id="none"),
        pytest.param({"user": "root", "privileges": "default"}, "ConnectionRefusedError", id="none, to root"),
        pytest.param({"instance_profile": "worker"}, "token", id="one"),
    ],
)
def test_containers_reach_the_metadata_service_with_a_profile_only(
    cloud: Cloud, settings: dict[str, Any], answer: str
) -> None:
    """It would give them the user data, and everything else that the machine may know."""
    if "instance_profile" in settings:
        boto3.client("iam").create_instance_profile(InstanceProfileName="worker")
    provider = sky.AWS(REGION, use_private_ip=True, **settings)
    with pool_on(provider) as pool:
        assert ask_metadata() >> pool == answer
    assert left(cloud) == []


def test_a_machine_with_another_host_key_gets_nothing(cloud: Cloud) -> None:
    """A machine that merely answers at the address is not trusted; the launched one is terminated."""
    cloud.gives_keys = False
    with pytest.raises(ProviderError, match=r"does not have the host key that it was given"), pool_on():
        raise AssertionError("the pool opened")
    assert left(cloud) == []


def test_zones_and_markets_without_room_are_passed_over(
    cloud: Cloud, stand: Stand, capsys: pytest.CaptureFixture[str]
) -> None:
    """The spot market has no room anywhere, nor has the first zone on demand: one launch per attempt, in this order.

    The image comes from a registry this time.
    """
    if stand.registry is None:
        pytest.skip("`make engine` has made no registry here")
    image = IMAGE.with_env({"STAND_TEST": uuid.uuid4().hex})
    repository = f"{stand.registry}/skyward/test-{uuid.uuid4().hex[:8]}"
    subnets = cloud.backend.subnets

    def refuse(asked: Any) -> str | None:
        if asked.get("InstanceMarketOptions.MarketType") == "spot":
            return "InsufficientInstanceCapacity"
        zone = next(by for by in subnets.values() if asked["NetworkInterface.1.SubnetId"] in by)
        first = zone[asked["NetworkInterface.1.SubnetId"]].availability_zone == "us-east-1a"
        return "InsufficientInstanceCapacity" if first else None

    cloud.refuse = refuse
    provider = sky.AWS(REGION, use_private_ip=True, registry=f"http://{repository}")
    try:
        with pool_on(provider, image=image, display="auto") as pool:
            assert where() >> pool == "stand1"
    finally:
        forget_image(stand.host(1), repository)
        asked = ["docker", "images", "-q", repository]
        ids = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
        subprocess.run(["docker", "rmi", "-f", *ids], capture_output=True, check=bool(ids))
    tried = launches(cloud)
    zones = [f"us-east-1{letter}" for letter in "abcdf"]
    assert tried == [*(("spot", zone) for zone in zones), ("on-demand", "us-east-1a"), ("on-demand", "us-east-1b")]
    said = capsys.readouterr().err
    assert "no room for m6i.large (spot) in us-east-1a: InsufficientInstanceCapacity" in said
    assert f"launching 1 x m6i.large (on-demand) in us-east-1b for {PRICES['m6i.large']:.3f} USD per hour" in said


def test_no_room_at_all_is_one_error_that_lists_what_was_tried(cloud: Cloud) -> None:
    """The attempts leave nothing."""
    cloud.refuse = lambda _: "InsufficientInstanceCapacity"
    with pytest.raises(ProviderError, match="has no room for 1 machines") as caught, pool_on(allocation="on-demand"):
        raise AssertionError("the pool opened")
    assert str(caught.value).count("m6i.large  on-demand  us-east-1") == len(launches(cloud)) == 5
    assert left(cloud) == []


def test_a_budget_refuses_before_anything_is_made(cloud: Cloud) -> None:
    """All calls so far only read."""
    with (
        pytest.raises(ProviderError, match=r"The cheapest is 3 x m6i.large \(spot\) .* 0\.093 USD"),
        pool_on(nodes=3, max_hourly_cost=0.09),
    ):
        raise AssertionError("the pool opened")
    assert {name for name, _ in cloud.calls if not name.startswith(("Describe", "Get"))} == set()


@pytest.mark.parametrize(
    ("selection", "place"),
    [
        pytest.param("cheapest", "stand3", id="cheapest"),  # machines of one's own cost nothing
        pytest.param(lambda _, cost: -(cost or 0), "stand1", id="a rank of one's own"),
    ],
)
def test_a_pool_is_where_its_selection_says(cloud: Cloud, ssh: MakeSsh, selection: Any, place: str) -> None:
    """At a provider that rents machines, or at one that does not."""
    providers = [sky.AWS(REGION, use_private_ip=True), ssh(3)]
    with pool_on(providers, selection=selection, allocation="on-demand", max_hourly_cost=1.0) as pool:
        assert where() >> pool == place
        assert len(cloud.running()) == (1 if place == "stand1" else 0)
    assert left(cloud) == []


def test_a_provider_without_room_is_followed_by_the_next(
    cloud: Cloud, ssh: MakeSsh, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the order of the list, and what the first has begun is removed."""
    cloud.refuse = lambda _: "InsufficientInstanceCapacity"
    providers = [sky.AWS(REGION, use_private_ip=True), ssh(3)]
    with pool_on(providers, selection="first", allocation="on-demand", display="auto") as pool:
        assert left(cloud) == []
        assert where() >> pool == "stand3"
    assert len(launches(cloud)) == 5
    assert "aws cannot give the hosts: AWS has no room for 1 machines in us-east-1" in capsys.readouterr().err


def test_a_spot_notice_drains_the_machine_and_replaces_it(cloud: Cloud, caplog: pytest.LogCaptureFixture) -> None:
    """It gets no new calls and finishes the one that it runs, while another machine is launched in its place."""
    with pool_on(nodes=2, allocation="spot", display="auto") as pool:
        assert sorted(where() @ pool) == ["stand1", "stand2"]
        taken = cloud.running()[1]
        running = [work_once(number, 6.0) > pool for number in range(2)]
        workers = [worker for node in pool._table.nodes for worker in node.workers]
        wait_until(lambda: all(map(pool._dispatcher.load.held, workers)), 60)
        at = datetime.now(UTC) + timedelta(seconds=90)
        taken.interrupt(at.strftime("%Y-%m-%dT%H:%M:%SZ"))
        wait_until(lambda: "taken away" in caplog.text, 60)
        assert f"The machine {taken.id} of pool {pool.id} will be taken away by AWS at" in caplog.text
        assert f"{at:%Y-%m-%dT%H:%M:%SZ} (terminate)" in caplog.text
        wait_until(lambda: pool.current_nodes() == 1, 60)
        later = [work_once(number, 0.1) > pool for number in range(2, 12)]
        assert sorted(call.result(60)[1] for call in running) == ["stand1", "stand2"]
        assert {call.result(60)[1] for call in later} <= {"stand1", "stand3"}
        assert where() @ pool == ["stand1", "stand3"]
        assert len(launches(cloud)) >= 2  # more where a machine was not ready in its first attempt
    assert left(cloud) == []


def test_ps_and_down_see_a_pool_from_another_process(cloud: Cloud) -> None:
    """By tags alone."""
    with pool_on() as pool:
        command, at = [sys.executable, "-m", "skyward"], f"--at=aws://{REGION}"
        shown = subprocess.run([*command, "ps", at], capture_output=True, text=True, check=True).stdout
        (machine,) = cloud.running()
        (row,) = (line.split() for line in shown.splitlines() if pool.id in line and machine.id in line)
        assert (row[:4], row[-2]) == ([pool.id, "0", REGION, "running"], "0.031")  # USD per hour
        down = subprocess.run([*command, "down", pool.id, at], capture_output=True, text=True, check=True)
        assert f"pool {pool.id}: 1 node ended at {REGION}" in down.stdout
        assert left(cloud) == []


@pytest.fixture
def client(cloud: Cloud) -> Iterator[StartClients]:
    """Clients in processes of their own; see `clients_of`."""
    first = 'import boto3; boto3.client("ec2"), boto3.client("ssm"), boto3.client("pricing")'
    with clients_of(f"sky.AWS({REGION!r}, use_private_ip=True)", "m6i.large", first) as start:
        yield start


def after(number: int) -> Callable[[Sequence[str]], bool]:
    """Whether so many calls have been carried out."""
    return lambda seen: len(seen) == number


def test_a_client_killed_at_any_call_leaves_nothing(cloud: Cloud, client: StartClients) -> None:
    """Each call is carried out, but its answer never arrives; what it has made is soon removed.

    Reads that follow a read are left out: no client has made or known anything since that one.
    """
    cloud.boots = False
    zygote = client("machines")
    calls = calls_until(cloud, zygote, after(0), signal.SIGKILL)  # of a client that lives
    reads = [name.startswith(("Describe", "Get")) for name in calls]
    killed_at: list[str] = []
    for number in range(1, len(calls) + 1):
        if number > 1 and reads[number - 1] and reads[number - 2]:
            continue
        seen = calls_until(cloud, zygote, after(number), signal.SIGKILL)
        assert len(seen) == number
        killed_at.append(seen[-1])
    assert {"CreateSecurityGroup", "AuthorizeSecurityGroupIngress", "RunInstances"} <= set(killed_at)
    assert {"DescribeInstances", "TerminateInstances", "DeleteSecurityGroup"} <= set(killed_at)
    wait_gone(cloud, REAPER_S)
    wait_until(lambda: not reapers(cloud), REAPER_S)
    assert list(runtime_base().glob("skyward-*.aws")) == []  # the keys of all of them


def test_ctrl_c_at_any_call_leaves_nothing(cloud: Cloud, client: StartClients) -> None:
    """The client removes everything before it ends, at whichever call it is."""
    cloud.boots = False
    zygote = client("pool")
    interrupted_at: list[str] = []
    while "DescribeInstances" not in interrupted_at:  # after which it waits for a machine that never answers
        number = len(interrupted_at)
        interrupted_at.append(calls_until(cloud, zygote, after(number + 1), signal.SIGINT)[number])
        assert left(cloud) == [], interrupted_at
    assert {"CreateSecurityGroup", "AuthorizeSecurityGroupIngress", "RunInstances"} <= set(interrupted_at)
    wait_until(lambda: not reapers(cloud), REAPER_S)


def test_ctrl_c_while_machines_start_gives_them_back(cloud: Cloud, client: StartClients) -> None:
    """At once, without waiting until they would have been ready."""
    cloud.boots = False
    zygote = client("pool")
    say(zygote, b"n")
    pid = int(hear(zygote))
    say(zygote, b"g")
    wait_until(lambda: bool(cloud.running()), 60)
    time.sleep(1.0)  # it waits for an sshd that never answers
    os.kill(pid, signal.SIGINT)
    began = time.monotonic()
    assert hear(zygote) == "gone"
    assert time.monotonic() - began < 10
    assert left(cloud) == []


def test_machines_end_by_themselves_when_nobody_is_left_to_end_them(cloud: Cloud, client: StartClients) -> None:
    """The client's whole computer goes off: the guard shuts the machine down, and `destroy` removes the rest."""
    zygote = client("pool")
    say(zygote, b"n")
    pid = int(hear(zygote))
    say(zygote, b"g")
    assert hear(zygote) == "open"
    (machine,) = cloud.running()
    (reaper,) = reapers(cloud)
    os.kill(reaper, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not cloud.running(), 60)  # lease 3 s, and the guard's patience
    assert cloud.backend.get_instance(machine.id).state == "terminated"
    (rest,) = sky.AWS(REGION).find()
    assert (rest["pool"], rest["node"], rest["state"]) == (machine.pool, -1, "security group")
    sky.AWS(REGION).destroy(machine.pool)
