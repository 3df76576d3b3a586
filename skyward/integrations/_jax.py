"""The `jax` decorator: the ranks that run a function as one JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from skyward.integrations._decorating import decorated
from skyward.plugins._jax_group import join

F = TypeVar("F", bound=Callable[..., Any])


@overload
def jax(fn: F, /) -> F: ...
@overload
def jax(fn: None = None, /) -> Callable[[F], F]: ...
def jax(fn: Any = None, /) -> Any:
    """Let all ranks of the pool be one JAX when this function runs: `jax.devices()` are those of all of them.

    Below `@sky.compute` (or above it), bare or called. `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES`,
    `JAX_PROCESS_ID` and, with GPUs, `JAX_LOCAL_DEVICE_COUNT` are set, and `jax.distributed.initialize()` is called,
    once per process: at the first call, which is to be made with `@`. What JAX had computed in the process before is
    lost then. Nothing is done with one rank, outside a pool, and where the plugin has done it.

    Raises:
        PluginError: in the call: a rank is missing, or cannot reach rank 0; or the first call is not made with `@`.
    """
    return decorated(fn, "jax", join, collective=True)
