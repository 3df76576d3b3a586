"""The `keras` plugin: Keras 3 and its backend in the image, set up in every process: its backend, devices and seed.

The plugin and the decorator share the set-up. Code that runs on nodes imports keras and its backends inside functions.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from skyward.errors import ConfigError, PluginError
from skyward.model.instance import InstanceInfo
from skyward.plugins import _jax, _tensorflow, _torch
from skyward.plugins.base import Plugin, Transform
from skyward.runtime.environment import at_end, conflict, declare, declared_env, on_every_rank, same
from skyward.runtime.ranks import gather

if TYPE_CHECKING:
    from skyward.model.image import Image
    from skyward.model.spec import Cluster

Backend: TypeAlias = Literal["jax", "torch", "tensorflow"]
VARIABLE = "KERAS_BACKEND"
# whether the current call was prepared for ranks that form a group (None: not prepared)
_prepared: ContextVar[bool | None] = ContextVar("skyward_keras_prepared", default=None)


def keras(backend: Backend = "jax", seed: int | None = None) -> Plugin:
    """Keras 3 with this backend on every node.

    The image contains `keras`, and the backend for the pool's accelerator unless an earlier plugin has added it: to set
    a version or CUDA for the backend, list the backend's plugin before this one. `KERAS_BACKEND` is set before user
    code is loaded, so that files that import keras at the top use the right one.

    By default each rank trains a separate model on its own part of the data. With `jax()` in the same pool, before or
    after this plugin, the ranks of a call made with `@` train one model: `keras.distribution.DataParallel` over all
    their devices is set before each call, with the same seed on all. Pass each rank its part of the data
    (`sky.shard(..., drop_last=True)`: all parts of one length) and its part of the batch. With "torch" the ranks form
    PyTorch's process group, with "tensorflow" `TF_CONFIG` describes them; using these is up to the function.

    Args:
        backend: "jax", "torch" or "tensorflow".
        seed: passed to `keras.utils.set_random_seed` before each call; None sets none, unless ranks train one model.

    Raises:
        ConfigError: the backend or seed is invalid.
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
    from skyward.model.image import requirement_name

    if image.env.get(VARIABLE, backend) != backend:
        raise PluginError(
            f"The image's environment sets {VARIABLE}={image.env[VARIABLE]}, and the plugin is keras(backend="
            f"{backend!r}); choose one."
        )
    if not any(requirement_name(entry) in _PACKAGES[backend] for entry in image.pip):
        image = _ADD[backend](image, cluster)
    return image.pip_install("keras").with_env({VARIABLE: backend})  # set from the start: plugins may import keras, too


@contextmanager
def _around_app(info: InstanceInfo, *, backend: str) -> Iterator[None]:
    use(backend)  # needed without an image: sky.Local()
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
    return declare(prepared, prepare=_tensorflow.before_call) if backend == "tensorflow" else prepared


def _add_torch(image: Image, cluster: Cluster) -> Image:
    transform = _torch.torch().transform
    assert transform is not None
    return transform(image, cluster)


# by backend: the packages that provide it, the function that adds it to an image, and its ranks' context in the pool
_PACKAGES: dict[str, set[str]] = {
    "jax": {"jax"},
    "torch": {"torch"},
    "tensorflow": {"tensorflow", "tensorflow-cpu"},
}
_ADD: dict[str, Transform] = {
    "jax": lambda image, cluster: image.pip_install(_jax.requirement(cluster)),
    "torch": _add_torch,
    "tensorflow": lambda image, cluster: image.pip_install(_tensorflow.requirement(cluster)),
}
_JOINED: dict[str, Callable[[InstanceInfo], AbstractContextManager[None]]] = {
    "jax": lambda _info: nullcontext(),  # jax() joins the ranks, unless each trains separately
    "torch": _torch.around_workers,
    "tensorflow": _tensorflow.described,
}


def checked(where: str, backend: Any, seed: Any) -> None:
    """Check the settings, on the client.

    Raises:
        ConfigError: one is wrong; the message begins with `where`.
    """
    if backend not in get_args(Backend):
        raise ConfigError(f"{where}: backend must be 'jax', 'torch' or 'tensorflow'; found {backend!r}.")
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**32):
        raise ConfigError(f"{where}: seed must be a whole number from 0 to 2**32 - 1, or None; found {seed!r}.")


def use(backend: str) -> None:
    """Make Keras use this backend when it is imported.

    Raises:
        PluginError: it has been imported with another one.
    """
    if why := conflict({VARIABLE: backend}):
        raise PluginError(f"This process must use Keras with the backend {backend!r}, but {why}.")
    os.environ[VARIABLE] = backend


def before_call(info: InstanceInfo, *, backend: str, seed: int | None) -> None:
    """Prepare Keras for a call: backend, devices, seed.

    With JAX, the devices of all ranks work on one model (`DataParallel`) if they form a group and all run this call;
    they then start from the same seed. Otherwise the process works on its own, with all of its devices. This is reset
    at the end of the call: a model made on one rank with the devices of all would wait for the others for ever.

    Raises:
        PluginError: Keras has been imported with another backend; or a rank is missing.
    """
    use(backend)
    together = backend == "jax" and _in_jax_group() and on_every_rank()
    if _prepared.get() is not together:  # the plugin may come before a decorator has joined JAX's group
        _prepared.set(together)
        at_end(_forget)
        if backend == "jax" and (info.accelerators > info.workers_per_node or _in_jax_group()):  # several devices
            _distribute(_device_names(everywhere=together))
            if together and seed is None:
                seed = gather(secrets.randbelow(2**32), name="keras: seed")[0]
    if seed is not None:
        import keras

        keras.utils.set_random_seed(seed)


def join_jax(info: InstanceInfo) -> None:
    """Make the ranks form JAX's group if they all run this call."""
    if on_every_rank():
        _jax.join(info)


def _forget() -> None:
    _prepared.set(None)
    keras: Any = sys.modules.get("keras")
    if keras is not None and keras.config.backend() == "jax":
        keras.distribution.set_distribution(None)


def _in_jax_group() -> bool:
    jax: Any = sys.modules.get("jax")
    return jax is not None and bool(jax.distributed.is_initialized()) and jax.process_count() > 1


def _device_names(*, everywhere: bool) -> list[str]:
    import jax

    return [f"{device.platform}:{device.id}" for device in (jax.devices() if everywhere else jax.local_devices())]


def _distribute(devices: Sequence[str]) -> None:
    import keras

    # a rank shards its data itself: Keras can only shard a tf.data.Dataset
    parallel = keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False) if len(devices) > 1 else None
    keras.distribution.set_distribution(parallel)
