"""Ray on the nodes of a pool: its own programs run there unchanged, only with the pool's token, also on a new node."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

import skyward as sky
from skyward.plugins._ray import TOKEN
from tests.waiting import wait_until

if find_spec("ray") is None or find_spec("grpc") is None:
    pytest.skip("Ray is not installed here; `pip install -e .[dev]` brings it", allow_module_level=True)

AGAIN_S = 180.0


def processes_with(text: str) -> list[str]:
    """Command lines of this machine's processes that contain a string."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has just ended
        if text in line:
            found.append(line)
    return found


@pytest.fixture(scope="module")
def ray() -> Any:
    import ray

    return ray


@pytest.fixture(scope="module")
def pool(ray: Any) -> Iterator[sky.ComputePool]:
    """Two processes. After it nothing of Ray is left."""
    with sky.ComputePool(sky.Local(), nodes=2, plugins=[sky.plugins.ray()], display="quiet") as pool:
        handler = signal.getsignal(signal.SIGTERM)
        assert getattr(handler, "__module__", "").startswith("skyward.")  # `ray.init` takes the signal, too
        yield pool
    assert not ray.is_initialized()
    assert "RAY_ADDRESS" not in os.environ
    wait_until(lambda: processes_with(f"skyward-{pool.id}") == [], AGAIN_S)
    assert list(Path("/tmp").glob(f"skyward-{pool.id}*")) == []


def alive(ray: Any) -> dict[str, str]:
    """Addresses of Ray's nodes by their identifiers."""
    return {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}


def test_a_program_of_rays_documentation_runs_on_the_nodes(pool: sky.ComputePool, ray: Any) -> None:
    """Tasks, tasks that start tasks, actors, shared objects, `wait`, and errors of tasks; `ray.init()` is done."""
    known = alive(ray)
    ray.init(num_cpus=1)
    assert alive(ray) == known

    @ray.remote
    def square(x: int) -> Any:
        return x * x

    @ray.remote
    def total(numbers: list[int], shared: list[int]) -> Any:
        return sum(ray.get([square.remote(number) for number in numbers])) + sum(shared)

    class Counter:
        def __init__(self) -> None:
            self.value = 0

        def add(self) -> int:
            self.value += 1
            return self.value

    @ray.remote
    def fail() -> None:
        raise ValueError("no such thing")

    counter = ray.remote(Counter).remote()
    assert ray.get([square.remote(number) for number in range(10)]) == [number**2 for number in range(10)]
    assert ray.get(total.remote([1, 2, 3], ray.put([10, 20]))) == 44
    assert ray.get([counter.add.remote() for _ in range(3)]) == [1, 2, 3]
    ready, waiting = ray.wait([square.remote(3)], num_returns=1)
    assert (ray.get(ready), waiting) == ([9], [])
    with pytest.raises(ValueError, match="no such thing"):
        ray.get(fail.remote())
    ray.kill(counter)


def test_functions_of_the_pool_use_the_same_cluster(pool: sky.ComputePool, ray: Any) -> None:
    """Without `ray.init()`, on either node."""
    known = set(alive(ray))
    assert sorted(alive(ray).values()) == ["127.0.1.1", "127.0.1.2"]

    @sky.compute
    def ask() -> tuple[int, set[str]]:
        import ray

        @ray.remote
        def one() -> int:
            return 1

        return ray.get(one.remote()), {node["NodeID"] for node in ray.nodes() if node["Alive"]}

    assert ask() @ pool == [(1, known), (1, known)]


def test_nobody_is_served_without_the_token(pool: sky.ComputePool) -> None:
    """Neither by the server for programs nor by the dashboard. The token is in no command line, and not here."""
    import grpc
    from ray.core.generated.ray_client_pb2 import ClusterInfoRequest, ClusterInfoType
    from ray.core.generated.ray_client_pb2_grpc import RayletDriverStub

    token = dict(pool._settings.secrets)[TOKEN]
    hook: Any = pool._settings.plugins[0].around_client
    ports = hook.keywords["ports"]
    request = ClusterInfoRequest(type=ClusterInfoType.PING)
    with grpc.insecure_channel(f"127.0.0.1:{ports.client}") as channel:
        stub = RayletDriverStub(channel)
        for metadata in ((), (("authorization", f"Bearer {token[::-1]}"),)):
            with pytest.raises(grpc.RpcError) as refused:
                stub.ClusterInfo(request, timeout=30, metadata=metadata)
            assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
        stub.ClusterInfo(request, timeout=30, metadata=(("authorization", f"Bearer {token}"),))

    url = f"http://127.0.0.1:{ports.dashboard}/api/version"
    with pytest.raises(HTTPError) as unauthorised:
        urlopen(url, timeout=30)
    assert unauthorised.value.code == 401
    unauthorised.value.close()
    with urlopen(Request(url, headers={"Authorization": f"Bearer {token}"}), timeout=30) as answer:
        assert answer.status == 200
    assert processes_with(token) == []
    assert token not in os.environ.values()


def test_the_program_is_connected_again_when_node_0_is_lost(pool: sky.ComputePool, ray: Any) -> None:
    """To the cluster on the nodes of the pool, and to no other. That of before is gone, and its objects with it."""
    before = alive(ray)

    @sky.compute
    def die() -> None:
        place = sky.instance_info()
        if place is not None and place.node == 0:
            os.kill(os.getppid(), signal.SIGKILL)
            signal.pause()

    @ray.remote
    def one() -> int:
        return 1

    with pytest.raises(sky.errors.WorkerLostError):
        die() @ pool
    refused = 0
    deadline = time.monotonic() + AGAIN_S
    while True:
        try:
            assert ray.get(one.remote()) == 1
            break
        except ConnectionError:
            refused += 1
            assert time.monotonic() < deadline
    assert refused > 0
    wait_until(lambda: sorted(alive(ray).values()) == ["127.0.1.1", "127.0.1.2"], AGAIN_S)
    assert not before.keys() & alive(ray).keys()
