"""`sky.AWS` as a value: what is refused before AWS is asked, and by whom."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import skyward as sky
from skyward.errors import ConfigError, ProviderError
from skyward.providers.aws.api import Api
from skyward.providers.aws.network import client_address


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"build": "here"}, "build must be 'local' or 'remote'"),
        ({"disk_gb": 0}, "disk_gb is a number of GB above 0"),
        ({"registry": "not a name"}, "not a name"),
    ],
)
def test_wrong_values_are_refused(settings: dict[str, Any], words: str) -> None:
    """When the value is made, long before anything is rented."""
    with pytest.raises(ConfigError, match=words):
        sky.AWS("us-east-1", **settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"allocation": "free"}, "allocation must be one of"),
        ({"max_hourly_cost": -1}, "max_hourly_cost must be a number above 0"),
        ({"autoscale_cooldown": 3}, "autoscale_cooldown= is not supported"),
    ],
)
def test_a_pool_refuses_wrong_terms(settings: dict[str, Any], words: str) -> None:
    """When it is described."""
    with pytest.raises(ConfigError, match=words):
        sky.ComputePool(sky.AWS("us-east-1"), **settings)


@pytest.mark.parametrize("provider", [sky.Local(), sky.Docker()])
@pytest.mark.parametrize("settings", [{"machine": "m6i.large"}, {"allocation": "spot"}, {"max_hourly_cost": 1.0}])
def test_providers_that_rent_nothing_refuse_terms(provider: Any, settings: dict[str, Any]) -> None:
    """None of these parameters is ignored."""
    (name,) = settings
    with pytest.raises(ConfigError, match=rf"{name}= is for providers of rented machines; sky\.\w+ rents none"):
        sky.ComputePool(provider, **settings)


def test_terms_belong_to_a_pool() -> None:
    """Two pools on one value do not share them."""
    provider = sky.AWS("us-east-1")
    sky.ComputePool(provider, machine="m6i.large")

    assert provider.terms.machine is None


def test_a_missing_boto3_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to install."""
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ConfigError, match=r"needs boto3. Install it with `pip install 'skyward\[aws\]'`"):
        list(sky.AWS("us-east-1").find())


def test_a_region_must_be_named_somewhere(account: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the caller or by AWS' configuration."""
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    with pytest.raises(ConfigError, match="No region of AWS is named"):
        list(sky.AWS().find())
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    assert list(sky.AWS().find()) == []


def test_an_account_without_a_default_network_is_told(account: Api) -> None:
    """With the command that makes one."""
    for subnet in account.call("ec2", "describe_subnets")["Subnets"]:
        account.call("ec2", "delete_subnet", SubnetId=subnet["SubnetId"])
    with pytest.raises(ProviderError, match="create-default-vpc"):
        sky.AWS("us-east-1").offers(1, None)


def test_an_address_that_cannot_be_had_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machines are then opened to nobody rather than to all."""
    monkeypatch.setattr("skyward.providers.aws.network._ECHO", "http://127.0.0.1:9/")
    with pytest.raises(ProviderError, match=r"public address, .*use_private_ip=True"):
        client_address()


def test_the_value_alone_loads_no_library_of_aws() -> None:
    """boto3 takes a third of a second, which a program that rents nothing saves."""
    check = "import sys, skyward as sky; sky.AWS('us-east-1'); print(sorted({'boto3', 'botocore'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("settings", "gb"), [({}, 155), ({"build": "remote"}, 50), ({"disk_gb": 500}, 50), ({"ami": "ami-1"}, 155)]
)
def test_the_disk_is_made_for_the_image_that_is_known_here(
    settings: dict[str, Any], gb: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool says which that will be; nobody is asked where it is built elsewhere."""
    asked = list[sky.Image]()

    def size_here(image: sky.Image, _: sky.Cluster) -> int:
        asked.append(image)
        return 50_000_000_000

    monkeypatch.setattr("skyward.providers.aws.provider.size_here", size_here)
    provider = sky.AWS("us-east-1", **settings)
    assert provider._room_gb("p1") == 50
    provider.expect("p1", sky.Image(pip=["numpy"]), sky.ComputePool(sky.Local())._settings.cluster)

    assert provider._room_gb("p1") == gb
    assert [image.pip for image in asked] == ([("numpy",)] if gb > 50 else [])
