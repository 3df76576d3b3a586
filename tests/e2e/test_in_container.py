"""A client in a container, with the socket of the engine and a directory that it shares with its nodes."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import skyward as sky
from skyward.builder.folders import cache_path
from tests.conftest import ROOT

PROGRAM = """
import skyward as sky

@sky.compute
def node():
    return sky.instance_info().node

with sky.ComputePool(sky.Docker(), nodes=2, display="quiet") as pool:
    print(node() @ pool)
"""


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory with a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="sky-", dir="/tmp") as folder:
        yield Path(folder)


def test_a_client_in_a_container(engine: Any, shared: Path) -> None:
    """Its directory has one path for both."""
    with sky.ComputePool(sky.Docker(), display="quiet"):
        pass  # the image is there now, and known
    mounted = [Path(os.environ["DOCKER_HOST"].removeprefix("unix://")), ROOT, cache_path(), shared]
    mounted += [Path(each).resolve() for each in (sys.prefix, sys.base_prefix)]
    told = ("DOCKER_HOST", "SKYWARD_BASE")
    output = engine.containers.run(
        os.environ["SKYWARD_BASE"],
        ["-c", PROGRAM],
        entrypoint=[str(Path(sys.prefix).resolve() / "bin/python")],
        environment={
            **{name: os.environ[name] for name in told},
            "PYTHONPATH": str(ROOT),
            "XDG_CACHE_HOME": str(cache_path().parent),
            "XDG_RUNTIME_DIR": str(shared),
        },
        volumes=[f"{path}:{path}" for path in mounted],
        user="0",
        network_mode="host",
        remove=True,
        stderr=True,
    )
    assert output.decode().splitlines()[-1] == "[0, 1]"
