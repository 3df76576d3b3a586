"""Patterns of files to leave out, as a .dockerignore file has them. Standard library only; nothing is read from disk.

A pattern is matched against a whole path relative to the root, and against those of the directories above it: `*.pyc`
means files of the root itself, `**/*.pyc` all. A pattern that begins with `!` takes back what those before it left out.
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
    """Patterns in their one order and spelling: only that between those with and those without `!` means something.

    Raises:
        ConfigError: a pattern cannot be read.
    """
    cleaned = [pattern for text in patterns if (pattern := _clean(text))]
    for pattern in cleaned:
        _regex(pattern.removeprefix("!"))
    runs = groupby(cleaned, lambda pattern: pattern.startswith("!"))
    return tuple(pattern for _, run in runs for pattern in sorted(set(run)))


class Ignore:
    """Compiled patterns; the last one that matches a path decides.

    Attributes:
        has_exceptions: whether a pattern takes files back, so that an ignored directory may hold wanted ones.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        cleaned = normal_patterns(patterns)
        self._rules = [(not pattern.startswith("!"), _regex(pattern.removeprefix("!"))) for pattern in cleaned]
        self.has_exceptions = any(pattern.startswith("!") for pattern in cleaned)

    def __call__(self, path: str) -> bool:
        """Whether a path, relative to the root and with `/` between its parts, is left out."""
        left_out = False
        paths = list(accumulate(path.split("/"), posixpath.join))
        for leaves_out, regex in self._rules:
            if leaves_out != left_out and any(regex.fullmatch(each) for each in paths):
                left_out = leaves_out
        return left_out


def _clean(text: str) -> str:
    """A pattern without what makes no difference: space around it, slashes at its ends, `.` and `..` within."""
    pattern = text.strip()
    mark = "!" if pattern.startswith("!") else ""
    pattern = pattern.removeprefix("!").strip()
    if mark and not pattern:
        raise ConfigError(f"Image: excludes must be {WANTED}; found {text!r}, which takes nothing back.")
    before, cleaned = "", pattern
    while cleaned != before:  # a slash may hide a space, and a space a slash
        before, cleaned = cleaned, posixpath.normpath(cleaned).lstrip("/").strip()
    if cleaned.startswith("!"):
        cleaned = "\\" + cleaned  # a name that begins so, not one more exception
    return mark + cleaned if cleaned not in ("", ".") else ""


@lru_cache(maxsize=512)
def _regex(pattern: str) -> re.Pattern[str]:
    """The rules of Go's `filepath.Match`, and `**` for any number of directories."""
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
    """A class of characters such as `[^a-c]` in the words of `re`; it never matches a slash."""
    negated = text.startswith("[^")
    inner = text[2:-1] if negated else text[1:-1]
    chars = re.findall(r"\\.|[^\\]", inner, re.DOTALL)
    body = "".join("-" if char == "-" else re.escape(char[-1]) for char in chars)
    return f"(?!/)[{'^' if negated else ''}{body}]"
