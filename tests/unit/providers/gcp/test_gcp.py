"""`sky.GCP` against its API: offers and prices, launch, refusals, what is found and removed."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

import skyward as sky
from skyward.builder.events import Event
from skyward.errors import ConfigError, ProviderError
from skyward.model.spec import Accelerator
from skyward.providers.base import PoolRequest
from skyward.providers.cloud import base as cloud_base
from skyward.providers.cloud.base import Instance, LaunchRequest, MachineOffer, Notice
from skyward.providers.cloud.launch import launch
from skyward.providers.gcp.provider import ComputeEngine, GcpLauncher
from tests.gcp_api import NETWORK, PROJECT, REGION, ZONES, ComputeApi
from tests.waiting import wait_until

PRIVATE = sky.GCP(REGION, use_private_ip=True, build="remote")


def engine(provider: sky.GCP = PRIVATE) -> ComputeEngine:
    return provider.cloud()


def request(pool: str = "0badcafe", **asked: Any) -> PoolRequest:
    asked["accelerator"] = Accelerator.of(asked.get("accelerator"))
    return PoolRequest(pool_id=pool, platform=asked.pop("platform", "linux/amd64"), **asked)


def offers(**asked: Any) -> list[MachineOffer]:
    return list(engine().offers(request(**asked), ["on-demand", "spot"]))


def launcher(cloud: ComputeEngine, pool: str = "0badcafe", **asked: Any) -> GcpLauncher:
    made = cloud.launcher(request(pool, **asked))
    made.prepare()
    return made


def launch_pool(
    cloud: ComputeEngine, tried: Sequence[MachineOffer], said: list[Event] | None = None, **asked: Any
) -> tuple[MachineOffer, list[Instance]]:
    pool, nodes = asked.pop("pool", "0badcafe"), asked.pop("nodes", 2)
    report = (said if said is not None else list[Event]()).append

    def request(offer: MachineOffer, attempt: int) -> LaunchRequest:
        return launch_of(offer, nodes, token=f"skyward-{pool}-{attempt}")

    return launch(cloud, launcher(cloud, pool, **asked), pool, tried, request, report)


def launch_of(offer: MachineOffer, nodes: int = 1, **more: Any) -> LaunchRequest:
    settings = {"token": "skyward-0badcafe-0", "user_data": "#cloud-config\n{}", **more}
    return LaunchRequest(offer=offer, nodes=nodes, **settings)


# offers and prices ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "first", "hourly"),
    [
        ({}, "e2-standard-2", 2 * 0.02 + 8 * 0.003),
        ({"cpus": 8, "memory_gb": 8}, "e2-highcpu-8", 8 * 0.02 + 8 * 0.003),
        ({"accelerator": "L4"}, "g2-standard-4", 4 * 0.025 + 16 * 0.003 + 0.56),
        ({"accelerator": "L4:2"}, "g2-standard-24", 24 * 0.025 + 96 * 0.003 + 2 * 0.56),
        ({"accelerator": "T4"}, "n1-standard-4", 4 * 0.03 + 15 * 0.004 + 0.35),
        ({"accelerator": "T4:3"}, "n1-standard-4", 4 * 0.03 + 15 * 0.004 + 4 * 0.35),
        ({"accelerator": "H100:8"}, "a3-megagpu-8g", 208 * 0.03 + 1872 * 0.0025 + 8 * 9.5),
        ({"accelerator": "A100"}, "a2-highgpu-1g", None),  # not in the price list
        ({"accelerator": "A100-80GB"}, "a2-ultragpu-1g", None),
        ({"machine": "n1-standard-32"}, "n1-standard-32", 32 * 0.03 + 120 * 0.004),
        ({"machine": "e2-medium"}, "e2-medium", 2 * 0.02 + 4 * 0.003),
        ({"platform": "linux/arm64"}, "c4a-standard-2", None),
    ],
)
def test_machines_by_size_and_accelerator(
    project: ComputeApi, asked: dict[str, Any], first: str, hourly: float | None
) -> None:
    """The smallest type that has what is asked, and what its parts cost together."""
    found = offers(**asked)

    assert (found[0].type.name, found[0].market) == (first, "on-demand")
    assert found[0].hourly == (None if hourly is None else pytest.approx(hourly))
    assert found[0].type.gpus >= request(**asked).gpus
    assert {each.zone for each in found} <= set(ZONES)


@pytest.mark.parametrize(
    ("asked", "error", "words"),
    [
        ({"accelerator": "MI300X"}, ConfigError, r"'MI300X'; it knows A100, .*machine="),
        ({"accelerator": "L4:8"}, ProviderError, r"us-central1 has no machine type with L4:8 for x86_64; found g2-"),
        ({"machine": "e2-tiny"}, ProviderError, r"with the name e2-tiny for x86_64; found none of that name"),
    ],
)
def test_what_there_is_not_is_refused(
    project: ComputeApi, asked: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        offers(**asked)


# the launch -----------------------------------------------------------------------------------------------------


def test_a_launch_is_one_call_that_makes_all_or_none(project: ComputeApi) -> None:
    """Labelled and described at creation, with no credentials, and closed to the keys of the project."""
    taken, machines = launch_pool(engine(), offers()[1:2])

    (body,) = (body for name, body in project.calls if name == "instances/bulkInsert")
    assert (body["count"], body["minCount"]) == ("2", "2")
    made = body["instanceProperties"]
    assert made["labels"] == made["disks"][0]["initializeParams"]["labels"] == {"skyward-pool": "0badcafe"}
    assert made["disks"][0]["autoDelete"]
    assert made["disks"][0]["initializeParams"]["diskSizeGb"] == "60"
    assert made["tags"]["items"] == ["skyward-0badcafe"]
    assert "accessConfigs" not in made["networkInterfaces"][0]
    assert not made.get("serviceAccounts")
    metadata = {each["key"]: each["value"] for each in made["metadata"]["items"]}
    assert metadata == {"user-data": "#cloud-config\n{}", "block-project-ssh-keys": "TRUE", "enable-oslogin": "FALSE"}
    assert made["shieldedInstanceConfig"]["enableSecureBoot"]
    assert made["scheduling"]["provisioningModel"] == "SPOT"
    assert made["scheduling"]["instanceTerminationAction"] == "DELETE"
    zone = taken.zone
    assert [each.id for each in machines] == [f"{zone}/skyward-0badcafe-0-0", f"{zone}/skyward-0badcafe-0-1"]
    assert [(each.index, each.market, each.hourly) for each in machines] == [
        (0, "spot", taken.hourly),
        (1, "spot", taken.hourly),
    ]
    assert all(each.address.startswith("10.128.0.") and time.time() - each.launched < 60 for each in machines)


def test_settings_reach_the_machines(project: ComputeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """A public address, a service account, an image of one's own, GPUs for N1."""
    monkeypatch.setattr("skyward.providers.gcp.provider.GCP.client_cidr", lambda *_: "203.0.113.7/32")
    mine = sky.GCP(REGION, image="projects/mine/global/images/one", service_account="a@b", disk_gb=500)
    cloud = mine.cloud()
    (offer, *_) = cloud.offers(request(accelerator="T4"), ["on-demand"])
    made = cloud.launcher(request(accelerator="T4"))
    properties = made.properties(launch_of(offer))

    assert made.client == "203.0.113.7/32"
    assert properties["network_interfaces"][0]["access_configs"][0]["type_"] == "ONE_TO_ONE_NAT"
    assert properties["service_accounts"][0]["email"] == "a@b"
    assert properties["guest_accelerators"] == [{"accelerator_type": "nvidia-tesla-t4", "accelerator_count": 1}]
    assert properties["disks"][0]["initialize_params"]["source_image"].endswith("/images/one")
    assert properties["disks"][0]["initialize_params"]["disk_size_gb"] == 500
    assert properties["scheduling"] == {
        "automatic_restart": False,
        "provisioning_model": "STANDARD",
        "on_host_maintenance": "TERMINATE",
    }
    assert not properties["shielded_instance_config"]["enable_secure_boot"]
    assert cloud.first_start.open_metadata
    with pytest.raises(ProviderError, match=r"disk_gb=5 is too small: the image takes 10 GB"):
        replace(mine, disk_gb=5).cloud().launcher(request())


