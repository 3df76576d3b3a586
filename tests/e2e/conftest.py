"""Pools shared by the end-to-end tests: the same tests run on containers and on plain processes."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import docker
import pytest
import requests

import skyward as sky
from skyward.nodes.run_directory import pool_directories
from tests.e2e.clients import CLIENT, Client
from tests.e2e.engines import OwnEngine, Release, newer_release
from tests.e2e.slurm import cluster, left_nothing, slurm
from tests.e2e.stand import clean, ssh, stand

# Imported here alone: a fixture of the session that each module imports is made, and fails, once per module.
__all__ = ["clean", "cluster", "left_nothing", "slurm", "ssh", "stand"]

# One image for all of them. Docker and pytest are in it because the modules of these tests are imported on the nodes.
IMAGE = sky.Image(pip=["docker", "numpy", "pandas", "pytest"])


ANSWER_LIMIT_S = 20


def provider_of(name: str) -> Any:
    return sky.Docker() if name == "docker" else sky.Local()


@cache
def _pinging() -> Any:
    """A connection to the engine under test that gives up early; it asks nothing yet."""
    return docker.from_env(version="1.41", timeout=ANSWER_LIMIT_S)


def pytest_sessionfinish() -> None:
    _pinging().close()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any fixture: each test fails at once, and says why, while the engine under test does not answer (2 ms)."""
    try:
        _pinging().ping()
    except (docker.errors.DockerException, requests.RequestException) as problem:
        pytest.fail(f"the Docker engine under test does not answer within {ANSWER_LIMIT_S} s: {problem}", pytrace=False)


@pytest.fixture(scope="session", params=["local", "docker"])
def provider_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def _shared() -> Iterator[Callable[[str, str], sky.ComputePool]]:
    """The session's pools by provider and kind: one that is open stays open when tests ask for another in between."""
    with ExitStack() as stack:

        @cache
        def shared(name: str, kind: str) -> sky.ComputePool:
            shape: Any = {"nodes": 2} if kind == "pool" else {"concurrency": 4}
            return stack.enter_context(sky.ComputePool(provider_of(name), image=IMAGE, **shape))

        yield shared


@pytest.fixture(scope="session")
def pool(provider_name: str, _shared: Callable[[str, str], sky.ComputePool]) -> sky.ComputePool:
    """Two nodes, one call at a time on each."""
    return _shared(provider_name, "pool")


@pytest.fixture(scope="session")
def threads_pool(provider_name: str, _shared: Callable[[str, str], sky.ComputePool]) -> sky.ComputePool:
    """One node, four calls at a time."""
    return _shared(provider_name, "threads")


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


@pytest.fixture
def client(script: Callable[..., subprocess.Popen[str]], provider_name: str) -> Iterator[Callable[..., Client]]:
    """Start a client; `body` runs inside its pool."""
    clients: list[Client] = []

    def start(
        body: str = "work() >> pool", *, image: str = "", work: str = "time.sleep(60)", extra: str = "", **pool: Any
    ) -> Client:
        settings = ", ".join(f"{name}={value!r}" for name, value in pool.items())
        provider = "Docker" if provider_name == "docker" else "Local"
        text = CLIENT.format(image=image, work=work, body=body, extra=extra, pool=settings, provider=provider)
        clients.append(Client(script(text)))
        return clients[-1]

    yield start
    for one in clients:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()


@pytest.fixture
def nothing_left(engine: Any) -> Callable[[Client], None]:
    """Assert that a client's pools have neither containers, nor processes, nor directories any more."""

    def check(client: Client) -> None:
        owner = f"{client.process.pid}@"
        left = engine.containers.list(all=True, ignore_removed=True, filters={"label": "skyward.pool"})
        assert [c.name for c in left if c.labels["skyward.owner"].startswith(owner)] == []
        owners = {d.path: d.path / "owner" for d in pool_directories()}
        mine = f"{client.process.pid},"
        assert [path for path, file in owners.items() if file.exists() and file.read_text().startswith(mine)] == []

    return check
