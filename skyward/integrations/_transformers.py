"""`@sky.integrations.transformers`: the ranks of a pool as Hugging Face's Trainer wants them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, overload

from skyward.integrations._torch import Backend, process_group_decorator

F = TypeVar("F", bound=Callable[..., Any])


@overload
def transformers(fn: F, /) -> F: ...
@overload
def transformers(fn: None = None, /, *, backend: Backend = None) -> Callable[[F], F]: ...
def transformers(fn: Any = None, /, *, backend: Backend = None) -> Any:
    """Make PyTorch's process group of all ranks before the function runs; the Trainer finds it and trains on all.

    The same as `@sky.integrations.torch`, with which it can be combined.

    Args:
        fn: the function, when used bare.
        backend: of the group; None for nccl where CUDA is available on the worker, else gloo.

    Raises:
        ConfigError: `backend` is none of these.
    """
    return process_group_decorator(fn, "transformers", backend)
