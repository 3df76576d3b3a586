"""Where hosts come from: Docker on this machine (the default), plain processes."""

from skyward.providers.base import Provider
from skyward.providers.docker import Docker
from skyward.providers.local import Local

__all__ = ["Docker", "Local", "Provider", "default"]


def default() -> Provider:
    """The provider of pools that name none: containers of this machine's Docker engine."""
    return Docker()
