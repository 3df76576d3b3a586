"""Keras in a worker process: its backend before it is imported, then before each call its devices and its seed.

Shared by the plugin and the decorator. Runs on the nodes; imports keras and its backends inside functions.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, Literal, TypeAlias, get_args

from skyward.errors import ConfigError, PluginError
from skyward.model.instance import InstanceInfo
from skyward.plugins import _jax_group
from skyward.runtime.environment import at_end, conflict, on_every_rank
from skyward.runtime.group import gather

Backend: TypeAlias = Literal["jax", "torch", "tensorflow"]
VARIABLE = "KERAS_BACKEND"
# whether the call that runs here was prepared for ranks that form a group (None: not at all)
_prepared: ContextVar[bool | None] = ContextVar("skyward_keras_prepared", default=None)


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
    """Let Keras take this backend when it is imported.

    Raises:
        PluginError: it has been imported with another one.
    """
    if why := conflict({VARIABLE: backend}):
        raise PluginError(f"This process was to use Keras with the backend {backend!r}, but {why}.")
    os.environ[VARIABLE] = backend


def before_call(info: InstanceInfo, *, backend: str, seed: int | None) -> None:
    """Prepare Keras for a call: backend, devices, seed.

    With JAX, the devices of all ranks work on one model (`DataParallel`) where they form a group and all run this call;
    they then start from the same seed. Else the process works for itself, on all devices of its own. The end of the
    call puts that back: a model made on one rank with the devices of all would wait for the others for ever.

    Raises:
        PluginError: Keras has been imported with another backend; or a rank is missing.
    """
    use(backend)
    together = backend == "jax" and _in_jax_group() and on_every_rank()
    if _prepared.get() is not together:  # the plugin may come before a decorator has joined JAX's group
        _prepared.set(together)
        at_end(_forget)
        if backend == "jax" and _spans_devices(info):
            _distribute(_device_names(everywhere=together))
            if together and seed is None:
                seed = gather(secrets.randbelow(2**32), name="keras: seed")[0]
    if seed is not None:
        import keras

        keras.utils.set_random_seed(seed)


def join_jax(info: InstanceInfo) -> None:
    """Let the ranks form JAX's group where they all run this call."""
    if on_every_rank():
        _jax_group.join(info)


def _forget() -> None:
    _prepared.set(None)
    keras: Any = sys.modules.get("keras")
    if keras is not None and keras.config.backend() == "jax":
        keras.distribution.set_distribution(None)


def _spans_devices(info: InstanceInfo) -> bool:
    """Whether Keras may have more than one device to work on."""
    return info.accelerators > info.workers_per_node or _in_jax_group()


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
