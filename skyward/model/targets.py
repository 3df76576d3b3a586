"""Defaults of an image's target: the Python of the client, and the platform of its machine."""

from __future__ import annotations

import platform
import sys

from skyward.errors import ConfigError
from skyward.model.protocol import PLATFORMS


def local_minor() -> str:
    """The client's minor version of Python, such as "3.11"."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def platform_of(architecture: str | None) -> str:
    """The OCI platform of an architecture's name; None means this machine's."""
    name = (architecture or platform.machine()).lower()
    if name not in PLATFORMS:
        raise ConfigError(f"architecture must be 'x86_64' or 'arm64'; found {architecture!r}.")
    return PLATFORMS[name]
