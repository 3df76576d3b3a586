"""A Slurm cluster for the tests that ask for it: brought up with the first, taken away after the last."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import skyward as sky
from scripts.engine.console import SetupError
from scripts.slurm import commands
from scripts.slurm.place import Cluster, here
from tests.waiting import wait_until

LONG_S = 180.0  # nothing in these tests is about this time


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The cluster of this clone; one that somebody has brought up before is used and left as it is."""
    if os.geteuid() != 0 or sys.platform != "linux":
        pytest.skip("the cluster's machines are namespaces and mounts, which take root on Linux")
    found = here()
    was_up = found.hosts_file.exists()
    try:
        commands.up(found)
    except SetupError as problem:
        pytest.skip(f"no Slurm cluster could be brought up: {problem}")
    python = found.login.run("sh", "-c", f"command -v python3.{sys.version_info.minor}", user="alice", check=False)
    if python:
        yield found
    if not was_up:
        commands.down(found)
    if not python:
        pytest.skip("the system has no Python of this version, which the cluster's nodes would run")


@pytest.fixture
def slurm(cluster: Cluster) -> Callable[..., sky.Slurm]:
    """Make a provider that reaches the cluster through SSH to its login node, as alice."""

    def make(**settings: Any) -> sky.Slurm:
        facts = cluster.facts
        return sky.Slurm(
            facts["login"], **{"key": facts["key"], "known_hosts": facts["known_hosts"], "time": "10", **settings}
        )

    return make


@pytest.fixture
def left_nothing(cluster: Cluster) -> Iterator[None]:
    """Asserts that the cluster has no job and no folder of a pool in the end."""
    yield
    wait_until(lambda: not left(cluster), LONG_S)


def left(cluster: Cluster) -> list[str]:
    """The jobs that have not ended, and the folders of pools."""
    jobs = cluster.login.run("squeue", "-h", "-o", "%i").split()
    pools = cluster.root / "home" / "alice" / ".cache" / "skyward" / "pools"
    return jobs + ([path.name for path in pools.iterdir()] if pools.is_dir() else [])
