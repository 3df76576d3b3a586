"""`sky.pool`: a `ComputePool` that is open while a function or a `with` block runs.

Importing this module and decorating create and load nothing, since nodes do both when they import a user's module.
Before a pool opens for a function, frameworks that its image lacks are reported: decorators of `sky.integrations`
install nothing, and the functions that will use the pool are known here.
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
            _tell_missing(fn, pool)
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


# frameworks that functions are decorated for ------------------------------------------------------------------------

_PLUGINS = {"transformers": "huggingface"}  # plugins whose name differs from their framework's


def _tell_missing(main: Callable[..., Any], pool: ComputePool) -> None:
    """Report each framework that functions used by `main` are decorated for and the pool lacks, and how to add it."""
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
    """Return whether an image names a package, or may install it by means that are not examined here."""
    from skyward.model.image import requirement_name

    beyond = image.base, image.requirements, image.groups, image.project, image.run
    return any(beyond) or package in {requirement_name(entry) for entry in image.pip}


def _used(main: Callable[..., Any]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield names and compute functions that a function refers to, directly or through functions of its module."""
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
    """Yield the names of globals, attributes and closure variables in some code, including nested functions."""
    yield from code.co_names
    yield from code.co_freevars
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
