"""A project of Google Cloud on loopback, to which Google's own library talks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gcp_api import ComputeApi

FOREIGN = ("GOOGLE_CLOUD_PROJECT", "GCLOUD_PROJECT", "CLOUDSDK_COMPUTE_REGION", "GOOGLE_CLOUD_QUOTA_PROJECT")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ComputeApi]:
    """An empty one; prices are kept in a folder of the test."""
    made = ComputeApi(tmp_path)
    for variable in FOREIGN:
        monkeypatch.delenv(variable, raising=False)
    for variable, value in {**made.env, "XDG_CACHE_HOME": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(variable, value)
    yield made
    made.close()
