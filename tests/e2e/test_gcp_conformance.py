"""Google Cloud keeps the contract of providers; clients that are killed at calls of its API are in test_gcp.py."""

from __future__ import annotations

from types import MappingProxyType

import pytest

import skyward as sky
from skyward.testing.provider import ProviderConformance
from tests.e2e.gcp import Google
from tests.e2e.stand import IMAGE
from tests.e2e.test_gcp import PROVIDER, SMALL, google

__all__ = ["google"]


class TestConformance(ProviderConformance):
    """On the stand's hosts, with the API of `tests.gcp_api`."""

    settings = MappingProxyType({"image": IMAGE, "machine": SMALL, "allocation": "on-demand"})
    settle_s = 120.0
    calls = ("acquire", "prepare", "replace", "release")

    @pytest.fixture(autouse=True)
    def _project(self, google: Google) -> None:
        """The project of each test."""

    def provider(self) -> sky.GCP:
        return PROVIDER
