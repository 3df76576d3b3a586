"""Where hosts come from: Docker on this machine (the default), plain processes."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skyward.providers.base import Provider
    from skyward.providers.docker import Docker
    from skyward.providers.local import Local

# loaded on first use: whoever wants one of them, or the images of an engine, need not wait for the others
_HOMES = {
    "Docker": "skyward.providers.docker",
    "Local": "skyward.providers.local",
    "Provider": "skyward.providers.base",
}

__all__ = ["Docker", "Local", "Provider", "default"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def default() -> Provider:
    """The provider of pools that name none: containers of this machine's Docker engine."""
    from skyward.providers.docker import Docker

    return Docker()
