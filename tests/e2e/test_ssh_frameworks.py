"""Frameworks over two hosts reached by SSH: they train as in one process; a network that fails one way is named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import skyward as sky
from scripts.stand.place import Stand
from tests.e2e import torch_functions
from tests.e2e.stand import wait_until

torch = pytest.importorskip("torch", reason="torch is not installed here; `pip install -e .[dev]` brings it")

from tests.e2e.test_torch import IMAGE as TORCH_IMAGE  # noqa: E402
from tests.e2e.test_torch import same  # noqa: E402

WAITS_S = 120.0  # for what takes as long as it takes


@contextmanager
def on_two_hosts(stand: Stand, **given: Any) -> Iterator[sky.ComputePool]:
    """A pool on the first two hosts; it leaves nothing there, its image neither, which is a large one."""
    facts = json.loads(stand.hosts_file.read_text())
    provider = sky.SSH(*facts.pop("hosts")[:2], **facts)
    with sky.ComputePool(provider, nodes=2, **given) as pool:
        (image,) = {found["image"] for found in provider.find() if found["pool"] == pool.id}
        yield pool
    for host in stand.hosts[:2]:
        assert host.run("docker", "ps", "-aq", "--filter", f"label=skyward.pool={pool.id}") == ""
        wait_until(lambda host=host: pool.id not in host.run("ls", "-A", "/tmp"), WAITS_S)  # type: ignore[misc]
        host.run("docker", "rmi", "-f", image)


@pytest.fixture(scope="module")
def torch_pool(stand: Stand) -> Iterator[sky.ComputePool]:
    with on_two_hosts(stand, image=TORCH_IMAGE, plugins=[sky.plugins.torch()]) as pool:
        yield pool


def test_ddp_on_two_hosts_does_what_one_process_does(torch_pool: sky.ComputePool, stand: Stand) -> None:
    """Both ranks end with the same bits, and every loss is that of one process with batches twice as large."""
    results = torch_functions.train_with_ddp(seed=3, epochs=2) @ torch_pool
    alone = torch_functions.train_alone(seed=3, epochs=2) >> torch_pool

    assert [(r["rank"], r["node"]) for r in results] == [(0, 0), (1, 1)]
    assert same([r["state"] for r in results])
    assert results[0]["losses"] == results[1]["losses"]
    assert results[0]["losses"] == pytest.approx(alone["losses"], abs=1e-5, rel=0)
    assert alone["losses"][-1] < alone["losses"][0] / 2
    assert {env["MASTER_ADDR"] for _, env in torch_functions.sum_of_ranks() @ torch_pool} == {stand.host(1).address}


def test_ray_on_two_hosts(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each host is a node of Ray's cluster, at its own address; tasks run on both, and objects go between them."""
    monkeypatch.setenv("UV_INDEX_STRATEGY", "unsafe-best-match")  # pip may have found its version on any index
    ray = pytest.importorskip("ray", reason="Ray is not installed here; `pip install -e .[dev]` brings it")
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    @ray.remote
    def add_up(numbers: Any) -> tuple[int, str]:
        return int(sum(numbers)), ray.util.get_node_ip_address()

    with on_two_hosts(stand, plugins=[sky.plugins.ray()]):
        nodes = {node["NodeManagerAddress"]: node["NodeID"] for node in ray.nodes() if node["Alive"]}
        shared = ray.put(list(range(100_000)))
        there = [NodeAffinitySchedulingStrategy(node, soft=False) for node in nodes.values()]
        found = ray.get([add_up.options(scheduling_strategy=each).remote(shared) for each in there])

    assert set(nodes) == {host.address for host in stand.hosts[:2]}
    assert found == [(sum(range(100_000)), address) for address in nodes]
