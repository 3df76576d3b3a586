"""Where hosts come from: Docker here (the default), compose files, machines by SSH, EC2, Swarm, plain processes."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skyward.providers.aws.provider import AWS
    from skyward.providers.base import Provider
    from skyward.providers.choice import Choice
    from skyward.providers.compose import Compose
    from skyward.providers.docker import Docker
    from skyward.providers.local import Local
    from skyward.providers.ssh import SSH
    from skyward.providers.swarm.provider import Swarm

# loaded on first use: whoever wants one of them, or the images of an engine, need not wait for the others
_HOMES = {
    "AWS": "skyward.providers.aws.provider",
    "Choice": "skyward.providers.choice",
    "Compose": "skyward.providers.compose",
    "Docker": "skyward.providers.docker",
    "Local": "skyward.providers.local",
    "Provider": "skyward.providers.base",
    "SSH": "skyward.providers.ssh",
    "Swarm": "skyward.providers.swarm.provider",
}

__all__ = ["AWS", "SSH", "Choice", "Compose", "Docker", "Local", "Provider", "Swarm", "default"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def default() -> Provider:
    """The provider of pools that name none: containers of this machine's Docker engine."""
    from skyward.providers.docker import Docker

    return Docker()
