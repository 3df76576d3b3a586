"""Values the plugin tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from skyward.model.instance import RUN_DIR_VAR, InstanceInfo
from skyward.model.spec import Cluster, ClusterSpec


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(spec=ClusterSpec(nodes=2))


@pytest.fixture
def place() -> InstanceInfo:
    return InstanceInfo(node=1, total_nodes=2, head_addr="10.0.0.1", head_port=29400)


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node's run directory, as its runner has it."""
    monkeypatch.setenv(RUN_DIR_VAR, str(tmp_path))
    return tmp_path