def test_no_room_leads_to_the_next_zone_and_market(project: ComputeApi) -> None:
    """Each refusal is an operation that fails, of which the reason is shown."""

    def refuse(zone: str, body: dict[str, Any]) -> list[tuple[str, str]] | None:
        if body["instanceProperties"]["scheduling"]["provisioningModel"] == "SPOT":
            return [("VM_MIN_COUNT_NOT_REACHED", "Requested minimum count of 2 VMs could not be created."),
                    ("ZONE_RESOURCE_POOL_EXHAUSTED", "no room")]  # fmt: skip
        return [("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "no room")] if zone == ZONES[0] else None

    project.refuse = refuse
    said: list[Event] = []
    known = [each for each in offers() if each.type.name == "e2-standard-2"]
    tried = sorted(known, key=lambda each: (each.market != "spot", each.zone))
    taken, machines = launch_pool(engine(), tried, said)

    assert (taken.market, taken.zone, len(machines)) == ("on-demand", ZONES[1], 2)
    text = " ".join(map(str, said))
    assert text.count("no room for e2-standard-2 (spot)") == 2
    assert "in us-central1-a: ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS" in text


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        (
            ("QUOTA_EXCEEDED", "Quota 'L4' exceeded.  Limit: 0.0"),
            r"Quota 'L4' exceeded.  Limit: 0\.0.* Ask for a higher",
        ),
        (
            ("PERMISSIONS_ERROR", "Required 'x'"),
            r"^Google .* asked to bulkInsert and refused: PERMISSIONS_ERROR: Requir",
        ),
    ],
)
def test_a_refusal_has_its_reason(project: ComputeApi, refusal: tuple[str, str], words: str) -> None:
    """Another zone helps against a quota, which is why all are tried; against a missing permission nothing does."""
    project.refuse = lambda *_: [refusal]
    with pytest.raises(ProviderError, match=words):
        launch_pool(engine(), offers())
    launches = [name for name, _ in project.calls].count("instances/bulkInsert")
    assert (launches == 1) == (refusal[0] == "PERMISSIONS_ERROR")
    assert project.instances == {}


