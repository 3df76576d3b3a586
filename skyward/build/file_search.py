"""A search for the files of a folder that go to other machines, and for what is not taken from it silently."""

from __future__ import annotations

import os
import stat
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

from skyward.build.credential_files import credential_kind
from skyward.build.ignore_files import DockerRules, GitRules, git_rules, is_ignored
from skyward.build.notices import warn
from skyward.errors import ConfigError
from skyward.model.ignore import Ignore

Files = dict[str, Path]  # by the path on a node, relative to its `sys.path`: where they are

LISTED = 10  # names in a message
_MOST_FILES = 100_000  # where a folder was named by mistake, such as a home directory
_SAY_AFTER_S = 1.0
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What holds in a folder that is searched.

    Attributes:
        base: what the names of files start from.
        files_within: real paths of the folders that links to files may lead to.
        folders_within: of those that links to folders may lead to.
        above: of the folders that it is in, itself included, so that links that lead back are known.
        git: rules of the `.gitignore` files so far; None where they are not asked for.
        docker: rules of the `.dockerignore` files.
    """

    base: Path
    files_within: tuple[str, ...]
    folders_within: tuple[str, ...]
    above: tuple[str, ...] = ()
    git: tuple[GitRules, ...] | None = ()
    docker: tuple[DockerRules, ...] = ()

    def name(self, path: Path) -> str:
        """The path that a file has on nodes, relative to a directory of `sys.path`."""
        return path.relative_to(self.base).as_posix()

    def ignores(self, path: Path, *, is_folder: bool) -> bool:
        """Whether an ignore file leaves a path out, and nothing below it is taken back."""
        by_docker = any(
            rules.leaves_out(path) and not (is_folder and rules.ignore.has_exceptions) for rules in self.docker
        )
        return by_docker or is_ignored(self.git or (), path, is_folder=is_folder and not path.is_symlink())


class Search:
    """One search.

    Attributes:
        files: what was found.
        refused: names of what is not taken silently, and why: credentials, links that lead out, what is no file.
        ignored: names that ignore files have left out.
    """

    def __init__(self, excluded: Ignore, named: frozenset[Path] = frozenset()) -> None:
        """`excluded` goes by names; `named` are paths that are taken on their own, whatever they are."""
        self._excluded, self._named = excluded, named
        self._began, self._is_told = monotonic(), False
        self.files: Files = {}
        self.refused: dict[str, str] = {}
        self.ignored: list[str] = []

    def excludes(self, name: str, *, is_folder: bool) -> bool:
        """Whether the user's own patterns leave a name out, and nothing below it is taken back."""
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
        """Take a file that was found, or everything in a folder, unless it is left out."""
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
        """Take what a link leads to, where it may be followed; one that leads nowhere, or back, is left out."""
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
        """Take a file that is named, whatever it holds.

        Raises:
            ConfigError: it is none, or another one has that name.
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
        """Say what takes its time, and stop where a folder was named by mistake."""
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
    """Size, time and so on of a file, or of what a link leads to.

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
        f"{path} is to be sent to other machines, but cannot be read: {error.strerror}. Make it readable, or leave it "
        "out (excludes=[...])."
    )
