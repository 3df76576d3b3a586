"""`sky.Slurm` keeps the contract of providers, as an ordinary user through SSH to the login node."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import skyward as sky
from skyward.testing.provider import ProviderConformance

pytestmark = pytest.mark.usefixtures("left_nothing")


class TestSlurm(ProviderConformance):
    """Jobs on a cluster of three nodes."""

    @pytest.fixture(autouse=True)
    def _cluster(self, slurm: Callable[..., sky.Slurm]) -> None:
        self._slurm = slurm

    def provider(self) -> sky.Slurm:
        return self._slurm()
