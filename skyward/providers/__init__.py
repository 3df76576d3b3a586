"""Providers of machines: Docker (the default), processes, SSH, clouds, compose files, Slurm, Kubernetes.

`sky.providers.NAME` is one of these, or a provider that an installed package registers as an entry point
`skyward.providers`.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skyward.model.extensions import Extensions
    from skyward.providers.aws.provider import AWS
    from skyward.providers.base import Provider
    from skyward.providers.compose import Compose
    from skyward.providers.docker import Docker
    from skyward.providers.fallback import Fallback
    from skyward.providers.gcp.provider import GCP
    from skyward.providers.kubernetes.provider import Kubernetes
    from skyward.providers.local import Local
    from skyward.providers.slurm.provider import Slurm
    from skyward.providers.ssh import SSH

# loaded on first use, since importing all of them takes long
HOMES = {
    "AWS": "skyward.providers.aws.provider",
    "GCP": "skyward.providers.gcp.provider",
    "Fallback": "skyward.providers.fallback",
    "Compose": "skyward.providers.compose",
    "Docker": "skyward.providers.docker",
    "Kubernetes": "skyward.providers.kubernetes.provider",
    "Local": "skyward.providers.local",
    "Provider": "skyward.providers.base",
    "SSH": "skyward.providers.ssh",
    "Slurm": "skyward.providers.slurm.provider",
}

__all__ = [
    "AWS",
    "GCP",
    "SSH",
    "Compose",
    "Docker",
    "Fallback",
    "Kubernetes",
    "Local",
    "Provider",
    "Slurm",
    "default",
]


def __getattr__(name: str) -> Any:
    if name in HOMES:
        return getattr(import_module(HOMES[name]), name)
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return extensions().load(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *extensions().names()})


@cache
def extensions() -> Extensions:
    """Return the providers available by name: the built-in ones, and those registered by installed packages."""
    from skyward.errors import ConfigError
    from skyward.model.extensions import Extensions

    built_in = {name: f"{home}:{name}" for name, home in HOMES.items() if name not in ("Fallback", "Provider")}
    return Extensions(
        kind="provider", result="Provider", group="skyward.providers", built_in=built_in, error=ConfigError
    )


def default() -> Provider:
    """Return the provider of pools that name none: containers of this machine's Docker engine."""
    from skyward.providers.docker import Docker

    return Docker()
