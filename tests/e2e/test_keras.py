"""Keras in containers: on its backends, each rank for itself or all as one; and never on the wrong backend."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

import skyward as sky
from skyward.errors import PluginError
from tests.e2e import keras_functions as functions
from tests.e2e.jax_image import plain_pool, pool_with


@pytest.fixture(scope="module")
def grouped() -> Iterator[sky.ComputePool]:
    """Two nodes with both plugins, keras first: their order means nothing."""
    with pool_with(sky.plugins.keras(backend="jax"), sky.plugins.jax(), nodes=2) as pool:
        yield pool


@pytest.fixture(scope="module")
def on_torch() -> Iterator[sky.ComputePool]:
    """Two nodes with Keras on PyTorch."""
    image = sky.Image(pip=["scikit-learn"])
    plugins = [sky.plugins.torch(), sky.plugins.keras(backend="torch", seed=7)]
    with sky.ComputePool(sky.Docker(), image=image, plugins=plugins, nodes=2) as pool:
        yield pool


@pytest.fixture(scope="module")
def plain() -> Iterator[sky.ComputePool]:
    """Two nodes with Keras and JAX and without plugins, for the decorator. No backend is in their environment."""
    with plain_pool(nodes=2) as pool:
        yield pool


@pytest.fixture(scope="module")
def single() -> Iterator[sky.ComputePool]:
    """One node of that kind."""
    with plain_pool() as pool:
        yield pool


def test_each_rank_trains_on_its_shard(plain: sky.ComputePool) -> None:
    """With the decorator alone each node has a model of its own, of half of the data, and it is good."""
    first, second = functions.train_on_jax() @ plain

    for result in (first, second):
        assert (result["backend"], result["distribution"]) == ("jax", "NoneType")
        assert result["samples"] == functions.TRAINED_ON // 2
        assert result["accuracy"] > 0.9
    assert first["weights"] != second["weights"]


def test_each_rank_trains_on_its_shard_with_pytorch(on_torch: sky.ComputePool) -> None:
    """The same model and the same function on another backend; the ranks are in PyTorch's group, too."""
    for result in functions.train() @ on_torch:
        assert result["backend"] == "torch"
        assert result["samples"] == functions.TRAINED_ON // 2
        assert result["accuracy"] > 0.9
    assert functions.ranks_of_torch() @ on_torch == [(0, 2), (1, 2)]


def test_the_seed_counts_on_one_node(single: sky.ComputePool) -> None:
    """The same call on the only node gives the same model again, to the bit."""
    first, second = [functions.train_on_jax() >> single for _ in range(2)]

    assert first["samples"] == functions.TRAINED_ON
    assert first["weights"] == second["weights"]


def test_the_ranks_train_one_model(grouped: sky.ComputePool) -> None:
    """With the jax plugin the devices of all ranks work on one model, without a seed of the user's."""
    first, second = functions.train() @ grouped

    for result in (first, second):
        assert (result["backend"], result["distribution"]) == ("jax", "DataParallel")
        assert result["samples"] == functions.TRAINED_ON // 2
    assert first["weights"] == second["weights"]
    assert first["accuracy"] == second["accuracy"] > 0.9


def test_one_rank_trains_alone_in_a_group(grouped: sky.ComputePool) -> None:
    """A call on one rank trains a model of its own between two that train one together, and waits for nobody."""
    functions.train_briefly() @ grouped
    alone = functions.train().with_timeout(100) >> grouped

    assert alone["distribution"] == "NoneType"
    assert alone["accuracy"] > 0.9
    first, second = functions.train_briefly() @ grouped
    assert first["weights"] == second["weights"]


def test_the_decorators_train_one_model_too(plain: sky.ComputePool) -> None:
    """`keras` above `jax` on one function: the group is there before Keras looks for devices."""
    with plain_pool(nodes=2) as fresh:  # those of other tests have computed for themselves
        first, second = functions.train_as_one() @ fresh

    assert (first["distribution"], second["distribution"]) == ("DataParallel", "DataParallel")
    assert first["weights"] == second["weights"]


def test_the_decorators_train_one_model_beside_the_plugin() -> None:
    """The plugin prepares a rank that calls for itself; it must not do so before the decorator has made the group."""
    with pool_with(sky.plugins.keras(backend="jax"), nodes=2) as fresh:
        first, second = functions.train_as_one() @ fresh

    assert (first["distribution"], second["distribution"]) == ("DataParallel", "DataParallel")
    assert first["weights"] == second["weights"]


def test_a_file_that_imports_keras_at_its_top(plain: sky.ComputePool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node imports the file with the backend of the decorator; the client has no Keras at all."""
    monkeypatch.setitem(sys.modules, "keras", ModuleType("keras"))
    at_top = importlib.import_module("tests.e2e.keras_at_top")

    assert at_top.backend_in_use() @ plain == [("jax", "jax")] * 2


def test_another_backend_gets_a_fresh_process(single: sky.ComputePool) -> None:
    """A worker that has loaded Keras with one backend is replaced for a function that asks for another."""
    backend, first = functions.asks_for_jax() >> single
    wanted, second, loaded = functions.asks_for_torch() >> single
    again, third = functions.asks_for_jax() >> single
    _, fourth = functions.asks_for_jax() >> single

    assert (backend, wanted, again) == ("jax", "torch", "jax")
    assert not loaded
    assert first != second == third == fourth  # Keras was not loaded again until the third call asked for its backend


def test_another_backend_is_refused_where_processes_stay() -> None:
    """Where other calls run in the process it is not replaced: the error names both backends."""
    with plain_pool(concurrency=2) as pool:
        functions.asks_for_jax() >> pool

        with pytest.raises(PluginError, match="for KERAS_BACKEND=torch, but keras is loaded with KERAS_BACKEND=jax"):
            functions.asks_for_torch() >> pool


def test_plugin_and_decorator_must_agree(grouped: sky.ComputePool) -> None:
    """A function that asks for another backend than the pool's plugin fails; nothing runs on the wrong one."""
    with pytest.raises(PluginError, match=r"asks for .*torch"):
        functions.asks_for_torch() >> grouped


def test_a_model_goes_to_a_worker_and_back(grouped: sky.ComputePool) -> None:
    """A compiled model is trained on in a worker; it comes back as it was there."""
    kind, there, here = functions.round_trip() >> grouped

    assert kind == "Sequential"
    assert here == pytest.approx(there, rel=1e-4)
