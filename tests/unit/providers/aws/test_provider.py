"""`sky.AWS` as a value: what is refused before anything is rented."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import skyward as sky
from skyward.errors import ConfigError, ProviderError
from skyward.providers.aws.api import Api


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
        ({"allocation": "free"}, "allocation must be one of 'spot-if-available', .* found 'free'"),
        ({"max_hourly_cost": -1}, "max_hourly_cost= takes a number above 0"),
        ({"budget": 0}, "budget= takes a number above 0"),
        ({"budget": "5"}, "budget= takes a number above 0"),
    ],
)
def test_a_pool_refuses_wrong_terms(settings: dict[str, Any], words: str) -> None:
    """When it is described."""
    with pytest.raises(ConfigError, match=words):
        sky.ComputePool(sky.AWS("us-east-1"), **settings)


@pytest.mark.parametrize(
    ("provider", "module", "words"),
    [
        (sky.AWS("us-east-1"), "boto3", r"needs boto3. Install it with `pip install 'skyward\[aws\]'`"),
        (sky.GCP("r"), "google.cloud.compute_v1", r"needs google-cloud-compute. Install it with .*skyward\[gcp\]'`"),
    ],
    ids=["aws", "gcp"],
)
def test_a_missing_library_is_an_error(provider: Any, module: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the pool is made; the message says what to install."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=words):
        sky.ComputePool(provider)


def test_a_region_must_be_configured(account: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the caller or in AWS' configuration."""
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    with pytest.raises(ConfigError, match="No region of AWS is named"):
        list(sky.AWS().find())
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    assert list(sky.AWS().find()) == []


def test_an_unknown_client_address_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines are not opened to everybody instead."""
    monkeypatch.setattr("skyward.providers.cloud.provider._ADDRESS_SERVICE", "http://127.0.0.1:9/")
    with pytest.raises(ProviderError, match=r"public address, .*use_private_ip=True"):
        sky.AWS("us-east-1").client_cidr("172.31.0.0/16")


def test_the_values_alone_load_no_library() -> None:
    """Importing boto3 takes a third of a second, Google's two."""
    check = (
        "import sys, skyward as sky; sky.ComputePool(sky.AWS('r')); sky.ComputePool(sky.GCP('r'));"
        "print({'boto3', 'botocore', 'google.auth'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
