"""`sky.pool`: a `ComputePool` around a function's run, or around a `with` block.

Importing this, and decorating, creates and loads nothing: nodes do both when they import a user's module. Before a pool
opens around a function, it is said which frameworks its image lacks: a decorator of `sky.integrations` installs
nothing, and which functions a pool is for is known here.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

if TYPE_CHECKING:
    from skyward._pool.pool import ComputePool
    from skyward.model.image import Image

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
            pool = self._make()
            _tell_missing(fn, pool)
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


# frameworks that functions are decorated for ------------------------------------------------------------------------

_PLUGINS = {"transformers": "huggingface"}  # those that are called otherwise than their framework


def _tell_missing(main: Callable[..., Any], pool: ComputePool) -> None:
    """Say of each framework that functions called by `main` are decorated for, and the pool lacks, what brings it."""
    from importlib.util import find_spec

    from skyward.runtime.environment import declared_frameworks

    needed = {framework: name for name, fn in _used(main) for framework in declared_frameworks(fn)}
    if not needed:
        return
    here = pool._settings.provider.name == "local"
    image = None if here else pool._image()
    for framework, name in needed.items():
        decorated = f"{name}() is decorated with @sky.integrations.{framework}, which installs nothing"
        plugin = f"plugins=[sky.plugins.{_PLUGINS.get(framework, framework)}()]"
        if image is None and find_spec(framework) is None:
            pool._progress.tell(
                f"{decorated}, and the interpreter that sky.Local() runs nodes with has no {framework}."
            )
        elif image is not None and not _may_bring(image, framework):
            pool._progress.tell(
                f"{decorated}, and the pool's image names no {framework}: unless its base or another package brings "
                f'it, add {plugin}, or "{framework}" to Image(pip=[...]).'
            )


def _may_bring(image: Image, package: str) -> bool:
    """Whether an image names a package, or lists of packages that are not read here."""
    from skyward.model.image import requirement_name

    beyond = image.base, image.requirements, image.groups, image.project, image.run
    return any(beyond) or package in {requirement_name(entry) for entry in image.pip}


def _used(main: Callable[..., Any]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The compute functions that a function mentions, by itself and through functions of its module; by their names."""
    todo, seen = [main] if isinstance(main, FunctionType) else [], set[int]()
    while todo:
        fn = todo.pop()
        if id(fn) in seen:
            continue
        seen.add(id(fn))
        closed = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
        for name in set(_names(fn.__code__)):
            value = closed[name].cell_contents if name in closed else fn.__globals__.get(name)
            inner = getattr(value, "fn", None) if type(value).__module__ == "skyward._compute" else None
            if callable(inner):
                yield name, inner
            elif isinstance(value, FunctionType) and value.__module__ == fn.__module__:
                todo.append(value)


def _names(code: CodeType) -> Iterator[str]:
    """The names of globals, attributes and closed-over variables in some code, functions inside it included."""
    yield from code.co_names
    yield from code.co_freevars
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
