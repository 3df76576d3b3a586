"""AWS keeps the contract of providers; clients that are killed at calls of AWS are in test_aws.py."""

from __future__ import annotations

from types import MappingProxyType

import pytest

import skyward as sky
from skyward.testing.provider import ProviderConformance
from tests.e2e.cloud import REGION, Cloud
from tests.e2e.stand import IMAGE
from tests.e2e.test_aws import cloud

__all__ = ["cloud"]


class TestConformance(ProviderConformance):
    """On the stand's hosts, with the API of moto."""

    settings = MappingProxyType({"image": IMAGE, "machine": "m6i.large", "allocation": "on-demand"})
    settle_s = 120.0
    calls = ("acquire", "prepare", "replace", "release")

    @pytest.fixture(autouse=True)
    def _account(self, cloud: Cloud) -> None:
        """The account of each test."""

    def provider(self) -> sky.AWS:
        return sky.AWS(REGION, use_private_ip=True)
