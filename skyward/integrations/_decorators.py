"""Framework decorators: they set up a framework on the worker before the decorated function runs.

Each works with and without parentheses, below and above `@sky.compute`. Outside a pool the function runs unchanged. No
framework is imported here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, TypeVar, overload

from skyward._compute import ComputeFunction
from skyward.errors import ConfigError
from skyward.model.instance import InstanceInfo, place_of_worker
from skyward.plugins import _jax, _tensorflow, _torch
from skyward.plugins._keras import VARIABLE, Backend, before_call, checked, join_jax
from skyward.runtime import environment

F = TypeVar("F", bound=Callable[..., Any])
Prepare = Callable[[InstanceInfo], object]
TorchBackend = Literal["nccl", "gloo"] | None

_NOTHING: Mapping[str, str] = {}


@overload
def torch(fn: F, /) -> F: ...
@overload
def torch(fn: None = None, /, *, backend: TorchBackend = None) -> Callable[[F], F]: ...
def torch(fn: Any = None, /, *, backend: TorchBackend = None) -> Any:
    """Create PyTorch's process group of all ranks before the function runs, on one node as well as on many.

    The group is created at the first call and reused by later ones; if the pool has the torch plugin, the plugin's
    group is used.

    Args:
        fn: the function, when used bare.
        backend: of the group; None for nccl if CUDA is available on the worker, else gloo.

    Raises:
        ConfigError: `backend` is none of these.
    """
    return _process_group_decorator(fn, "torch", backend)


@overload
def transformers(fn: F, /) -> F: ...
@overload
def transformers(fn: None = None, /, *, backend: TorchBackend = None) -> Callable[[F], F]: ...
def transformers(fn: Any = None, /, *, backend: TorchBackend = None) -> Any:
    """Create PyTorch's process group of all ranks before the function runs; Hugging Face's Trainer then uses all.

    The same as `@sky.integrations.torch`, with which it can be combined.

    Args:
        fn: the function, when used bare.
        backend: of the group; None for nccl if CUDA is available on the worker, else gloo.

    Raises:
        ConfigError: `backend` is none of these.
    """
    return _process_group_decorator(fn, "transformers", backend)


def _process_group_decorator(fn: Any, name: str, backend: TorchBackend) -> Any:
    if backend not in (None, "nccl", "gloo"):
        raise ConfigError(f"@sky.integrations.{name}: backend takes 'nccl', 'gloo' or None; found {backend!r}.")
    return decorated(fn, name, partial(_torch.enter_in_call, backend=backend), collective=True)


@overload
def jax(fn: F, /) -> F: ...
@overload
def jax(fn: None = None, /) -> Callable[[F], F]: ...
def jax(fn: Any = None, /) -> Any:
    """Connect the ranks of the pool as one JAX cluster when this function runs: `jax.devices()` lists all devices.

    `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES`, `JAX_PROCESS_ID` and `JAX_LOCAL_DEVICE_COUNT` are set, and
    `jax.distributed.initialize()` is called, once per process: at the first call, which must be made with `@`. Arrays
    that JAX computed in the process before that are lost. With one rank, or if the plugin has done it already, nothing
    happens.

    Raises:
        PluginError: in the call: a rank is missing, or cannot reach rank 0; or the first call is not made with `@`.
    """
    return decorated(fn, "jax", _jax.join, collective=True)


@overload
def tensorflow(fn: F, /) -> F: ...
@overload
def tensorflow(fn: None = None, /) -> Callable[[F], F]: ...
def tensorflow(fn: Any = None, /) -> Any:
    """Set `TF_CONFIG` to the addresses of all ranks, for `tf.distribute.MultiWorkerMirroredStrategy` in the function.

    The function must be called with `@`, and creates the strategy itself; see `sky.plugins.tensorflow`. With one rank
    nothing happens.
    """
    return decorated(fn, "tensorflow", _tensorflow.join, collective=True)


@overload
def keras(backend: F, /) -> F: ...
@overload
def keras(backend: Backend | None = None, seed: int | None = None) -> Callable[[F], F]: ...
def keras(backend: Any = None, seed: int | None = None) -> Any:
    """Run the function with this Keras backend, even if its file imports keras at the top.

    If the worker has loaded Keras with another backend, a new process replaces it first. If that is impossible (other
    calls run in it, or it is part of a group), the call fails with an error that names both backends.

    Each rank trains a separate model on its part of the data. With `@sky.integrations.jax` on the same function, or the
    jax plugin, the ranks of a call made with `@` train one model; see `sky.plugins.keras`. With "torch" the ranks form
    PyTorch's process group, with "tensorflow" `TF_CONFIG` lists them, in calls made with `@`.

    Args:
        backend: "jax" (also for None), "torch" or "tensorflow"; or the function, when used bare.
        seed: passed to `keras.utils.set_random_seed` before each call; None sets none, unless ranks train one model.

    Raises:
        ConfigError: the backend or seed is invalid; or the function already asks for another backend.
    """
    if callable(backend):
        return _with_keras(backend, backend="jax", seed=None)
    name = backend or "jax"
    checked("@sky.integrations.keras(...)", name, seed)
    return partial(_with_keras, backend=name, seed=seed)


def _with_keras(fn: Any, *, backend: str, seed: int | None) -> Any:
    join = _KERAS_JOIN.get(backend)
    if backend == "jax" and environment.is_collective(getattr(fn, "fn", fn)):  # the jax decorator is below this one
        join = join_jax
    prepare = partial(_prepare_keras, backend=backend, seed=seed, join=join)
    return decorated(fn, "keras", prepare, env={VARIABLE: backend}, collective=join is not None)


def _prepare_keras(info: InstanceInfo, *, backend: str, seed: int | None, join: Prepare | None) -> None:
    if join is not None and info.total_workers > 1 and environment.on_every_rank():
        join(info)
    before_call(info, backend=backend, seed=seed)


_KERAS_JOIN: dict[str, Prepare] = {"torch": _torch.enter_in_call, "tensorflow": _tensorflow.join}


def decorated(
    fn: Callable[..., Any] | None,
    name: str,
    prepare: Prepare,
    *,
    env: Mapping[str, str] = _NOTHING,
    collective: bool = False,
) -> Any:
    """Return the decorated function, or the decorator itself if it was called with settings only.

    Args:
        fn: the function to decorate, None in the called form.
        name: the decorator's name, for errors.
        prepare: called on the worker before each call of the function, with the worker's place. It must be picklable,
            and ensures itself that per-process set-up happens only once (`skyward.runtime.environment`).
        env: variables that are set in the worker before the function is loaded there.
        collective: whether the ranks of the function form one group.

    Raises:
        ConfigError: `fn` is not a function.
    """
    if fn is None:
        return partial(decorated, name=name, prepare=prepare, env=env, collective=collective)
    if isinstance(fn, ComputeFunction):  # above @sky.compute: decorate the function that it wraps
        inner = _around(fn.fn, prepare, env, collective)
        return ComputeFunction(inner, timeout=fn.timeout, retries=fn.retries)
    if not callable(fn):
        raise ConfigError(
            f"@sky.integrations.{name} decorates a function; found {fn!r}. Settings are given by name, as in "
            f"@sky.integrations.{name}(...)."
        )
    return _around(fn, prepare, env, collective)


def _around(fn: Callable[..., Any], prepare: Prepare, env: Mapping[str, str], collective: bool) -> Callable[..., Any]:
    @functools.wraps(fn)  # pickled by value if `fn` is in __main__, so it must not use mutable state of this module
    def around(*args: Any, **kwargs: Any) -> Any:
        prepared(prepare)
        return fn(*args, **kwargs)

    return environment.declare(around, env, collective=collective, prepare=prepare)


def prepared(prepare: Prepare) -> None:
    """Set up what the function needs, if it runs in a pool."""
    info = place_of_worker()
    if info is not None:
        prepare(info)
