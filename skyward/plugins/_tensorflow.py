"""The `tensorflow` plugin: TensorFlow in the image, and the ranks of a pool described in `TF_CONFIG`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from skyward.model.image import Image
from skyward.model.spec import Cluster
from skyward.plugins._tensorflow_cluster import before_call, described
from skyward.plugins.base import Plugin
from skyward.runtime.environment import declare, same

_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"


def tensorflow() -> Plugin:
    """TensorFlow on every node, and the ranks as one cluster for `tf.distribute.MultiWorkerMirroredStrategy`.

    In a pool of several ranks `TF_CONFIG` names the address of each when a function starts that was called with `@`.
    The function makes the strategy and trains under it with a loop of its own (the `fit` of Keras 3 fails under it).
    Nothing of TensorFlow may have run in the process before the first strategy, not in an earlier call either: it
    would fail with "Collective ops must be configured at program startup". Later ones take part in the same cluster.
    """
    return (
        Plugin.create("tensorflow")
        .with_image_transform(_add)
        .with_around_app(described)
        .with_decorator(_decorate)
        .with_collective()
    )


def requirement(cluster: Cluster) -> str:
    """What to install of TensorFlow on the nodes of this pool."""
    accelerator = cluster.spec.accelerator
    if accelerator is not None and accelerator.cuda:
        return "tensorflow[and-cuda]"
    return "tensorflow-cpu" if cluster.spec.platform == "linux/amd64" else "tensorflow"  # which has none for others


def _add(image: Image, cluster: Cluster) -> Image:
    level = image.env.get(_LOG_LEVEL, "1")  # its notes on CPU features would stand in every worker's output
    return image.pip_install(requirement(cluster)).with_env({_LOG_LEVEL: level})


def _decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
    return declare(same(fn), prepare=before_call)
