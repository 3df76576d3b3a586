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


def test_the_ranks_train_one_model(grouped: sky.ComputePool) -> None:
    """With the jax plugin the devices of all ranks work on one model, without a seed of the user's."""
    first, second = functions.train() @ grouped

    for result in (first, second):
        assert (result["backend"], result["distribution"]) == ("jax", "DataParallel")
        assert result["samples"] == functions.TRAINED_ON // 2
    assert first["weights"] == second["weights"]
    assert first["accuracy"] == second["accuracy"] > 0.9


def test_the_decorators_train_one_model_too(plain: sky.ComputePool) -> None:
    """`keras` above `jax` on one function: the group is there before Keras looks for devices."""
    with plain_pool(nodes=2) as fresh:  # those of other tests have computed for themselves
        first, second = functions.train_as_one() @ fresh

    assert (first["distribution"], second["distribution"]) == ("DataParallel", "DataParallel")
    assert first["weights"] == second["weights"]


def test_a_file_that_imports_keras_at_its_top(plain: sky.ComputePool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node imports the file with the backend of the decorator; the client has no Keras at all."""
    monkeypatch.setitem(sys.modules, "keras", ModuleType("keras"))
    at_top = importlib.import_module("tests.e2e.keras_at_top")

    assert at_top.backend_in_use() @ plain == [("jax", "jax")] * 2


def test_plugin_and_decorator_must_agree(grouped: sky.ComputePool) -> None:
    """A function that asks for another backend than the pool's plugin fails; nothing runs on the wrong one."""
    with pytest.raises(PluginError, match=r"asks for .*torch"):
        functions.asks_for_torch() >> grouped


def test_a_model_goes_to_a_worker_and_back(grouped: sky.ComputePool) -> None:
    """A compiled model is trained on in a worker; it comes back as it was there."""
    kind, there, here = functions.round_trip() >> grouped

    assert kind == "Sequential"
    assert here == pytest.approx(there, rel=1e-4)
