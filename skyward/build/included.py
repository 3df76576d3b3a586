"""The files that `Image.includes` means: found below a root, without what `Image.excludes` leaves out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from skyward.errors import ConfigError
from skyward.model.ignore import Ignore


def included_files(includes: Iterable[str | Path], excludes: Sequence[str], root: Path) -> Iterator[tuple[str, Path]]:
    """Files and directories as pairs: the path they have on a node, relative to its `sys.path`, and where they are.

    What lies below the root keeps its path from there, anything else its name. Patterns apply to these paths. A link
    to a directory is not followed, since it may lead back; what is no file is left out.

    Raises:
        ConfigError: a path does not exist.
    """
    ignored = Ignore(excludes)
    for include in includes:
        start = Path(os.path.normpath(root / Path(include).expanduser()))
        if not start.exists():
            raise ConfigError(f"Image(includes=...) names {str(include)!r}, which does not exist in {root}.")
        yield from _walk(start, root if start.is_relative_to(root) else start.parent, ignored)


def _walk(path: Path, root: Path, ignored: Ignore) -> Iterator[tuple[str, Path]]:
    relative = path.relative_to(root).as_posix()
    left_out = relative != "." and ignored(relative)
    if path.is_dir():
        if not left_out or ignored.has_exceptions:
            for inner in sorted(path.iterdir()):
                if not (inner.is_dir() and inner.is_symlink()):
                    yield from _walk(inner, root, ignored)
    elif path.is_file() and not left_out:
        yield relative, path
