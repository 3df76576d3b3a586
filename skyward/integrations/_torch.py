"""`@sky.integrations.torch`: a process group of all ranks around the calls of one function."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeVar, overload

from skyward.errors import ConfigError
from skyward.integrations._decorating import decorated
from skyward.plugins._process_group import enter_in_call

F = TypeVar("F", bound=Callable[..., Any])
Backend = Literal["nccl", "gloo"] | None


@overload
def torch(fn: F, /) -> F: ...
@overload
def torch(fn: None = None, /, *, backend: Backend = None) -> Callable[[F], F]: ...
def torch(fn: Any = None, /, *, backend: Backend = None) -> Any:
    """Make PyTorch's process group of all ranks before the function runs, on one node as well as on many.

    It is made at the first call, stays for later ones, and is the torch plugin's where the pool has that. Outside a
    pool the function runs as if it were not decorated.

    Args:
        fn: the function, when used bare.
        backend: of the group; None for nccl where CUDA is available on the worker, else gloo.

    Raises:
        ConfigError: `backend` is none of these.
    """
    return process_group_decorator(fn, "torch", backend)


def process_group_decorator(fn: Any, name: str, backend: Backend) -> Any:
    """The decorator of that name: all that set up PyTorch's process group and nothing else."""
    if backend not in (None, "nccl", "gloo"):
        raise ConfigError(f"@sky.integrations.{name}: backend takes 'nccl', 'gloo' or None; found {backend!r}.")
    return decorated(fn, name, partial(enter_in_call, backend=backend), collective=True)
