"""`sky.SSH` keeps the contract of providers, on two hosts of the stand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest

import skyward as sky
from skyward.testing.provider import ProviderConformance
from tests.e2e.stand import IMAGE


class TestSSH(ProviderConformance):
    """Containers on two machines."""

    settings: ClassVar[Mapping[str, Any]] = {"image": IMAGE}
    calls = ("open", "replace", "claim_port")  # tests/e2e/test_ssh_faults.py has all others, and those below them

    @pytest.fixture(autouse=True)
    def _hosts(self, ssh: Callable[..., sky.SSH]) -> None:
        self._ssh = ssh

    def provider(self) -> sky.SSH:
        return self._ssh(1, 2)
