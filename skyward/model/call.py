"""Protocols of calls and their targets, shared by the expression language and the pool."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from skyward.errors import ConfigError

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
    def retries(self) -> int: ...  # how often to run again if the worker is lost during the call


class Target(Protocol):
    """Anything calls can be sent to."""

    def _run(self, call: Call[R_co]) -> R_co:
        """Run once, on one node."""
        ...

    def _broadcast(self, call: Call[R_co]) -> list[R_co]:
        """Run once on every node; the list's index is the node."""
        ...

    def _run_async(self, call: Call[R_co]) -> Future[R_co]:
        """Run in the background."""
        ...

    def _run_parallel(self, calls: tuple[Call[Any], ...], *, return_exceptions: bool) -> tuple[Any, ...]:
        """Run all concurrently; return the results, and exceptions if asked, in the order of the calls."""
        ...

    def _run_stream(self, calls: tuple[Call[Any], ...], *, ordered: bool, return_exceptions: bool) -> Iterator[Any]:
        """Run all concurrently; yield the same as they arrive, in the order of the calls if `ordered`."""
        ...


class Series(Protocol):
    """Background calls that share large arguments."""

    def run_async(self, fn: Callable[..., Any], args: tuple[Any, ...], *, name: str) -> Future[Any]:
        """Run `fn(*args)`, named `name` in errors, on a node. Cancelling the future stops the call."""
        ...


class OpenPool(Protocol):
    """What plugins use of a pool while it is open."""

    _dask: Any

    @property
    def id(self) -> str: ...
    @property
    def total_slots(self) -> int: ...
    @property
    def is_active(self) -> bool: ...
    @property
    def _settings(self) -> Any: ...
    @property
    def _progress(self) -> Any: ...
    def current_nodes(self) -> int: ...
    def _head(self) -> Any: ...
    def _series(self) -> Series: ...


# names from pools and functions of other libraries, and what to write instead
_OF_OTHERS = {
    **dict.fromkeys(("submit", "apply_async", "spawn"), "For a future write `f(x) > pool`."),
    **dict.fromkeys(("apply", "call", "remote", "run"), "Write `f(x) >> pool`."),
    "broadcast": "Write `f(x) @ pool`.",
    **dict.fromkeys(("imap", "imap_unordered"), "Write `sky.gather(*calls, stream=True) >> pool`."),
    **dict.fromkeys(("starmap", "gather"), "Write `sky.gather(*calls) >> pool`, with calls such as `f(1, 2)`."),
    **dict.fromkeys(("shutdown", "stop", "terminate"), "The end of the `with` block, or `close()`, ends it."),
    **dict.fromkeys(("nodes", "num_nodes", "size"), "`current_nodes()` counts its nodes."),
}


class CallsOnly:
    """Base of right operands of `>>`, `@` and `>`: raises a helpful error if the left operand is not a call."""

    __array_ufunc__ = None  # numpy would apply the operator to each element

    if not TYPE_CHECKING:  # without these operators, type checkers report the error themselves

        def __rrshift__(self, other: object) -> NoReturn:
            remedy = (
                "Give it calls as `gather(*calls) >> pool`."
                if isinstance(other, list | tuple)
                else "Decorate the function with `@sky.compute`: `f(1)` is a call then, and not its result."
            )
            raise TypeError(
                f"A pool takes calls of compute functions, found {reprlib.repr(other)} of type {type(other).__name__} "
                f"on the left of the operator. {remedy}"
            )

        __rmatmul__ = __lt__ = __rrshift__

        def __rshift__(self, other: object) -> NoReturn:
            raise TypeError(
                "The call stands on the left and the pool on the right, as in `call >> pool`; found a pool left of "
                f"{other!r}."
            )

        __matmul__ = __rshift__

        def __aenter__(self) -> NoReturn:
            raise TypeError("A pool is opened by `with`, also in `async def`; `await (f(x) > pool)` waits for a call.")

        __aexit__ = __aenter__

        def __getattr__(self, name: str) -> NoReturn:
            remedy = _OF_OTHERS.get(name)
            hint = f" {remedy}" if remedy else ""
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}.{hint}", name=name, obj=self
            )


def checked_timeout(seconds: Any) -> float | None:
    """Return a limit on a call's run, in seconds, after checking it.

    Raises:
        ConfigError: it is invalid.
    """
    if isinstance(seconds, bool) or (seconds is not None and not (isinstance(seconds, int | float) and seconds > 0)):
        raise ConfigError(f"A timeout is a number of seconds above 0, or None for no limit; found {seconds!r}.")
    return seconds


def checked_retries(retries: Any) -> int:
    """Return how often a call is run again, after checking it.

    Raises:
        ConfigError: it is invalid.
    """
    if not isinstance(retries, int) or isinstance(retries, bool) or retries < 0:
        once = ": for once write retries=1" if retries is True else ""
        raise ConfigError(f"retries is how often a call is run again, at least 0; found {retries!r}{once}.")
    return retries
