"""The one image that all tests of JAX and of Keras on JAX start from, with the plugins or without."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import skyward as sky
from skyward.model.spec import Cluster, ClusterSpec
from skyward.plugins import transform_all

# beside what functions need, what a client needs: some tests open a pool in a container
IMAGE = sky.Image(pip=["filelock", "packaging", "platformdirs", "rich", "scikit-learn"])


@contextmanager
def pool_with(*plugins: sky.Plugin, **given: Any) -> Iterator[sky.ComputePool]:
    """A pool with the plugins named jax and keras, in whatever order."""
    with sky.ComputePool(sky.Docker(), image=IMAGE, plugins=plugins, **given) as pool:
        yield pool


@contextmanager
def plain_pool(**given: Any) -> Iterator[sky.ComputePool]:
    """A pool without plugins: the same packages, and an environment that says nothing of a backend."""
    with sky.ComputePool(sky.Docker(), image=_without_plugins(), **given) as pool:
        yield pool


def _without_plugins() -> sky.Image:
    plugins: Sequence[sky.Plugin] = (sky.plugins.jax(), sky.plugins.keras())
    return replace(transform_all(IMAGE, plugins, Cluster(spec=ClusterSpec())), env={})