def test_a_machine_that_vanishes_while_it_starts_is_no_room(
    project: ComputeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Google deletes a spot machine that it takes back: it is not listed any more, and nobody waits for it."""
    cloud, (offer, *_) = engine(), offers()

    def staging(made: dict[str, Any]) -> None:
        made["status"] = "STAGING"

    project.on_launch = staging
    seen = list[int]()
    listed = cloud.instances

    def instances(pool: str | None = None) -> Sequence[Instance]:
        seen.append(len(listed(pool)))
        found = listed(pool)
        project.instances.clear()
        return found

    monkeypatch.setattr(cloud, "instances", instances)
    with pytest.raises(ProviderError, match=r"has no room(.|\n)*ended at once, and is not listed any more"):
        launch_pool(cloud, [offer], nodes=1)
    assert seen[0] == 1


# who reaches the machines ---------------------------------------------------------------------------------------


def test_only_the_client_and_the_pool_reach_the_machines(project: ComputeApi) -> None:
    """The rules come before those of the network, which let everybody come to port 22."""
    launcher(engine())

    rules = {name.rpartition("-")[2]: rule for name, rule in project.firewalls.items()}
    assert {rule["network"] for rule in rules.values()} == {NETWORK}
    assert {tuple(rule["targetTags"]) for rule in rules.values()} == {("skyward-0badcafe",)}
    assert rules["client"]["sourceRanges"] == ["10.128.0.0/20"]
    assert rules["client"]["allowed"] == [{"IPProtocol": "tcp", "ports": ["22"]}]
    assert (rules["machines"]["sourceTags"], rules["machines"]["allowed"]) == (
        ["skyward-0badcafe"],
        [{"IPProtocol": "all"}],
    )
    assert (rules["others"]["sourceRanges"], rules["others"]["denied"]) == (["0.0.0.0/0"], [{"IPProtocol": "all"}])
    assert rules["client"]["priority"] == rules["machines"]["priority"] < rules["others"]["priority"] < 1000


def test_what_is_being_made_is_waited_for_and_removed(project: ComputeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client dies while Google makes its machines: they are not listed yet, and no rule of theirs is left either."""
    monkeypatch.setattr("tests.gcp_api.DELAY_S", 1.0)
    cloud = engine()
    made = cloud.launcher(request())
    monkeypatch.setattr(cloud.api, "finish", lambda _: None)
    made.launch(launch_of(offers()[0]))
    assert project.instances == {}
    assert project.begun()

    PRIVATE.destroy("0badcafe")

    assert (project.instances, project.firewalls, project.begun()) == ({}, {}, [])


def test_a_machine_that_has_shut_itself_down_is_deleted(project: ComputeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs its disk until then: by `destroy`, and by its user's next pool. Rules without machines stay."""
    cloud = engine()
    launch_pool(cloud, offers()[:1], nodes=1)
    project.set_status("skyward-0badcafe-0-0", "TERMINATED")
    (machine,) = cloud.instances()
    assert (machine.state, machine.exists) == ("stopped", True)
    with monkeypatch.context() as other:
        other.setattr(cloud_base, "current_user", lambda: "bob@desk")
        cloud_base.sweep(cloud)
    assert {each["status"] for each in project.instances.values()} == {"TERMINATED"}
    cloud_base.sweep(cloud)
    wait_until(lambda: not project.instances, 60)
    assert len(project.firewalls) == 3


# the value ------------------------------------------------------------------------------------------------------


def test_region_and_project_must_be_named(project: ComputeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the caller, by gcloud's variable, or by the credentials."""
    with pytest.raises(ConfigError, match=r"No region of Google Cloud is named. Write sky\.GCP\('us-central1'\)"):
        list(sky.GCP().find())
    monkeypatch.setenv("CLOUDSDK_COMPUTE_REGION", REGION)
    assert list(sky.GCP().find()) == []
    assert sky.GCP().cloud().api.project == PROJECT
    named = sky.GCP("another/europe-west4").cloud()
    assert (named.api.project, named.api.region) == ("another", "europe-west4")
    again = sky.GCP(sky.GCP().cloud().region).cloud()  # as a run names it whose machines another process ends
    assert (again.api.project, again.api.region) == (PROJECT, REGION)


def test_missing_credentials_are_an_error(project: ComputeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/key.json")
    with pytest.raises(ConfigError, match=r"found no credentials: .*gcloud auth application-default login"):
        list(PRIVATE.find())


def test_the_notice_names_the_time_that_is_left() -> None:
    """Google says only that the machine is being taken; its script adds when."""
    script = f"ask() {{ echo TRUE; }}\nread_notice() {{\n{engine().first_start.read_notice}\n}}\nread_notice"
    said = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
    notice = Notice.read(said)
    assert notice.action == "preempt"
    assert 25 < notice.left_s <= 30
