"""The search for the files of `Image.includes` and of local projects, without excluded, ignored and secret ones."""

from __future__ import annotations

import glob
import os
import stat
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

from skyward.builder.events import readable, warn
from skyward.builder.files.ignore import Ignore
from skyward.builder.files.left_out import (
    DockerRules,
    GitRules,
    credential_kind,
    docker_rules,
    git_rules,
    git_rules_above,
    is_ignored,
)
from skyward.errors import ConfigError

_MANY_BYTES = 50 * 10**6  # enough for a warning
_MANY_FILES = 10_000
Files = dict[str, Path]  # local paths by the path on a node, relative to its `sys.path`
LISTED = 10  # names in a message
_MOST_FILES = 100_000  # more suggest a folder named by mistake, such as a home directory
_SAY_AFTER_S = 1.0
_KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def included_files(includes: Iterable[str | Path], excludes: Sequence[str], root: Path) -> Files:
    """Return the files of `Image(includes=...)` by name, sorted. Warns of large totals with the largest files.

    Files below the root keep their path relative to it, others their last name. An entry that does not exist may be a
    shell pattern. A named file is always taken. Within folders, files matched by `excludes`, `.gitignore` and
    `.dockerignore` are left out. A link to a file is followed within the folder, a link to a folder within the root.

    Args:
        includes: paths of files and folders, absolute or relative to the root.
        excludes: patterns for the names, in the format of a .dockerignore file.
        root: base of relative paths.

    Raises:
        ConfigError: a path does not exist or cannot be read; a folder contains entries that are not taken silently
            (files that look like credentials, links that lead out, pipes, sockets, devices) or over 100,000 files; two
            files would have the same name; nothing is left of a folder.
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
    """Return the files of a Python project that its build may need, as pairs of name and path.

    A build needs no credentials: files that look like them are left out, with a warning that names them.

    Raises:
        ConfigError: a file or folder cannot be read, or there are over 100,000 files.
    """
    search = Search(Ignore(excludes))
    # single files may be linked from anywhere, as LICENSE often is in a repository of several projects
    search.walk(folder, Scope(base=folder, files_within=("/",), folders_within=(os.path.realpath(folder),), git=None))
    if search.refused:
        listed = "; ".join(f"{name}: {why}" for name, why in list(search.refused.items())[:LISTED])
        warn(
            f"{len(search.refused)} entries of the project {folder} are kept out of its build. {listed}. If the "
            "package needs one, make a wheel of it and name that."
        )
    return tuple(sorted(search.files.items()))


def largest(files: Mapping[str, Path]) -> str:
    """List the ten largest of these files with their sizes, as text for users."""
    sizes = {name: facts(path).st_size for name, path in files.items()}
    most = sorted(sizes, key=lambda name: -sizes[name])[:LISTED]
    return ", ".join(f"{name} ({readable(sizes[name])})" for name in most)


def total_size(files: Mapping[str, Path]) -> int:
    """Return the total size of these files in bytes."""
    return sum(facts(path).st_size for path in files.values())


@dataclass(frozen=True, slots=True)
class _Entry:
    """A path from `includes`: its text and location; `is_named` unless it was found by a pattern."""

    text: str
    path: Path
    is_named: bool = True


def _entries(text: str, root: Path) -> Iterator[_Entry]:
    """Yield the paths that an entry of `includes` refers to."""
    try:
        expanded = Path(text).expanduser()
    except RuntimeError:  # a user without an account, and HOME is not set
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
    """Add a file, or the files of a folder."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The rules for a folder being searched.

    Attributes:
        base: base of the names of files.
        files_within: real paths of the folders to which links to files may lead.
        folders_within: real paths of the folders to which links to folders may lead.
        above: real paths of the enclosing folders and the folder itself, to detect links that lead back.
        git: rules of the `.gitignore` files so far; None if they are not used.
        docker: rules of the `.dockerignore` files.
    """

    base: Path
    files_within: tuple[str, ...]
    folders_within: tuple[str, ...]
    above: tuple[str, ...] = ()
    git: tuple[GitRules, ...] | None = ()
    docker: tuple[DockerRules, ...] = ()

    def name(self, path: Path) -> str:
        """Return the path of a file on nodes, relative to a directory of `sys.path`."""
        return path.relative_to(self.base).as_posix()

    def ignores(self, path: Path, *, is_folder: bool) -> bool:
        """Return whether an ignore file excludes a path, with no exception below it."""
        by_docker = any(
            rules.leaves_out(path) and not (is_folder and rules.ignore.has_exceptions) for rules in self.docker
        )
        return by_docker or is_ignored(self.git or (), path, is_folder=is_folder and not path.is_symlink())


class Search:
    """One search for files.

    Attributes:
        files: the files found.
        refused: names not taken silently, and the reasons: credentials, links that lead out, special files.
        ignored: names excluded by ignore files.
    """

    def __init__(self, excluded: Ignore, named: frozenset[Path] = frozenset()) -> None:
        """`excluded` matches names; `named` are paths that are taken separately, unconditionally."""
        self._excluded, self._named = excluded, named
        self._began, self._is_told = monotonic(), False
        self.files: Files = {}
        self.refused: dict[str, str] = {}
        self.ignored: list[str] = []

    def excludes(self, name: str, *, is_folder: bool) -> bool:
        """Return whether the user's own patterns exclude a name, with no exception below it."""
        return self._excluded(name) and not (is_folder and self._excluded.has_exceptions)

    def walk(self, folder: Path, scope: Scope) -> None:
        """Visit everything in a folder."""
        entries = _entries_of(folder)
        git = None if scope.git is None else (*scope.git, *git_rules(folder))
        inner = replace(scope, above=(*scope.above, os.path.realpath(folder)), git=git)
        for path in entries:
            if path not in self._named:
                self.visit(path, inner)

    def visit(self, path: Path, scope: Scope) -> None:
        """Take a file, or everything in a folder, unless it is excluded."""
        is_folder, name = path.is_dir(), scope.name(path)
        if self.excludes(name, is_folder=is_folder):
            return
        if scope.ignores(path, is_folder=is_folder):
            self.ignored.append(name)
        elif path.is_symlink():
            self._follow(path, scope, is_folder=is_folder)
        elif is_folder:
            self.walk(path, scope)
        elif reason := _not_a_file(path) or _credentials(name, path):
            self.refused[name] = reason
        else:
            self._keep(name, path)

    def _follow(self, path: Path, scope: Scope, *, is_folder: bool) -> None:
        """Take the target of a link if it may be followed; skip links that lead nowhere or back."""
        real, name = os.path.realpath(path), scope.name(path)
        allowed = scope.folders_within if is_folder else scope.files_within
        if not path.exists() or any(_is_within(folder, real) for folder in scope.above):
            return
        if not any(_is_within(real, folder) for folder in allowed):
            self.refused[name] = f"a link that leads out, to {real}"
        elif is_folder:
            self.walk(path, replace(scope, files_within=(*scope.files_within, real)))
        elif reason := _not_a_file(path) or _credentials(name, path) or _credentials(real.lstrip("/"), path):
            self.refused[name] = reason
        else:
            self._keep(name, path)

    def take(self, path: Path, scope: Scope) -> None:
        """Take a named file, whatever it contains.

        Raises:
            ConfigError: it is not a regular file, or another file has the same name.
        """
        if kind := _not_a_file(path):
            raise ConfigError(f"Image(includes=...) names {str(path)!r}, which is {kind}, not a file.")
        self._keep(scope.name(path), path)

    def _keep(self, name: str, path: Path) -> None:
        other = self.files.setdefault(name, path)
        if other != path and os.path.realpath(other) != os.path.realpath(path):
            raise ConfigError(
                f"Image(includes=...) names two files that would both be {name!r} on nodes: {other} and {path}. What "
                "is outside of the working directory keeps only its last name there: rename one of them."
            )
        self._count()

    def _count(self) -> None:
        """Report a slow search, and stop if there are so many files that a folder was named by mistake."""
        count = len(self.files)
        if not self._is_told and monotonic() - self._began > _SAY_AFTER_S:
            self._is_told = True
            warn(f"looking for the files of Image(includes=...): {count:,} so far")
        if count > _MOST_FILES:
            tops = Counter("/".join(name.split("/")[:2]) for name in self.files)
            listed = ", ".join(f"{top} ({number:,})" for top, number in tops.most_common(LISTED))
            raise ConfigError(
                f"More than {_MOST_FILES:,} files are named to be sent to other machines; most are in: {listed}. Name "
                "only folders of code (Image(includes=...)), leave data out (excludes=[...]), and put it where nodes "
                "can read it, such as in a volume."
            )


def facts(path: Path) -> os.stat_result:
    """Return the status (size, times) of a file, or of the target of a link.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return path.stat()
    except OSError as error:
        raise _unreadable(path, error) from None


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _entries_of(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise _unreadable(folder, error) from None


def _not_a_file(path: Path) -> str | None:
    return _KINDS.get(stat.S_IFMT(facts(path).st_mode))


def _credentials(name: str, path: Path) -> str | None:
    try:
        kind = credential_kind(name, path)
    except OSError as error:
        raise _unreadable(path, error) from None
    return f"it seems to hold credentials: {kind}" if kind else None


def _unreadable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"{path} cannot be sent to other machines, because it cannot be read: {error.strerror}. Make it readable, or "
        "leave it out (excludes=[...])."
    )
