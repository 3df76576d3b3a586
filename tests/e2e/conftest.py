"""Pools shared by the end-to-end tests: the same tests run on containers and on plain processes."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

import skyward as sky
from tests.e2e.engines import OwnEngine, Release, newer_release

# One image for all of them. Docker and pytest are in it because the modules of these tests are imported on the nodes.
IMAGE = sky.Image(pip=["docker", "numpy", "pandas", "pytest"])


def provider_of(name: str) -> Any:
    return sky.Docker() if name == "docker" else sky.Local()


@pytest.fixture(scope="session", params=["local", "docker"])
def provider_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def pool(provider_name: str) -> Iterator[sky.ComputePool]:
    """Two nodes, one call at a time on each."""
    with sky.ComputePool(provider_of(provider_name), nodes=2, image=IMAGE) as pool:
        yield pool


@pytest.fixture(scope="session")
def threads_pool(provider_name: str) -> Iterator[sky.ComputePool]:
    """One node, four calls at a time."""
    with sky.ComputePool(provider_of(provider_name), image=IMAGE, concurrency=4) as pool:
        yield pool


@pytest.fixture
def new_pool(provider_name: str) -> Callable[..., sky.ComputePool]:
    """Make a pool for a test that breaks it."""

    def make(**settings: Any) -> sky.ComputePool:
        return sky.ComputePool(provider_of(provider_name), **{"image": IMAGE, **settings})

    return make


@pytest.fixture(scope="session")
def engine() -> Iterator[Any]:
    """The Docker engine under test, for looking at what skyward leaves there."""
    client = docker.from_env()
    yield client
    client.close()


@pytest.fixture(scope="session")
def newer_docker() -> Iterator[Release]:
    """A newer release of Docker, with buildx and images in containerd."""
    with newer_release() as release:
        yield release


@pytest.fixture(scope="session")
def newer(newer_docker: Release) -> Iterator[OwnEngine]:
    """An engine of it."""
    with newer_docker.engine() as engine:
        yield engine


@pytest.fixture
def containers(engine: Any) -> Callable[[str], list[Any]]:
    """The containers of a pool, in any state."""
    return lambda pool: engine.containers.list(all=True, ignore_removed=True, filters={"label": f"skyward.pool={pool}"})


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Run a program in a process of its own, as a user would; its output is a pipe."""

    def start(text: str, **env: str) -> subprocess.Popen[str]:
        path = tmp_path / "program.py"
        path.write_text(textwrap.dedent(text))
        return subprocess.Popen(
            [sys.executable, "-u", str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **env},
        )

    return start
