"""The shape of a call and of what takes calls, shared by the expression language and the pool.

Also the innermost open pool, which `>> sky` means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

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


_innermost: ContextVar[Target | None] = ContextVar("skyward_active_pool", default=None)
_open: list[Target] = []


def enter_target(target: Target) -> Callable[[], None]:
    """Make `target` the innermost open pool; the returned function takes that back."""
    token = _innermost.set(target)
    _open.append(target)

    def leave() -> None:
        _open.remove(target)
        try:
            _innermost.reset(token)
        except ValueError:  # left in another context than it was entered in, e.g. by an async test runner
            _innermost.set(None)

    return leave


def active_target() -> Target | None:
    """The innermost open pool of this context; in a thread that has none, the one opened last."""
    return _innermost.get() or (_open[-1] if _open else None)
