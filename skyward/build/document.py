"""The shape of an image's TOML file, and what is wrong with one in words.

What the values mean is for `Image` to check. Without pydantic: loading it takes 50 ms, a third of what `skyward build`
may take for an image that exists, and the shape is this one table.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

from skyward.errors import ConfigError


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_table_of_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_text, value.values()))


def _is_base(value: Any) -> bool:
    known = isinstance(value, dict) and "dockerfile" in value and value.keys() <= {"dockerfile", "context", "target"}
    return _is_text(value) or (known and _is_table_of_texts(value))


def _is_project(value: Any) -> bool:
    fits = {"path": _is_text, "groups": _are_texts, "extras": _are_texts, "package": _is_text}
    return _is_text(value) or (
        isinstance(value, dict) and all(key in fits and fits[key](each) for key, each in value.items())
    )


def _are_indexes(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(each, dict)
        and each.keys() == {"url", "packages"}
        and _is_text(each["url"])
        and _are_texts(each["packages"])
        for each in value
    )


def _are_plugins(value: Any) -> bool:
    return _are_texts(value) or (isinstance(value, dict) and all(isinstance(each, dict) for each in value.values()))


_TEXTS = (_are_texts, "a list of texts")
_TABLE = (_is_table_of_texts, "a table of texts")
# key -> whether a value is of its type, and what is wanted, in words
KEYS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "base": (
        _is_base,
        "an image reference, the path of a Dockerfile, or a table with dockerfile and perhaps context and target",
    ),
    "python": (_is_text, "'auto' or a minor version in quotes, such as '3.12'"),
    "apt": _TEXTS,
    "pip": _TEXTS,
    "requirements": _TEXTS,
    "constraints": _TEXTS,
    "groups": _TEXTS,
    "project": (
        _is_project,
        "the directory of a project, or a table with path and perhaps groups, extras and package",
    ),
    "pip_indexes": (_are_indexes, "tables [[pip_indexes]], each with url = '...' and packages = ['...']"),
    "exclude_newer": (
        lambda value: isinstance(value, str | date),  # a time is a date, too
        "a date such as 2026-05-31, or a time with its zone",
    ),
    "build_env": _TABLE,
    "env": _TABLE,
    "run": _TEXTS,
    "secrets": _TEXTS,
    "includes": _TEXTS,
    "excludes": _TEXTS,
    "bake": (lambda value: isinstance(value, bool), "true or false"),
    "lock": (_is_text, "the path of a file that `skyward lock` writes"),
    "platform": (_is_text, "a text such as 'linux/amd64'"),
    "plugins": (_are_plugins, "a list of names, or tables [plugins.NAME] with the plugin's parameters"),
    "accelerator": (_is_text, "a text such as 'A100' or 'A100:4'"),
    "nodes": (lambda value: type(value) is int, "a whole number, at least 1"),
}


def read(path: Path) -> dict[str, Any]:
    """What a file sets, of the right types.

    Raises:
        ConfigError: it cannot be read, or a key or type is wrong; one line for each.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.") from None
    if problems := [sentence for key, value in values.items() for sentence in _problems(key, value)]:
        raise ConfigError("\n".join(f"{path}: {sentence}" for sentence in problems))
    return values


def _problems(key: str, value: Any) -> Iterator[str]:
    if key not in KEYS:
        from difflib import get_close_matches

        close = get_close_matches(key, KEYS, n=3)
        hint = f"Did you mean {' or '.join(close)}?" if close else f"Known keys: {', '.join(KEYS)}."
        yield f"there is no key {key!r}. {hint}"
        return
    fits, wanted = KEYS[key]
    if fits(value):
        return
    parts: Iterable[tuple[object, Any]]
    if fits is _are_texts and isinstance(value, list):
        parts = enumerate(value)
    elif fits is _is_table_of_texts and isinstance(value, dict):
        parts = value.items()
    else:
        yield f"{key} must be {wanted}; found {value!r}."
        return
    for name, each in parts:
        if not _is_text(each):
            yield f"{key}.{name} must be a text; found {each!r}."
