"""The `keras` decorator: Keras with the right backend, its devices and its seed, around the calls of one function."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, overload

from skyward.integrations._decorating import decorated
from skyward.model.instance import InstanceInfo
from skyward.plugins import _process_group, _tensorflow_cluster
from skyward.plugins._keras_process import VARIABLE, Backend, before_call, checked, join_jax
from skyward.runtime.environment import is_collective, on_every_rank

F = TypeVar("F", bound=Callable[..., Any])
Join = Callable[[InstanceInfo], None]


@overload
def keras(backend: F, /) -> F: ...
@overload
def keras(backend: Backend | None = None, seed: int | None = None) -> Callable[[F], F]: ...
def keras(backend: Any = None, seed: int | None = None) -> Any:
    """Let the function run with this backend of Keras, also where its file imports keras at its top.

    Where the worker has loaded Keras with another backend, a fresh process takes its place first; where that cannot be
    (other calls run in it, or it is part of a group), the call fails and says so.

    Each rank trains for itself, on its part of the data. With `@sky.integrations.jax` on the same function, or the jax
    plugin, the ranks of a call made with `@` train one model; see `sky.plugins.keras`. With "torch" the ranks form
    PyTorch's process group, with "tensorflow" `TF_CONFIG` describes them, in calls made with `@`.

    Args:
        backend: "jax" (also for None), "torch" or "tensorflow"; or the function, when used bare.
        seed: given to `keras.utils.set_random_seed` before each call; None does not, unless ranks train one model.

    Raises:
        ConfigError: the backend or seed is none; or the function asks for another backend already.
    """
    if callable(backend):
        return _decorate(backend, backend="jax", seed=None)
    name = backend or "jax"
    checked("@sky.integrations.keras(...)", name, seed)
    return partial(_decorate, backend=name, seed=seed)


def _decorate(fn: Any, *, backend: str, seed: int | None) -> Any:
    join = _JOIN.get(backend)
    if backend == "jax" and is_collective(getattr(fn, "fn", fn)):  # the jax decorator is below this one
        join = join_jax
    prepare = partial(_prepare, backend=backend, seed=seed, join=join)
    return decorated(fn, "keras", prepare, env={VARIABLE: backend}, collective=join is not None)


def _prepare(info: InstanceInfo, *, backend: str, seed: int | None, join: Join | None) -> None:
    if join is not None and info.total_workers > 1 and on_every_rank():
        join(info)
    before_call(info, backend=backend, seed=seed)


_JOIN: dict[str, Join] = {
    "torch": _process_group.enter_in_call,
    "tensorflow": _tensorflow_cluster.join,
}
