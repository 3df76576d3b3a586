"""The Docker provider against a real engine, with a stand-in for the runner in a real image."""

from __future__ import annotations

import gc
import io
import json
import os
import socket
import subprocess
import sys
import tarfile
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import docker
import pytest

from skyward.engine import ContainerSpec, Engine
from skyward.errors import EngineMissingError
from skyward.nodes.node import Announcement, Host, Node
from skyward.nodes.process_id import current_user
from skyward.providers import Docker
from skyward.providers.base import Allocation, PoolRequest
from skyward.ssh.forward import Forward
from tests.standin import ask, install, launch

Start = Callable[..., Node]


@pytest.fixture(scope="module")
def api() -> Iterator[Any]:
    client = docker.from_env()
    yield client.api
    client.close()


@pytest.fixture(scope="module")
def image(api: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The default base with the stand-in first on PYTHONPATH."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        folder = install(tmp_path_factory.mktemp("standin"))
        folder.chmod(0o755)  # nodes do not run as its owner
        tar.add(folder, arcname="standin")
    blank = api.create_container(os.environ["SKYWARD_BASE"], ["true"])["Id"]
    api.put_archive(blank, "/opt", archive.getvalue())
    api.commit(blank, "skyward-test/standin", "latest", changes="ENV PYTHONPATH=/opt/standin")
    api.remove_container(blank)
    yield "skyward-test/standin:latest"
    api.remove_image("skyward-test/standin:latest")


@pytest.fixture
def pool() -> str:
    return uuid.uuid4().hex[:8]


@pytest.fixture
def allocation(pool: str) -> Iterator[Allocation]:
    opened = Docker().open(PoolRequest(pool_id=pool))
    yield opened
    opened.close()
    assert not [found for found in Docker().find() if found["pool"] == pool]


@pytest.fixture
def provider() -> Docker:
    return Docker()


@pytest.fixture
def host(allocation: Allocation) -> Host:
    return allocation.acquire()[0]


@pytest.fixture
def start(host: Host, pool: str, image: str) -> Start:
    def _start(node: int = 0, how: str = "serve", **more: Any) -> Node:
        return host.start(launch(pool, node, how, **({"image": image} | more)))

    return _start


def _relay(path: Path, target: Path) -> Forward:
    """A socket that leads to the engine's own; closing it is as if the engine were killed."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def dial() -> socket.socket:
        far = socket.socket(socket.AF_UNIX)
        far.connect(str(target))
        return far

    return Forward(listener, dial)


def _inspect(api: Any, pool: str, node: int = 0) -> dict[str, Any]:
    return dict(api.inspect_container(f"skyward-{pool}-{node}"))


def test_a_node_is_a_container_set_up_for_work(start: Start, api: Any, pool: str) -> None:
    """Host network, init process, sized shared memory, raised limits, labels; nothing published, nothing privileged."""
    start(0, env={"MINE": "1"}).wait_ready(60)
    about = _inspect(api, pool)
    config, labels = about["HostConfig"], about["Config"]["Labels"]
    assert config["NetworkMode"] == "host"
    assert config["Init"] is True
    assert config["AutoRemove"] is True
    assert config["Privileged"] is False
    assert not config["PortBindings"]
    assert config["ShmSize"] > 1024**3
    assert {"Name": "stack", "Soft": 67108864, "Hard": 67108864} in config["Ulimits"]
    assert (config["NanoCpus"], config["Memory"], config["DeviceRequests"] or []) == (0, 0, [])
    assert labels["skyward.pool"] == pool
    assert labels["skyward.node"] == "0"
    assert labels["skyward.owner"].startswith(f"{os.getpid()}@")
    assert labels["skyward.user"] == current_user()
    assert {found["user"] for found in Docker().find() if found["pool"] == pool} == {current_user()}


def test_a_node_talks_through_the_directory_it_shares(start: Start, api: Any, pool: str) -> None:
    """The announced socket can be reached, the key arrived by file, and neither inspect nor the command shows it."""
    node = start()
    announced = node.wait_ready(60)
    assert announced == Announcement(agent="unix:agent.sock", workers=("unix:w0.sock",))
    facts = ask(node.connect(announced.agent), "facts")
    assert bytes.fromhex(facts["key"]) == b"the pool's key"
    assert facts["env"]["SKYWARD_RUN_DIR"] == "/run/skyward"
    assert facts["cwd"] == "/work"
    assert facts["limits"]["stack"] == [67108864, 67108864]
    assert facts["shm"] > 1024**3
    everything = json.dumps(_inspect(api, pool))
    assert "the pool's key" not in everything
    assert facts["key"] not in everything


def test_limits_hold_when_asked_for(start: Start, api: Any, pool: str) -> None:
    """Processors and memory are limited on request; a node over its memory is told from one that was killed."""
    node = start(cpus=0.5, memory_gb=0.125)
    agent = node.wait_ready(60).agent
    config = _inspect(api, pool)["HostConfig"]
    assert (config["NanoCpus"], config["Memory"], config["ShmSize"]) == (500_000_000, 2**27, 2**26)
    asked = time.monotonic()
    ask(node.connect(agent), "memory")
    ended = node.wait_exit(60)
    assert ended is not None
    assert (ended.code, ended.signal, ended.oom) == (137, 9, True)
    assert "out of memory" in ended.text
    assert time.monotonic() - asked < 30


@pytest.mark.alone
@pytest.mark.parametrize(("request_", "code", "signal"), [(0, 0, None), (7, 7, None), (-9, 137, 9), (-11, 139, 11)])
def test_ends_are_seen_at_once(start: Start, request_: int, code: int, signal: int | None) -> None:
    """Status or signal of a container that ends by itself is known in well under a second, with its last lines."""
    node = start()
    agent = node.wait_ready(20).agent
    assert node.wait_exit(0) is None
    asked = time.monotonic()
    ask(node.connect(agent), request_)
    ended = node.wait_exit(10)
    assert time.monotonic() - asked < 1.0
    assert ended is not None
    assert (ended.code, ended.signal, ended.oom) == (code, signal, False)
    assert "the stand-in starts" in ended.log


@pytest.mark.alone  # the next pool of another process would remove it as well
def test_a_client_killed_between_create_and_start_leaves_nothing_for_long(
    start: Start, api: Any, image: str, pool: str
) -> None:
    """A container nobody started has no lease; the next pool on the machine removes it, and only that one."""
    start().wait_ready(60)
    code = f"""
        import os, signal
        from skyward.engine import ContainerSpec, Engine, client
        from skyward.nodes.process_id import ProcessId
        client.attach = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        labels = {{"skyward.pool": "{pool}dead", "skyward.owner-id": ProcessId.of(os.getpid()).text}}
        spec = ContainerSpec(image="{image}", command=("true",), name="skyward-{pool}dead-0", labels=labels)
        Engine.connect().run(spec)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False, timeout=60)
    (left,) = Engine.connect().containers(f"skyward.pool={pool}dead")
    assert left["State"] == "created"
    other = Docker().open(PoolRequest(pool_id=f"{pool}next"))
    other.acquire()
    other.close()
    assert not Engine.connect().containers(f"skyward.pool={pool}dead")
    assert Engine.connect().containers(f"skyward.pool={pool}")


