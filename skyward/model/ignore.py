"""The spelling of patterns of files to leave out, in the format of .dockerignore."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from itertools import groupby

from skyward.errors import ConfigError

WANTED = "patterns as a .dockerignore file has them, such as '**/*.csv' or '!data/small.csv'"
_INVALID = re.compile(r"\[\^?\]|\[[^\]]*$|(?<!\\)(\\\\)*\\$")  # an empty or open class, nothing after a backslash


def normal_patterns(patterns: Iterable[str]) -> tuple[str, ...]:
    """Return patterns in canonical order and spelling: order matters only between those with and without `!`.

    Raises:
        ConfigError: a pattern is invalid.
    """
    cleaned = [pattern for text in patterns if (pattern := _clean(text))]
    if unread := [pattern for pattern in cleaned if _INVALID.search(pattern)]:
        raise ConfigError(f"Image: excludes must be {WANTED}; found {unread[0]!r}.")
    runs = groupby(cleaned, lambda pattern: pattern.startswith("!"))
    return tuple(pattern for _, run in runs for pattern in sorted(set(run)))


def _clean(text: str) -> str:
    """Return a pattern without insignificant parts: surrounding space, slashes at its ends, `.` and `..` within."""
    pattern = text.strip()
    mark = "!" if pattern.startswith("!") else ""
    pattern = pattern.removeprefix("!").strip()
    if mark and not pattern:
        raise ConfigError(f"Image: excludes must be {WANTED}; found {text!r}, which takes nothing back.")
    before, cleaned = "", pattern
    while cleaned != before:  # a slash may hide a space, and a space a slash
        before, cleaned = cleaned, posixpath.normpath(cleaned).lstrip("/").strip()
    if cleaned.startswith("!"):
        cleaned = "\\" + cleaned  # a name that begins with "!", not another exception
    return mark + cleaned if cleaned not in ("", ".") else ""
