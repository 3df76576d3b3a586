"""The role of docs/permissions: what the calls need and no more. All tests of `sky.GCP` run with it."""

from __future__ import annotations

import pytest

import skyward as sky
from skyward.errors import ProviderError
from skyward.model.spec import Accelerator
from skyward.providers.base import PoolRequest
from skyward.providers.cloud.base import LaunchRequest, MachineOffer
from skyward.providers.cloud.launch import launch
from skyward.providers.gcp.api import MIN_COUNT
from tests.gcp_api import PROJECT, REGION, ZONES, ComputeApi, role

IMAGES = f"projects/{PROJECT}/global/images"
REQUEST = PoolRequest(pool_id="0badcafe", platform="linux/amd64", accelerator=Accelerator.of("L4"))


def test_the_role_has_the_permissions_that_a_pool_takes_and_no_others(
    project: ComputeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the offers to the end: with public addresses, an account and an image of one's own, and a full zone."""
    monkeypatch.setattr("skyward.providers.gcp.provider.GCP.client_cidr", lambda *_: "203.0.113.7/32")
    project.refuse = lambda zone, _: [(MIN_COUNT, "fewer than 1")] if zone == ZONES[0] else None
    provider = sky.GCP(
        REGION, image=f"{IMAGES}/one", service_account=f"a@{PROJECT}.iam.gserviceaccount.com", build="remote"
    )
    cloud = provider.cloud()
    cloud.offers(PoolRequest(pool_id="0badcafe", accelerator=Accelerator.of("T4")), ["spot"])
    sky.GCP(REGION, image=f"{IMAGES}/family/f", use_private_ip=True, build="remote").cloud().launcher(REQUEST)
    launcher = cloud.launcher(REQUEST)
    launcher.prepare()
    offers = cloud.offers(REQUEST, ["spot"])

    def request(offer: MachineOffer, attempt: int) -> LaunchRequest:
        return LaunchRequest(token=f"skyward-0badcafe-{attempt}", nodes=1, offer=offer, user_data="")

    launch(cloud, launcher, "0badcafe", offers, request, lambda _: None)
    assert [each["node"] for each in provider.find()] == [0]
    provider.destroy("0badcafe")

    assert project.needed == set(role()["includedPermissions"])
    assert (project.instances, project.firewalls) == ({}, {})


def test_a_permission_that_is_lacking_is_an_error_that_names_it(project: ComputeApi) -> None:
    project.granted.remove("compute.instances.list")
    with pytest.raises(ProviderError, match=r"'compute\.instances\.list' permission for .*docs/gcp\.md"):
        list(sky.GCP(REGION).find())
