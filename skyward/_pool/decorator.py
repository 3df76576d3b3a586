"""`sky.pool`: a `ComputePool` around a function's run, or around a `with` block.

Importing this, and decorating, creates and loads nothing: nodes do both when they import a user's module.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

if TYPE_CHECKING:
    from skyward._pool.pool import ComputePool

    _compute_pool = ComputePool
else:

    def _compute_pool(*args, **kwargs):
        from skyward._pool.pool import ComputePool

        return ComputePool(*args, **kwargs)


P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")


class PoolScope:
    """A pool to be opened: by the call of a function that it decorates, or by `with`. Each opens a fresh pool."""

    def __init__(self, make: Callable[[], ComputePool]) -> None:
        self._make = make
        self._pools: list[ComputePool] = []

    def __call__(self, fn: Callable[Q, R], /) -> Callable[Q, R]:
        """Open a pool around each call of `fn`; what it returns or raises passes through.

        Raises:
            TypeError: `fn` is asynchronous or a generator, and would run after the pool has gone.
        """
        if not callable(fn):
            raise TypeError(f"@sky.pool(...) decorates a function, found {fn!r}.")
        if inspect.iscoroutinefunction(fn) or inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
            raise TypeError(
                f"@sky.pool decorates ordinary functions; {fn.__name__} is asynchronous or a generator and would run "
                "after the pool has gone. Write `with sky.pool(...):` inside it."
            )

        @functools.wraps(fn)
        def around(*args: Q.args, **kwargs: Q.kwargs) -> R:
            from skyward._pool.frameworks import tell_missing

            pool = self._make()
            tell_missing(fn, pool)
            with pool:
                return fn(*args, **kwargs)

        return around

    def __enter__(self) -> ComputePool:
        pool = self._make()
        pool.__enter__()
        self._pools.append(pool)
        return pool

    def __exit__(self, *reason: Any) -> None:  # noqa: PYI036 - passed on as they are
        self._pools.pop().__exit__(*reason)


class PoolDecorator(Generic[P]):
    """A pool while a function runs (`@sky.pool`, `@sky.pool(...)`) or a block (`with sky.pool(...) as p`).

    Takes the parameters of `ComputePool`. The pool is the target of `>> sky` inside the function or block. Every call
    of the decorated function opens a fresh pool, and closes it also when the function raises.
    """

    def __init__(self, make: Callable[P, ComputePool]) -> None:
        self._make = make

    # a function could be a provider as well, for all a type checker knows
    @overload
    def __call__(self, fn: Callable[Q, R], /) -> Callable[Q, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> PoolScope: ...
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and inspect.isroutine(args[0]):
            return PoolScope(self._make)(args[0])
        return PoolScope(functools.partial(self._make, *args, **kwargs))

    def __reduce__(self) -> str:
        return "pool"


pool = PoolDecorator(_compute_pool)
