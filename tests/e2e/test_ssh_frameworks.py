"""Frameworks over two hosts reached by SSH: they train as in one process; a network that fails one way is named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.model_selection import ParameterGrid

import skyward as sky
from scripts.stand.place import Stand
from skyward.integrations import sklearn_backend
from tests.e2e import jax_functions, jax_image, torch_functions
from tests.e2e.stand import wait_until
from tests.e2e.test_joblib import GRID, SPLITS, fits_on, locally, nodes_of_fits, search

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


@pytest.fixture(scope="module")
def jax_pool(stand: Stand) -> Iterator[sky.ComputePool]:
    with on_two_hosts(stand, image=jax_image.IMAGE, plugins=[sky.plugins.jax(), sky.plugins.keras()]) as pool:
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


def test_a_grid_search_is_fitted_on_two_hosts(torch_pool: sky.ComputePool) -> None:
    """Best parameters and scores are those of one process; every fit was counted on a host, and both did some."""
    x, y = load_digits(return_X_y=True)
    digits = x[:600] / 16, y[:600]
    with locally():
        expected = search(digits, n_jobs=1)

    with sklearn_backend(torch_pool):
        found = search(digits, n_jobs=-1)
    fits = fits_on(torch_pool)

    assert found.best_params_ == expected.best_params_
    np.testing.assert_allclose(
        found.cv_results_["mean_test_accuracy"], expected.cv_results_["mean_test_accuracy"], atol=1e-9
    )
    assert sum(fits) == len(nodes_of_fits(found)) == len(ParameterGrid(GRID)) * SPLITS
    assert fits == [nodes_of_fits(found).count(node) for node in (0, 1)]
    assert min(fits) > 0


def test_jax_is_one_on_two_hosts(jax_pool: sky.ComputePool, stand: Stand) -> None:
    """A `psum` over the mesh of all devices; data parallel training gives what one rank finds with whole batches."""
    places = jax_functions.place_in_the_group() @ jax_pool
    first, second = jax_functions.train_together() @ jax_pool
    alone = jax_functions.train_alone() >> jax_pool

    assert [(place["devices"], place["here"], place["process"]) for place in places] == [(2, 1, 0), (2, 1, 1)]
    assert places[1]["variables"]["JAX_COORDINATOR_ADDRESS"].startswith(f"{stand.host(1).address}:")
    assert jax_functions.psum() @ jax_pool == [3.0, 3.0]
    assert first["parameters"] == second["parameters"]
    assert first["losses"] == second["losses"] == pytest.approx(alone["losses"], abs=1e-5, rel=0)
    assert alone["losses"][-1] < alone["losses"][0] / 4


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
