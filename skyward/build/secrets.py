"""The values of an image's secrets: read when a build needs them, and given to nobody else.

The secret NAME is the environment variable NAME, or the content of the file that SKYWARD_SECRET_NAME_FILE names (its
name in capitals, with '_' for '-' and '.').
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from skyward.errors import ConfigError


def secret_values(names: Iterable[str], environ: Mapping[str, str] = os.environ) -> dict[str, bytes]:
    """Each secret's value.

    Raises:
        ConfigError: one of them is not set, or its file cannot be read.
    """
    return {name: _value(name, environ) for name in names}


def _value(name: str, environ: Mapping[str, str]) -> bytes:
    variable = f"SKYWARD_SECRET_{name.upper().replace('-', '_').replace('.', '_')}_FILE"
    if file := environ.get(variable):
        try:
            return Path(file).expanduser().read_bytes()
        except OSError as error:
            raise ConfigError(
                f"{variable} names {file!r} for the secret {name!r}, but it cannot be read: {error.strerror}."
            ) from None
    if name in environ:
        return environ[name].encode("utf-8", "surrogateescape")
    raise ConfigError(
        f"The image's build reads the secret {name!r}, which has no value here. Set the environment variable {name}, "
        f"or {variable} to a file that holds it."
    )
