"""The `tensorflow` decorator: the ranks that run a function described in `TF_CONFIG`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from skyward.integrations._decorating import decorated
from skyward.plugins._tensorflow_cluster import join

F = TypeVar("F", bound=Callable[..., Any])


@overload
def tensorflow(fn: F, /) -> F: ...
@overload
def tensorflow(fn: None = None, /) -> Callable[[F], F]: ...
def tensorflow(fn: Any = None, /) -> Any:
    """Set `TF_CONFIG` to the addresses of all ranks, for `tf.distribute.MultiWorkerMirroredStrategy` in the function.

    The function is to be called with `@`. It makes the strategy itself; see `sky.plugins.tensorflow`. Nothing is done
    with one rank and outside a pool.
    """
    return decorated(fn, "tensorflow", join, collective=True)
