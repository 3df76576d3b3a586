"""Frameworks that a function is decorated for: told before a node starts where the image of its pool brings none.

A decorator of `sky.integrations` installs nothing. Which functions a pool is for is known where `@sky.pool` decorates
the function that calls them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from skyward.runtime.environment import declared_frameworks

if TYPE_CHECKING:
    from skyward._pool.pool import ComputePool
    from skyward.model.image import Image

_PLUGINS = {"transformers": "huggingface"}  # those that are called otherwise than their framework


def tell_missing(main: Callable[..., Any], pool: ComputePool) -> None:
    """Say of each framework that functions called by `main` are decorated for, and the pool lacks, what brings it."""
    needed = {framework: name for name, fn in _used(main) for framework in declared_frameworks(fn)}
    if not needed:
        return
    here = pool._settings.provider.name == "local"
    image = None if here else pool._image()
    for framework, name in needed.items():
        decorated = f"{name}() is decorated with @sky.integrations.{framework}, which installs nothing"
        plugin = f"plugins=[sky.plugins.{_PLUGINS.get(framework, framework)}()]"
        if image is None and importlib.util.find_spec(framework) is None:
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