def test_an_engine_that_refuses_limits_still_starts_containers(image: str, pool: str) -> None:
    """Limits an engine may not grant are given up once; what follows does not ask again."""
    engine = Engine.connect()
    before = engine._limits
    engine._limits = {"memlock": -1, "nofile": 2**30, "stack": 67108864}
    try:
        for number in range(2):
            spec = ContainerSpec(
                image=image,
                command=("/opt/venv/bin/python", "-c", "print('here')"),
                name=f"skyward-{pool}-limits-{number}",
                labels={"skyward.pool": pool},
            )
            assert b"".join(engine.run(spec).output()) == b"here\n"
            assert engine._limits["stack"] == 67108864
        assert "nofile" not in engine._limits
    finally:
        engine._limits = before


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")  # the SDK forgets sockets that could not connect
def test_an_engine_that_dies_is_noticed(api: Any, image: str, pool: str, tmp_path: Path) -> None:
    """When the engine's connections break, who waits for a node's end learns that nobody knows it any more."""
    real = Path(Engine.connect().url.removeprefix("unix://"))
    path = tmp_path / "docker.sock"
    with closing(_relay(path, real)) as relay:
        allocation = Docker(f"unix://{path}").open(PoolRequest(pool_id=pool))
        node = allocation.acquire()[0].start(launch(pool, image=image))
        node.wait_ready(60)
        path.unlink()
        relay.close()
        ended = node.wait_exit(60)
        assert ended is not None
        assert ended.code is None
        assert "is gone" in ended.text
        with pytest.raises(EngineMissingError):
            node.remove()
        with pytest.raises(EngineMissingError):
            allocation.close()
    Docker().destroy(pool)
    gc.collect()
