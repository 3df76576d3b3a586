"""Patterns of files to leave out, in the format of .dockerignore. Standard library only; nothing is read from disk.

A pattern is matched against a whole path relative to the root, and against the paths of the directories above it:
`*.pyc` matches files in the root only, `**/*.pyc` all. A pattern that begins with `!` re-includes what earlier ones
left out.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, groupby

from skyward.errors import ConfigError

WANTED = "patterns as a .dockerignore file has them, such as '**/*.csv' or '!data/small.csv'"


def normal_patterns(patterns: Iterable[str]) -> tuple[str, ...]:
    """Return patterns in canonical order and spelling: order matters only between those with and without `!`.

    Raises:
        ConfigError: a pattern is invalid.
    """
    cleaned = [pattern for text in patterns if (pattern := _clean(text))]
    for pattern in cleaned:
        _regex(pattern.removeprefix("!"))
    runs = groupby(cleaned, lambda pattern: pattern.startswith("!"))
    return tuple(pattern for _, run in runs for pattern in sorted(set(run)))


class Ignore:
    """Compiled patterns; the last one that matches a path decides.

    Attributes:
        has_exceptions: whether a pattern re-includes files, so that an ignored directory may contain wanted ones.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        cleaned = normal_patterns(patterns)
        self._rules = [(not pattern.startswith("!"), _regex(pattern.removeprefix("!"))) for pattern in cleaned]
        self.has_exceptions = any(pattern.startswith("!") for pattern in cleaned)

    def __call__(self, path: str) -> bool:
        """Return whether a path, relative to the root and with `/` between its parts, is left out."""
        left_out = False
        paths = list(accumulate(path.split("/"), posixpath.join))
        for leaves_out, regex in self._rules:
            if leaves_out != left_out and any(regex.fullmatch(each) for each in paths):
                left_out = leaves_out
        return left_out


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


@lru_cache(maxsize=512)
def _regex(pattern: str) -> re.Pattern[str]:
    """Compile a pattern by the rules of Go's `filepath.Match`, with `**` for any number of directories."""
    parts: list[str] = []
    position = 0
    while position < len(pattern):
        rest = pattern[position:]
        if found := re.match(r"\*\*+/?", rest):
            parts.append("(?:.*/)?" if found.end() < len(rest) else ".*")
        elif found := re.match(r"[*?]", rest):
            parts.append("[^/]*" if rest[0] == "*" else "[^/]")
        elif found := re.match(r"\[(\^?)((?:[^\\\]-]|\\.)(?:-(?:[^\\\]-]|\\.))?)+\]", rest, re.DOTALL):
            parts.append(_class(found.group()))
        elif found := re.match(r"\\(.)|([^\\\[])", rest, re.DOTALL):
            parts.append(re.escape(found[1] or found[2]))
        else:
            raise ConfigError(f"Image: excludes must be {WANTED}; found {pattern!r}, wrong from {rest!r} on.")
        position += found.end()
    try:
        return re.compile("".join(parts), re.DOTALL)
    except re.error as error:  # a range such as [z-a]
        raise ConfigError(f"Image: excludes must be {WANTED}; found {pattern!r} ({error.msg}).") from None


def _class(text: str) -> str:
    """Translate a character class such as `[^a-c]` to the syntax of `re`; it never matches a slash."""
    negated = text.startswith("[^")
    inner = text[2:-1] if negated else text[1:-1]
    chars = re.findall(r"\\.|[^\\]", inner, re.DOTALL)
    body = "".join("-" if char == "-" else re.escape(char[-1]) for char in chars)
    return f"(?!/)[{'^' if negated else ''}{body}]"
