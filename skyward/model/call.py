"""The shape of a call and of what takes calls, shared by the expression language and the pool.

Also which of the open pools `>> sky` means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

from skyward.errors import NoActivePoolError
from skyward.model.instance import InstanceInfo

R_co = TypeVar("R_co", covariant=True)


class Call(Protocol[R_co]):
    """One function with its arguments, not yet run."""

    @property
    def fn(self) -> Callable[..., R_co]: ...
    @property
    def args(self) -> tuple[Any, ...]: ...
    @property
    def kwargs(self) -> Mapping[str, Any]: ...
    @property
    def timeout(self) -> float | None: ...  # seconds from the start of the run; None for no limit
    @property
    def retries(self) -> int: ...  # how often to run again when the worker is lost in mid-call


class Target(Protocol):
    """Anything calls can be sent to."""

    def run(self, call: Call[R_co]) -> R_co:
        """Run once, on one node."""
        ...

    def broadcast(self, call: Call[R_co]) -> list[R_co]:
        """Run once on every node; the list's index is the node."""
        ...

    def run_async(self, call: Call[R_co]) -> Future[R_co]:
        """Run in the background."""
        ...

    def run_parallel(self, calls: tuple[Call[Any], ...]) -> tuple[Any, ...]:
        """Run all at once; results in the order of the calls."""
        ...

    def run_stream(self, calls: tuple[Call[Any], ...], *, ordered: bool) -> Iterator[Any]:
        """Run all at once; results as they arrive, in the order of the calls if `ordered`."""
        ...


_opened: ContextVar[tuple[Target, ...]] = ContextVar("skyward_opened_pools", default=())  # here, the innermost last
_open: list[Target] = []  # those of all contexts that have not been left; in other lists they may stay for longer


def enter_target(target: Target) -> Callable[[], None]:
    """Note that a pool is open, and was opened in this context; the returned function, called anywhere, ends that."""
    _open.append(target)
    _opened.set((*_still_open(_opened.get()), target))
    return lambda: _open.remove(target)


def active_target(asker: str, remedy: str) -> Target:
    """The pool opened last in this context and still open; where this context has none, the only one that is open.

    Args:
        asker: what wants a pool; starts the sentence of an error.
        remedy: what to do where no pool is open.

    Raises:
        NoActivePoolError: no pool is open, or other contexts (threads, asyncio tasks) have opened several.
    """
    candidates = _still_open(_opened.get())[-1:] or tuple(_open)
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise NoActivePoolError(
            f"{asker} means the active pool, and this thread or task has opened none, while others have opened "
            f"{len(candidates)}: {', '.join(map(repr, candidates))}. Name the pool that is meant."
        )
    place = InstanceInfo.current()
    if place is not None:
        raise NoActivePoolError(
            f"{asker} means the active pool, and no pool is open in this function, which runs on node {place.node} of "
            "one. Nodes do not send calls to their own pool: return what comes next, and let the client send it."
        )
    raise NoActivePoolError(f"{asker} means the active pool, but none is open. {remedy}")


def _still_open(targets: tuple[Target, ...]) -> tuple[Target, ...]:
    return tuple(target for target in targets if any(target is each for each in tuple(_open)))
