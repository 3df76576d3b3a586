"""Matching of the files to leave out: patterns in the format of .dockerignore, by `pathspec`.

A pattern is matched against a whole path relative to the root, and against the paths of the directories above it:
`*.pyc` matches files in the root only, `**/*.pyc` all. A pattern that begins with `!` re-includes what earlier ones
left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from skyward.errors import ConfigError
from skyward.model.ignore import WANTED, normal_patterns

if TYPE_CHECKING:
    from pathspec import PathSpec


class Ignore:
    """Compiled patterns; the last one that matches a path decides.

    Attributes:
        has_exceptions: whether a pattern re-includes files, so that an ignored directory may contain wanted ones.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        cleaned = normal_patterns(patterns)
        self._spec = _spec(cleaned) if cleaned else None
        self.has_exceptions = any(pattern.startswith("!") for pattern in cleaned)

    def __call__(self, path: str) -> bool:
        """Return whether a path, relative to the root and with `/` between its parts, is left out."""
        return self._spec is not None and self._spec.match_file(path)


def _spec(patterns: Sequence[str]) -> PathSpec[Any]:
    """Compile patterns as those of a .gitignore that are all relative to its folder, where the last match decides."""
    # not loaded if there is nothing to ignore
    from pathspec import PathSpec
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    lines = [f"!/{pattern[1:]}" if pattern.startswith("!") else f"/{pattern}" for pattern in patterns]
    try:
        return PathSpec.from_lines(GitIgnoreSpecPattern, lines)
    except (ValueError, re.error) as error:  # a range such as [z-a]
        raise ConfigError(f"Image: excludes must be {WANTED}; found {list(patterns)!r} ({error}).") from None
