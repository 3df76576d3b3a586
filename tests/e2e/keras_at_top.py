"""A user's file that imports Keras at its top, as most do: the backend must be settled before nodes import it."""

from __future__ import annotations

import os

import keras

import skyward as sky


@sky.compute
@sky.integrations.keras(backend="jax", seed=7)
def backend_in_use() -> tuple[str, str]:
    return keras.config.backend(), os.environ["KERAS_BACKEND"]
