"""PyTorch in containers: ranks train on two nodes, agree, and do what one process does."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import skyward as sky
from skyward.errors import PluginError
from skyward.model.spec import Cluster, ClusterSpec
from skyward.plugins import transform_all
from tests.e2e import torch_functions as functions

torch = pytest.importorskip("torch", reason="torch is not installed here; `pip install -e .[dev]` brings it")
IMAGE = sky.Image(pip=["scikit-learn"])  # with the torch plugin, that of the guides on PyTorch


@pytest.fixture(scope="module")
def torch_pool() -> Iterator[sky.ComputePool]:
    """Two nodes whose workers form a group."""
    with sky.ComputePool(sky.Docker(), nodes=2, image=IMAGE, plugins=[sky.plugins.torch()]) as pool:
        yield pool


@pytest.fixture(scope="module")
def plain_image() -> sky.Image:
    """The same image for pools without the plugin, whose workers make no group of their own."""
    return transform_all(IMAGE, [sky.plugins.torch()], Cluster(spec=ClusterSpec()))


@pytest.fixture(scope="module")
def plain_pool(plain_image: sky.Image) -> Iterator[sky.ComputePool]:
    """Two nodes with torch and without the plugin, for the decorators."""
    with sky.ComputePool(sky.Docker(), nodes=2, image=plain_image) as pool:
        yield pool


def same(states: list[dict[str, Any]]) -> bool:
    """Whether all hold the same bits."""
    first, *others = states
    return all(list(other) == list(first) and all(torch.equal(other[k], first[k]) for k in first) for other in others)


def test_ddp_on_two_nodes_does_what_one_process_does(torch_pool: sky.ComputePool) -> None:
    """Both ranks end with the same bits, and every loss is that of one process with batches twice as large."""
    results = functions.train_with_ddp(seed=3) @ torch_pool
    alone = functions.train_alone(seed=3) >> torch_pool

    assert [(r["rank"], r["node"]) for r in results] == [(0, 0), (1, 1)]
    assert same([r["state"] for r in results])
    assert results[0]["losses"] == results[1]["losses"]
    assert len(alone["losses"]) == functions.EPOCHS * functions.STEPS
    assert results[0]["losses"] == pytest.approx(alone["losses"], abs=1e-5, rel=0)
    assert alone["losses"][-1] < alone["losses"][0] / 4
    assert results[0]["accuracy"] == pytest.approx(alone["accuracy"], abs=0.01)
    assert results[0]["accuracy"] > 0.88


def test_the_environment_is_that_of_torchrun(torch_pool: sky.ComputePool) -> None:
    """Two nodes of one rank each, one address and port for both."""
    (first, env), (second, other) = functions.sum_of_ranks() @ torch_pool

    assert first == second == 1.0
    assert {**env, "RANK": "1", "NODE_RANK": "1"} == other
    assert {name: env[name] for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK")} == {
        "WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "NODE_RANK": "0",
    }  # fmt: skip


def test_a_single_call_on_a_collective_pool_does_not_wait_for_the_others(torch_pool: sky.ComputePool) -> None:
    """The group is there in it; what needs all ranks says so at once."""
    assert functions.group_is_there() >> torch_pool is True
    assert functions.without_torch([1, 2]) >> torch_pool == 3
    with pytest.raises(PluginError, match=r"called on one of them alone.* f\(\.\.\.\) @ pool"):
        functions.decorated_and_makes_its_own_group("gloo") >> torch_pool


def test_the_decorator_makes_the_group_in_a_pool_without_plugin(plain_pool: sky.ComputePool) -> None:
    """Called and bare, below and above `@compute`, with the first document's own init; it stays for later calls."""
    assert functions.group_is_there() @ plain_pool == [False, False]
    for _ in range(2):
        assert functions.decorated_and_makes_its_own_group("nccl") @ plain_pool == [2.0, 2.0]
        assert functions.decorated_above() @ plain_pool == [2.0, 2.0]
    assert functions.on_one_node_too() @ plain_pool == [(2, 2.0), (2, 2.0)]
    assert functions.group_is_there() @ plain_pool == [True, True]
    with pytest.raises(PluginError, match="called on one of them alone"):
        functions.decorated_above() >> plain_pool


def test_a_client_without_torch_needs_none(script: Callable[..., subprocess.Popen[str]]) -> None:
    """Where no tensor crosses, functions that use torch are sent, run and answered without it."""
    program = script(
        """
        import sys

        sys.modules["torch"] = None  # whoever imports it here fails
        import skyward as sky

        @sky.compute
        @sky.integrations.torch
        def total(values):
            import torch
            import torch.distributed as dist

            sums = torch.tensor(values) * (dist.get_rank() + 1)
            dist.all_reduce(sums)
            return sums.tolist()

        image = sky.Image(pip=["scikit-learn"])
        with sky.ComputePool(sky.Docker(), nodes=2, image=image, plugins=[sky.plugins.torch()]) as pool:
            print(total([1.0, 2.0]) @ pool)
        """
    )
    out, err = program.communicate(timeout=500)

    assert out == "[[3.0, 6.0], [3.0, 6.0]]\n", err


def test_ranks_of_one_node_form_one_group() -> None:
    """Two nodes of two ranks each: one all_reduce over four ranks, and each knows its place on its node."""
    worker = sky.Worker(per_node=2)
    with sky.ComputePool(sky.Docker(), nodes=2, worker=worker, image=IMAGE, plugins=[sky.plugins.torch()]) as pool:
        results = functions.sum_of_ranks() @ pool

    assert [total for total, _ in results] == [0.0 + 1 + 2 + 3] * 4
    names = ("RANK", "NODE_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE")
    found = [[env[name] for name in names] for _, env in results]
    assert found == [[str(rank), str(rank // 2), str(rank % 2), "2", "4"] for rank in range(4)]
    assert len({env["MASTER_PORT"] for _, env in results}) == 1
