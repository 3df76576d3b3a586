"""Reads an image's TOML file. `Image` checks the values, each by itself, so that all mistakes are reported at once."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from datetime import date
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from skyward.errors import ConfigError
from skyward.model.image import Dockerfile, Image, PipIndex, Project
from skyward.model.image_fields import without_logins
from skyward.model.spec import Accelerator, Nodes

KEYS = (*(each.name for each in fields(Image) if each.name != "origins"), "plugins", "accelerator", "nodes")
_TABLES = {
    "base": "an image reference, the path of a Dockerfile, or a table with dockerfile and perhaps context and target",
    "project": "the directory of a project, or a table with path and perhaps groups, extras and package",
    "pip_indexes": "tables [[pip_indexes]], each with url = '...' and packages = ['...']",
    "plugins": "a list of names, or tables [plugins.NAME] with the plugin's parameters",
}


def read(path: Path) -> dict[str, Any]:
    """Return the values of an image file: arguments of `Image`, plugins by name, accelerator and number of nodes.

    Raises:
        ConfigError: the file cannot be read, or a key or a value is wrong: one line for each mistake.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8-sig"))  # Windows' editors write a byte order mark
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.") from None
    mistakes = []
    for key, value in values.items():
        try:
            values[key] = _argument(key, value)
        except ConfigError as error:
            mistakes.append(f"{path}: {str(error).removeprefix('Image: ')}")
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return values


def _argument(key: str, value: Any) -> Any:
    if key not in KEYS:
        close = get_close_matches(key, KEYS, n=3)
        hint = f"Did you mean {' or '.join(close)}?" if close else f"Known keys: {', '.join(KEYS)}."
        raise ConfigError(f"there is no key {key!r}. {hint}")
    if key == "accelerator":
        return Accelerator.of(value)
    if key == "nodes":
        return Nodes.of(value).desired
    try:
        match key:
            case "plugins" if isinstance(value, list) and set(map(type, value)) <= {str}:
                return {name: {} for name in value}
            case "plugins":
                return {**value}
            case "base" if isinstance(value, dict):
                own = {"path": value["dockerfile"], **value}
                value = Dockerfile(**{name: each for name, each in own.items() if name != "dockerfile"})
            case "project":
                value = Project(**value) if isinstance(value, dict) else Project(value)
            case "pip_indexes":
                value = [PipIndex(**each) for each in value]
            case "exclude_newer" if isinstance(value, date):  # a datetime is also a date
                value = value.isoformat()
    except (TypeError, KeyError, AttributeError):
        raise ConfigError(without_logins(f"{key} must be {_TABLES[key]}; found {value!r}.")) from None
    Image(**{key: value})
    return value
