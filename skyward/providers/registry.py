"""Providers by name: the built-in ones, and those that installed packages offer as `skyward.providers` entry points."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from skyward.errors import ConfigError
from skyward.model.extensions import Extensions
from skyward.providers import HOMES
from skyward.providers.base import Provider

BUILT_IN: Mapping[str, str] = {
    name: f"{home}:{name}" for name, home in HOMES.items() if name not in ("Fallback", "Provider")
}
PROVIDERS = Extensions(
    kind="provider", result="Provider", group="skyward.providers", built_in=BUILT_IN, error=ConfigError
)


def names() -> list[str]:
    """The names of all providers that can be had, sorted."""
    return PROVIDERS.names()


def load(name: str) -> Callable[..., Provider]:
    """The class, or function, that makes the provider of that name.

    Raises:
        UnknownNameError: there is none; the message offers names that come close.
        ConfigError: several packages offer it, or the one that does cannot be imported.
    """
    return PROVIDERS.load(name)
