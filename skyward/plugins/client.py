"""The client's half of plugins: change the image, enter contexts around the open pool, choose what nodes are sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from skyward.errors import PluginError
from skyward.model.image import Image
from skyward.model.secrets import Secrets
from skyward.model.spec import Cluster
from skyward.plugins.base import HOOKS, WORKER_HOOKS, Plugin, check_pickles, hook_failed
from skyward.plugins.node import Entered, Hook, NodeSetup, Step

_LISTS = ("apt", "pip", "requirements", "groups", "run", "secrets", "includes")
_STAYS: dict[str, Any] = {hook: None for hook in HOOKS if hook not in WORKER_HOOKS} | {
    "secrets": Secrets(),
    "pool_secrets": None,
}


def transform_all(image: Image, plugins: Sequence[Plugin], cluster: Cluster) -> Image:
    """The image with what all plugins add, in their order; `Image.origins` says what each one added.

    Raises:
        PluginError: a transform failed, returned something else, or took away what was there.
    """
    for plugin in plugins:
        if plugin.transform is not None:
            image = _transform(image, plugin, cluster)
    return image


def _transform(image: Image, plugin: Plugin, cluster: Cluster) -> Image:
    from skyward.image.plan import with_origin  # brings the compiler

    assert plugin.transform is not None
    try:
        after = plugin.transform(image, cluster)
    except Exception as error:  # a third party's code
        raise hook_failed(plugin.name, "transform", error) from error
    if not isinstance(after, Image):
        raise PluginError(
            f"Plugin {plugin.name!r}: its transform hook must return the changed Image, as in "
            f"`return image.pip_install(...)`; it returned {type(after).__name__}."
        )
    now = _entries(after)
    if gone := [entry for entry in _entries(image) if entry not in now]:
        raise PluginError(
            f"Plugin {plugin.name!r}: its transform hook took {', '.join(gone)} out of the image. A plugin adds to "
            "what is there: build on the image it is given, as `image.pip_install(...)` does."
        )
    return with_origin(image, after, f"plugin {plugin.name}")


def _entries(image: Image) -> list[str]:
    """What a plugin may not take away."""
    entries = [f"{field}={entry!r}" for field in _LISTS for entry in getattr(image, field)]
    return entries + [f"{package!r} from {index.url}" for index in image.pip_indexes for package in index.packages]


def node_setup(plugins: Sequence[Plugin], cluster: Cluster, *, several_processes: bool = False) -> NodeSetup:
    """What every worker of the pool is sent: the bootstrap steps and the hooks that run there.

    Raises:
        PluginError: a bootstrap hook failed, or one of its ops is none or cannot be pickled.
    """
    steps = [step for plugin in plugins for step in _steps(plugin, cluster)]
    kept = tuple(replace(plugin, **_STAYS) for plugin in plugins)
    return NodeSetup(tuple(steps), kept, several_processes)


def _steps(plugin: Plugin, cluster: Cluster) -> list[Step]:
    if plugin.bootstrap is None:
        return []
    try:
        ops = plugin.bootstrap(cluster)
    except Exception as error:  # a third party's code
        raise hook_failed(plugin.name, "bootstrap", error) from error
    found = list(_flat(ops))
    for op in found:
        if not isinstance(op, str) and not callable(op):
            raise PluginError(
                f"Plugin {plugin.name!r}: its bootstrap hook must return shell commands and functions; found a "
                f"{type(op).__name__}."
            )
        check_pickles(op, plugin.name, "bootstrap")
    return [Step(plugin.name, number, len(found), op) for number, op in enumerate(found, 1)]


def _flat(op: Any) -> Iterator[Any]:
    if isinstance(op, list | tuple):
        for inner in op:
            yield from _flat(inner)
    else:
        yield op


@contextmanager
def around_client(plugins: Sequence[Plugin], pool: object, cluster: Cluster) -> Iterator[None]:
    """Enter the plugins' contexts around an open pool, in their order; leave them in reverse.

    Raises:
        PluginError: one failed; those entered have been left.
    """
    entered = Entered(
        Hook(plugin.name, "around_client", partial(plugin.around_client, pool, cluster))
        for plugin in plugins
        if plugin.around_client is not None
    )
    try:
        yield
    finally:
        entered.close()
