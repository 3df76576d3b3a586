"""What the tests of Keras run on nodes; its module imports nothing that the image lacks."""

from __future__ import annotations

import os
import sys
from typing import Any

import skyward as sky
from tests.e2e.jax_functions import digits

TRAINED_ON = 1440  # of 1,797 digits; a multiple of the ranks, so that all have parts of one length


def compiled() -> Any:
    import keras

    layers = [keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.005), loss, metrics=["accuracy"])
    return model


def fitted(epochs: int = 6) -> dict[str, Any]:
    """Train on this rank's part of the data, and evaluate on what nobody has trained on."""
    import keras

    x, y = digits()
    own_x, own_y = sky.shard(x[:TRAINED_ON], y[:TRAINED_ON], shuffle=True, seed=1, drop_last=True)
    model = compiled()
    model.fit(own_x, own_y, batch_size=16, epochs=epochs, verbose=0)
    _, accuracy = model.evaluate(x[TRAINED_ON:], y[TRAINED_ON:], verbose=0)
    distribution = keras.distribution.distribution() if keras.config.backend() == "jax" else None
    return {
        "backend": keras.config.backend(),
        "samples": len(own_x),
        "accuracy": float(accuracy),
        "weights": [weight.tobytes() for weight in model.get_weights()],
        "distribution": type(distribution).__name__,
    }


@sky.compute
def train() -> dict[str, Any]:
    return fitted()


@sky.compute
@sky.integrations.keras(backend="jax", seed=7)
def train_on_jax() -> dict[str, Any]:
    return fitted()


@sky.compute
@sky.integrations.keras(backend="jax")
@sky.integrations.jax
def train_as_one() -> dict[str, Any]:
    return fitted(epochs=1)


@sky.compute
@sky.integrations.keras(backend="torch")
def asks_for_torch() -> tuple[str, int, bool]:
    """The backend in the environment, the process, and whether Keras is loaded in it."""
    return os.environ["KERAS_BACKEND"], os.getpid(), "keras" in sys.modules


@sky.compute
def ranks_of_torch() -> tuple[int, int]:
    """This rank in PyTorch's process group, and how many it has."""
    import torch.distributed as dist

    return dist.get_rank(), dist.get_world_size()


@sky.compute
def round_trip() -> tuple[str, float, float]:
    """A client that has Keras sends a model to a worker of its own, which trains it on, and gets a model back."""
    x, y = digits()
    ours = compiled()
    with sky.ComputePool(sky.Local(), display="quiet") as pool:
        theirs, loss = sky.compute(trained_on)(ours) >> pool
    return type(theirs).__name__, loss, float(theirs.evaluate(x, y, verbose=0)[0])


def trained_on(model: Any) -> tuple[Any, float]:
    x, y = digits()
    model.fit(x, y, batch_size=64, epochs=2, verbose=0)
    return model, float(model.evaluate(x, y, verbose=0)[0])
