"""`sky.Kubernetes` keeps the contract of providers, from outside of the cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest

import skyward as sky
from skyward.testing.provider import ProviderConformance
from tests.e2e.kube import IMAGE, kube, kubernetes, left_nothing, repository

__all__ = ["kube", "kubernetes", "left_nothing", "repository"]

pytestmark = pytest.mark.usefixtures("left_nothing")


class TestKubernetes(ProviderConformance):
    """Pods on a cluster of two machines."""

    settings: ClassVar[Mapping[str, Any]] = {"image": IMAGE}

    @pytest.fixture(autouse=True)
    def _cluster(self, kubernetes: Callable[..., sky.Kubernetes]) -> None:
        self._kubernetes = kubernetes

    def provider(self) -> sky.Kubernetes:
        return self._kubernetes()
