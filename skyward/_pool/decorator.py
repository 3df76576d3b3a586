"""`sky.pool`: a `ComputePool` that is open while a function or a `with` block runs.

Importing this module and decorating create and load nothing, since nodes do both when they import a user's module.
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


SCOPE = "__skyward_pool__"  # attribute of a decorated function: its `PoolScope`
P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")


class PoolScope:
    """Opens a new pool for each call of a function that it decorates, and for each `with` block."""

    def __init__(self, make: Callable[[], ComputePool]) -> None:
        self.make = make
        self._pools: list[ComputePool] = []

    def __call__(self, fn: Callable[Q, R], /) -> Callable[Q, R]:
        """Return `fn` wrapped so that a pool is open during each call; results and exceptions pass through.

        Raises:
            TypeError: `fn` is asynchronous or a generator, and would run after the pool has closed.
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
            pool = self.make()
            with pool:
                return fn(*args, **kwargs)

        setattr(around, SCOPE, self)
        return around

    def __enter__(self) -> ComputePool:
        pool = self.make()
        pool.__enter__()
        self._pools.append(pool)
        return pool

    def __exit__(self, *reason: Any) -> None:  # noqa: PYI036 - passed on as they are
        self._pools.pop().__exit__(*reason)


class PoolDecorator(Generic[P]):
    """Opens a pool while a function (`@sky.pool`, `@sky.pool(...)`) or a block (`with sky.pool(...) as p`) runs.

    Takes the parameters of `ComputePool`. The pool is the target of `>> sky` inside the function or block. Every call
    of the decorated function opens a new pool and closes it, even if the function raises.
    """

    def __init__(self, make: Callable[P, ComputePool]) -> None:
        self._make = make

    # to a type checker, a function might also be a provider
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
