"""The `keras` plugin: Keras 3 and its backend in the image, and set up in every process before it is imported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from skyward.errors import PluginError
from skyward.model.image import Image, requirement_name
from skyward.model.instance import InstanceInfo
from skyward.model.spec import Cluster
from skyward.plugins import _jax, _process_group, _tensorflow, _tensorflow_cluster, _torch
from skyward.plugins._keras_process import VARIABLE, Backend, before_call, checked, use
from skyward.plugins.base import Plugin, Transform
from skyward.runtime.environment import declare, declared_env, same


def keras(backend: Backend = "jax", seed: int | None = None) -> Plugin:
    """Keras 3 with this backend on every node.

    The image gets `keras`, and the backend for the pool's accelerator unless something before has added it: a plugin of
    the backend that is given a version or a CUDA of its own stands before this one. `KERAS_BACKEND` is set before user
    code is loaded, so that files which import keras at their top get the right one.

    Alone, each rank trains for itself, on its own part of the data. With `jax()` in the same pool, before or after this
    plugin, the ranks of a call made with `@` train one model: `keras.distribution.DataParallel` over all their devices
    is set before each call, with the same seed on all. Give each rank its part of the data (`sky.shard(...,
    drop_last=True)`: all parts of one length) and its part of the batch. With "torch" the ranks form PyTorch's process
    group, with "tensorflow" `TF_CONFIG` describes them; what is done with that is up to the function.

    Args:
        backend: "jax", "torch" or "tensorflow".
        seed: given to `keras.utils.set_random_seed` before each call; None does not, unless ranks train one model.

    Raises:
        ConfigError: the backend or seed is none.
    """
    checked("keras(...)", backend, seed)
    plugin = (
        Plugin.create("keras")
        .with_image_transform(partial(_add, backend))
        .with_around_app(partial(_around_app, backend=backend))
        .with_decorator(partial(_decorate, backend=backend, seed=seed))
    )
    return plugin if backend == "jax" else plugin.with_collective()


def _add(backend: str, image: Image, cluster: Cluster) -> Image:
    if image.env.get(VARIABLE, backend) != backend:
        raise PluginError(
            f"The image's environment sets {VARIABLE}={image.env[VARIABLE]}, and the plugin is keras(backend="
            f"{backend!r}); choose one."
        )
    if not any(requirement_name(entry) in _PACKAGES[backend] for entry in image.pip):
        image = _ADD[backend](image, cluster)
    return image.pip_install("keras").with_env({VARIABLE: backend})  # as of the start: plugins may import keras, too


@contextmanager
def _around_app(info: InstanceInfo, *, backend: str) -> Iterator[None]:
    use(backend)  # where there is no image: sky.Local()
    with _JOINED[backend](info):
        yield


def _decorate(fn: Callable[..., Any], *, backend: str, seed: int | None) -> Callable[..., Any]:
    asked = declared_env(fn).get(VARIABLE, backend)
    if asked != backend:
        raise PluginError(
            f"{getattr(fn, '__name__', fn)}() asks for Keras with the backend {asked!r} by its decorator, and the pool "
            f"for {backend!r} by its plugin; choose one."
        )

    prepared = declare(same(fn), prepare=partial(before_call, backend=backend, seed=seed))
    return declare(prepared, prepare=_tensorflow_cluster.before_call) if backend == "tensorflow" else prepared


def _add_jax(image: Image, cluster: Cluster) -> Image:
    return image.pip_install(_jax.requirement(cluster))


def _add_torch(image: Image, cluster: Cluster) -> Image:
    transform = _torch.torch().transform
    assert transform is not None
    return transform(image, cluster)


def _add_tensorflow(image: Image, cluster: Cluster) -> Image:
    return image.pip_install(_tensorflow.requirement(cluster))


# by backend: the packages that provide it, what adds it to an image, and what its ranks enter when the pool starts
_PACKAGES: dict[str, set[str]] = {
    "jax": {"jax"},
    "torch": {"torch"},
    "tensorflow": {"tensorflow", "tensorflow-cpu"},
}
_ADD: dict[str, Transform] = {"jax": _add_jax, "torch": _add_torch, "tensorflow": _add_tensorflow}
_JOINED: dict[str, Callable[[InstanceInfo], AbstractContextManager[None]]] = {
    "jax": lambda _info: nullcontext(),  # jax() does, if each is not to train for itself
    "torch": _process_group.around_workers,
    "tensorflow": _tensorflow_cluster.described,
}
