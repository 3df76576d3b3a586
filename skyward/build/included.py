"""The files that `Image.includes` means, and those of a local project: without what is excluded, ignored or secret."""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from skyward.build.events import readable
from skyward.build.file_search import LISTED, Files, Scope, Search, facts
from skyward.build.ignore_files import docker_rules, git_rules_above
from skyward.build.notices import warn
from skyward.errors import ConfigError
from skyward.model.ignore import Ignore

_MANY_BYTES = 50 * 10**6  # worth a word
_MANY_FILES = 10_000


def included_files(includes: Iterable[str | Path], excludes: Sequence[str], root: Path) -> Files:
    """The files of `Image(includes=...)` by their names, sorted. A log line names the largest where they are large.

    What lies below the root keeps its path from there, anything else its last name. An entry that does not exist may
    be a pattern as shells have them. A file that is named is taken, whatever it is. Of a folder are left out: what
    `excludes` matches, and what `.gitignore` and `.dockerignore` files do. A link to a file is followed within the
    folder, one to a folder within the root.

    Args:
        includes: paths of files and folders, absolute or relative to the root.
        excludes: patterns in the form of a .dockerignore file, for the names.
        root: the directory that relative paths start from.

    Raises:
        ConfigError: a path does not exist or cannot be read; a folder holds what is not taken silently (files that look
            like credentials, links that lead out, pipes, sockets, devices) or over 100,000 files; two files would
            have one name; nothing is left of a folder.
    """
    entries = [entry for include in includes for entry in _entries(str(include), root)]
    search = Search(Ignore(excludes), frozenset(entry.path for entry in entries if entry.is_named))
    for entry in entries:
        _add(entry, search, root)
    if search.refused:
        raise ConfigError(_refusal(search.refused))
    files = dict(sorted(search.files.items()))
    _tell_of_size(files)
    return files


def project_files(folder: Path, excludes: Sequence[str]) -> tuple[tuple[str, Path], ...]:
    """The files of a Python project that a build of it may need, as pairs of name and place.

    A build needs no credentials: files that look like some are left out, and a log line names them.

    Raises:
        ConfigError: a file or folder cannot be read, or there are over 100,000 files.
    """
    search = Search(Ignore(excludes))
    # single files may be linked from anywhere: in a repository of several projects, LICENSE often is
    search.walk(folder, Scope(base=folder, files_within=("/",), folders_within=(os.path.realpath(folder),), git=None))
    if search.refused:
        listed = "; ".join(f"{name}: {why}" for name, why in list(search.refused.items())[:LISTED])
        warn(
            f"{len(search.refused)} entries of the project {folder} are kept out of its build. {listed}. If the "
            "package needs one, make a wheel of it and name that."
        )
    return tuple(sorted(search.files.items()))


def largest(files: Mapping[str, Path]) -> str:
    """The ten largest of these files, with their sizes, as words for people."""
    sizes = {name: facts(path).st_size for name, path in files.items()}
    most = sorted(sizes, key=lambda name: -sizes[name])[:LISTED]
    return ", ".join(f"{name} ({readable(sizes[name])})" for name in most)


def total_size(files: Mapping[str, Path]) -> int:
    """Bytes of all these files together."""
    return sum(facts(path).st_size for path in files.values())


@dataclass(frozen=True, slots=True)
class _Entry:
    """A path that `includes` gives: as it is written, and where it is; `is_named` unless a pattern found it."""

    text: str
    path: Path
    is_named: bool = True


def _entries(text: str, root: Path) -> Iterator[_Entry]:
    """The paths that an entry of `includes` means."""
    try:
        expanded = Path(text).expanduser()
    except RuntimeError:  # a user without an account, where HOME is not set
        raise ConfigError(
            f"Image(includes=...) names {text!r}, but there is no home directory: HOME is not set."
        ) from None
    path = Path(os.path.normpath(root / expanded))
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        found = sorted(glob.glob(str(expanded), root_dir=root, recursive=True)) if glob.has_magic(text) else []  # noqa: PTH207
        if not found:
            raise ConfigError(_missing(text, path, root)) from None
        yield from (_Entry(text, Path(os.path.normpath(root / each)), is_named=False) for each in found)
        return
    except OSError as error:
        raise ConfigError(f"Image(includes=...) names {text!r}, but {path} cannot be read: {error.strerror}.") from None
    if path == path.parent:
        raise ConfigError(f"Image(includes=...) names {text!r}, the whole file system. Name folders of code.")
    yield _Entry(text, path)


def _missing(text: str, path: Path, root: Path) -> str:
    if path.is_symlink():
        return f"Image(includes=...) names {text!r}, a link to {path.readlink()}, which does not exist."
    if Path(text).is_absolute():
        return f"Image(includes=...) names {text!r}, which does not exist."
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    places = (*([Path(script).absolute().parent] if script else []), *root.parents)
    found = next((place / text for place in places if (place / text).exists()), None)
    hint = f" There is {found}, but relative paths start from {root}." if found else ""
    return f"Image(includes=...) names {text!r}, which does not exist in {root}.{hint}"


def _add(entry: _Entry, search: Search, root: Path) -> None:
    """Take a file, or what is to be taken of a folder."""
    path, is_below = entry.path, entry.path.is_relative_to(root)
    real = os.path.realpath(path)
    scope = Scope(
        base=root if is_below else path.parent,
        files_within=(real,),
        folders_within=(real, os.path.realpath(root)) if is_below else (real,),
        git=git_rules_above(path, root),
        docker=tuple(docker_rules(path, root)),
    )
    if not entry.is_named:
        search.visit(path, scope)
    elif not path.is_dir():
        search.take(path, scope)
    else:
        _add_folder(entry, search, scope)


def _add_folder(entry: _Entry, search: Search, scope: Scope) -> None:
    count, ignored = len(search.files), len(search.ignored)
    name = scope.name(entry.path)
    if name != "." and search.excludes(name, is_folder=True):
        raise ConfigError(f"Image(includes=...) names {entry.text!r}, which Image(excludes=...) leaves out.")
    search.walk(entry.path, scope)
    left = search.ignored[ignored:]
    if left and len(search.files) == count and not search.refused:
        raise ConfigError(
            f"Image(includes=...) names {entry.text!r}, but all its files are left out by .gitignore or .dockerignore: "
            f"{', '.join(left[:LISTED])}. Name the files themselves, or change the ignore file."
        )
    if modules := [each for each in left if each.endswith(".py")]:
        warn(
            f"Image(includes=...): of {entry.text!r}, .gitignore or .dockerignore leave out {len(modules)} Python "
            f"files: {', '.join(modules[:LISTED])}. Name them in includes if nodes need them."
        )


def _refusal(refused: Mapping[str, str]) -> str:
    lines = "".join(f"\n  {name}: {why}" for name, why in list(refused.items())[:LISTED])
    more = f"\n  and {len(refused) - LISTED} more" if len(refused) > LISTED else ""
    name = next(iter(refused))
    return (
        f"Image(includes=...) names folders with files that are not sent to other machines silently:{lines}{more}\n"
        f"Leave them out (with_excludes({name!r}), or .gitignore), or name them if nodes need them: "
        f"includes=[..., {name!r}]. Values that only a running function needs are better given as secrets= of the pool."
    )


def _tell_of_size(files: Files) -> None:
    size = total_size(files)
    if size > _MANY_BYTES or len(files) > _MANY_FILES:
        warn(
            f"Image(includes=...) takes {len(files):,} files of {readable(size)}; the largest are {largest(files)}. "
            "Leave out what nodes do not need: excludes=[...] or .gitignore."
        )
