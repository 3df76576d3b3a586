"""The keras plugin and decorator: image, backend and its conflicts. Keras itself stands in tests/e2e/test_keras.py."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

import skyward as sky
from skyward.errors import ConfigError, PluginError
from skyward.model.instance import InstanceInfo
from skyward.model.spec import Accelerator, Cluster, ClusterSpec
from skyward.plugins import transform_all
from skyward.runtime.environment import is_collective

CPU = Cluster(spec=ClusterSpec(nodes=2))
GPU = Cluster(spec=ClusterSpec(accelerator=Accelerator("A100")))
ALONE = InstanceInfo(node=0, total_nodes=1, head_addr="127.0.0.1", head_port=1)


@pytest.fixture(autouse=True)
def _no_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "none")  # so that it is put back as it was
    monkeypatch.delenv("KERAS_BACKEND")
    monkeypatch.delitem(sys.modules, "keras", raising=False)


def function() -> str:
    return os.environ.get("KERAS_BACKEND", "none")


# the image ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backend", "cluster", "added"),
    [
        ("jax", CPU, {"keras", "jax"}),
        ("jax", GPU, {"keras", "jax[cuda12]"}),
        ("torch", CPU, {"keras", "numpy", "torch"}),
        ("tensorflow", CPU, {"keras", "tensorflow-cpu"}),
        ("tensorflow", GPU, {"keras", "tensorflow[and-cuda]"}),
    ],
)
def test_the_backend_is_installed(backend: Any, cluster: Cluster, added: set[str]) -> None:
    """The plugin alone brings Keras, its backend for the pool's accelerator, and the variable that names it."""
    image = transform_all(sky.Image(), [sky.plugins.keras(backend=backend)], cluster)

    assert set(image.pip) == added
    assert image.env == {"KERAS_BACKEND": backend}


@pytest.mark.parametrize("there", ["jax==0.10.2", "jax[cuda13]>=0.10"])
def test_a_backend_that_is_there_is_left_alone(there: str) -> None:
    """What the user, or a plugin before, asks of the backend is not widened."""
    image = transform_all(sky.Image(pip=[there]), [sky.plugins.keras()], GPU)

    assert set(image.pip) == {there, "keras"}


def test_an_image_for_another_backend_is_refused() -> None:
    """An image whose environment names another backend is not changed in silence."""
    image = sky.Image(env={"KERAS_BACKEND": "torch"})

    with pytest.raises(PluginError, match=r"KERAS_BACKEND=torch, and the plugin is keras\(backend='jax'\)"):
        transform_all(image, [sky.plugins.keras()], CPU)


# settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [sky.plugins.keras, sky.integrations.keras])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"backend": "numpy"}, "backend must be 'jax', 'torch' or 'tensorflow'; found 'numpy'"),
        ({"seed": -1}, "seed must be a whole number"),
        ({"seed": 2**32}, "seed must be a whole number"),
        ({"seed": "7"}, "seed must be a whole number"),
        ({"seed": True}, "seed must be a whole number"),
    ],
)
def test_wrong_settings_are_refused(make: Any, given: dict[str, Any], message: str) -> None:
    """Plugin and decorator fail where they are written, not on a node."""
    with pytest.raises(ConfigError, match=message):
        make(**given)


def test_it_is_collective_where_ranks_form_a_group() -> None:
    """On JAX only with the jax decorator below it, or above; on the other backends always."""
    keras, jax = sky.integrations.keras, sky.integrations.jax

    assert not is_collective(keras(backend="jax")(function))
    assert is_collective(keras(backend="jax")(jax(function)))
    assert is_collective(jax(keras(backend="jax")(function)))
    assert is_collective(keras(backend="torch")(function))
