"""Plugins: what frameworks add to a pool. `sky.plugins.<name>` is looked up in the registry on first use."""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from skyward.plugins.base import Plugin, check

if TYPE_CHECKING:
    from skyward.plugins.client import around_client, node_setup, transform_all

__all__ = ["Plugin", "around_client", "check", "node_setup", "transform_all"]


def __getattr__(name: str) -> Callable[..., Any]:
    if name in __all__:  # the client's half, which nodes never ask for
        made: Callable[..., Any] = getattr(import_module("skyward.plugins.client"), name)
        return made
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from skyward.plugins.registry import load  # what reads package metadata takes as long to import as all of skyward

    return load(name)


def __dir__() -> list[str]:
    from skyward.plugins.registry import names

    return sorted({*globals(), *__all__, *names()})
