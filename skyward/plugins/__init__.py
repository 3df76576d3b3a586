"""Plugins: what frameworks add to a pool. `sky.plugins.<name>` is looked up in the registry on first use."""

from collections.abc import Callable

from skyward.plugins.base import Plugin, check
from skyward.plugins.client import around_client, node_setup, transform_all

__all__ = ["Plugin", "around_client", "check", "node_setup", "transform_all"]


def __getattr__(name: str) -> Callable[..., Plugin]:
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from skyward.plugins import registry  # reading package metadata takes as long as all of skyward

    return registry.load(name)


def __dir__() -> list[str]:
    from skyward.plugins import registry

    return sorted({*globals(), *registry.names()})
