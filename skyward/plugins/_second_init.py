"""`init_process_group` and `destroy_process_group` of user code, in a process whose group is skyward's.

Programs written for other launchers call both. The group exists already and outlives the call, so the first does
nothing if it asks for the same group, and the second does nothing at all. Each warns once.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from types import FunctionType
from typing import Any

from skyward.errors import ConfigError

_originals: dict[str, FunctionType] = {}  # by name; empty unless user code is redirected
_warned: set[str] = set()


def redirect() -> None:
    """From now on, calls of the two functions come here, whichever reference to them user code holds.

    A file that says `from torch.distributed import init_process_group` at its top is loaded before a decorator's group
    is made, and holds the function itself. So the function object stays and its code is replaced.
    """
    from torch.distributed import distributed_c10d

    for name, stand_in in (("init_process_group", _init), ("destroy_process_group", _destroy)):
        function = getattr(distributed_c10d, name)
        _originals[name] = _copied(function)
        # a function keeps its closure: its code must name as many variables of it, and uses none
        function.__code__ = stand_in.__code__.replace(co_freevars=function.__code__.co_freevars)


def restore() -> None:
    """Give both functions their own code back."""
    from torch.distributed import distributed_c10d

    for name, original in _originals.items():
        getattr(distributed_c10d, name).__code__ = original.__code__
    _originals.clear()


def original(name: str) -> Callable[..., Any]:
    """Torch's own function of that name."""
    from torch.distributed import distributed_c10d

    found: Callable[..., Any] = _originals.get(name) or getattr(distributed_c10d, name)
    return found


def init_again(*args: Any, **kwargs: Any) -> Any:
    """What `init_process_group` does while the group is there.

    Raises:
        ConfigError: it asks for another rank, world or backend than the group has.
    """
    import torch.distributed as dist

    init = original("init_process_group")
    if not dist.is_initialized():  # torch's internals were used to end it
        return init(*args, **kwargs)
    asked = inspect.signature(dist.init_process_group).bind(*args, **kwargs).arguments
    agree(asked.get("backend"), rank=asked.get("rank"), world_size=asked.get("world_size"))
    _warn_once(
        "init_process_group()",
        f"the group is there already ({dist.get_backend()}, rank {dist.get_rank()} of {dist.get_world_size()}) and is "
        "kept: this call does nothing.",
    )
    return None


def destroy_again(group: Any = None) -> None:
    """What `destroy_process_group` does while the group is there: it destroys other groups, but not this one."""
    import torch.distributed as dist

    if group is not None and group is not dist.group.WORLD:
        original("destroy_process_group")(group)
        return
    _warn_once(
        "destroy_process_group()",
        "the group of all ranks serves later calls too and is destroyed when the worker ends: this call does nothing.",
    )


def agree(backend: str | None, *, rank: int | None = None, world_size: int | None = None) -> None:
    """Check that what is asked for is what the group has.

    A backend that this machine cannot use (nccl without a GPU) is accepted: programs for GPUs then run on CPU pools.

    Raises:
        ConfigError: it is something else.
    """
    import torch.distributed as dist

    have = dist.get_backend()
    names = {part.rpartition(":")[2] for part in str(backend).lower().split(",")} if backend is not None else set()
    if have not in names and any(map(_usable, names)):
        raise ConfigError(
            f"The process group of this pool uses {have}, and {backend} is asked for. Name the backend where the group "
            f"is made: sky.plugins.torch(backend={backend!r}) or @sky.integrations.torch(backend={backend!r})."
        )
    for name, asked, found in (("rank", rank, dist.get_rank()), ("world_size", world_size, dist.get_world_size())):
        if asked not in (None, -1, found):
            raise ConfigError(
                f"init_process_group({name}={asked}): in the group of this pool this process has {name} {found}. "
                f"Leave {name}= out."
            )


def _usable(backend: str) -> bool:
    import torch
    import torch.distributed as dist

    return dist.is_backend_available(backend) and (backend != "nccl" or torch.cuda.is_available())


def _warn_once(what: str, text: str) -> None:
    if what not in _warned:
        _warned.add(what)
        warnings.warn(f"{what}: {text}", stacklevel=4)  # the line in user code


def _copied(function: FunctionType) -> FunctionType:
    """A function that does what this one does now."""
    copy = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


# The code of these two runs among the globals of torch's module, where this module's names are unknown.
def _init(*args: Any, **kwargs: Any) -> Any:
    from skyward.plugins._second_init import init_again

    return init_again(*args, **kwargs)


def _destroy(*args: Any, **kwargs: Any) -> Any:
    from skyward.plugins._second_init import destroy_again

    return destroy_again(*args, **kwargs)
