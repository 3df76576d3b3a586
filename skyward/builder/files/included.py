"""The search for the files of `Image.includes`, of local packages that functions import and of local projects.

Files that are excluded, ignored by git or look like credentials are left out.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from skyward.builder.events import readable, warn
from skyward.builder.files.ignore import Ignore
from skyward.errors import ConfigError
from skyward.model.image import DEFAULT_EXCLUDES

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

Files = dict[str, Path]  # local paths by the path on a node, relative to its `sys.path`
_Found = tuple[str, Path, str]  # name, location, and why it is refused; "" if it is taken
_GitRules = tuple[tuple[Path, "GitIgnoreSpec"], ...]  # folders with a .gitignore, from the outermost to the innermost
_MANY_BYTES = 50 * 10**6  # enough for a warning
_LISTED = 10  # names in a message
MAX_FILES = 10_000  # of one package; searching them takes a second
_SECRET = re.compile(
    r"(.*/)?(\.(ssh|aws|azure|gnupg|kube)/.*|\.config/gcloud/.*|\.docker/config\.json"
    r"|\.env(rc|\..+)?|.+\.env|id_(rsa|dsa|ecdsa|ed25519)(_sk)?|.+\.(key|p12|pfx)"
    r"|[._]netrc|\.(npmrc|pypirc|git-credentials|pgpass)|pip\.(conf|ini)|kubeconfig"
    r"|(secrets?|credentials?)(\.(toml|ya?ml|json|ini))?)",
    re.IGNORECASE | re.DOTALL,
)
_HARMLESS = re.compile(r"(.*/)?(\.env\.(example|sample|template)|(example|sample|template)\.env)", re.DOTALL)
_KEY = re.compile(rb"-----BEGIN ([A-Z0-9]+ )*PRIVATE KEY( BLOCK)?-----")
_LARGEST_KEY = 256 * 1024  # bytes
_SOURCE = {".py", ".pyi", ".ipynb", ".md", ".rst"}  # code and documents contain examples of keys


def included_files(includes: Iterable[str | Path], excludes: Sequence[str], root: Path) -> Files:
    """Return the files of `Image(includes=...)` by name, sorted. Warns if they are large.

    Files below the root keep their path relative to it, others their last name. An entry that does not exist may be a
    shell pattern. A named file is always taken. Within folders, files matched by `excludes`, `.gitignore` and
    `.dockerignore` are left out. Links are followed within the folder.

    Args:
        includes: paths of files and folders, absolute or relative to the root.
        excludes: patterns for the names, in the format of a .dockerignore file.
        root: base of relative paths.

    Raises:
        ConfigError: a path does not exist or cannot be read; a folder contains entries that are not taken silently
            (files that look like credentials, links that lead out, pipes, sockets, devices); two files would have the
            same name; nothing is left of a folder.
    """
    excluded = Ignore(excludes)
    with _readable():
        entries = [entry for include in includes for entry in _entries(str(include), root)]
        named = frozenset(path for path, is_named in entries if is_named)
        files: Files = {}
        refused: dict[str, str] = {}
        for path, is_named in entries:
            found = list(_search(path, root, excluded, named, is_named=is_named))
            if not found and is_named and any(path.iterdir()):
                raise ConfigError(
                    f"Image(includes=...) names {str(path)!r}, but all its files are left out by excludes=[...], "
                    ".gitignore or .dockerignore. Name the files themselves, or change the patterns."
                )
            refused |= {name: reason for name, _, reason in found if reason}
            for name, file in ((name, file) for name, file, reason in found if not reason):
                if not files.setdefault(name, file).samefile(file):
                    raise ConfigError(
                        f"Image(includes=...) names two files that would both be {name!r} on nodes: {files[name]} and "
                        f"{file}. Files outside of the working directory keep only their last name: rename one."
                    )
        if refused:
            raise ConfigError(_refusal(refused))
        if (size := total_size(files)) > _MANY_BYTES:
            warn(
                f"Image(includes=...) takes {len(files):,} files of {readable(size)}; the largest are "
                f"{largest(files)}. Leave out what nodes do not need: excludes=[...] or .gitignore."
            )
    return dict(sorted(files.items()))


def project_files(folder: Path, excludes: Sequence[str]) -> tuple[tuple[str, Path], ...]:
    """Return the files of a Python project that its build may need, as pairs of name and path.

    A build needs no credentials: files that look like them are left out, with a warning that names them.

    Raises:
        ConfigError: a file or folder cannot be read.
    """
    # single files may be linked from anywhere, as LICENSE often is in a repository of several projects
    scope = _Scope(
        base=folder,
        within=os.path.realpath(folder),
        ignores=((folder, Ignore(excludes)),),
        git=None,
        takes_linked_files=True,
    )
    with _readable():
        found = list(_walk(folder, scope))
    if refused := [f"{name}: {reason}" for name, _, reason in found if reason]:
        warn(
            f"{len(refused)} entries of the project {folder} are kept out of its build. "
            f"{'; '.join(refused[:_LISTED])}. If the package needs one, make a wheel of it and name that."
        )
    return tuple(sorted((name, path) for name, path, reason in found if not reason))


def package_files(folder: Path, *, whole: bool) -> tuple[list[_Found], list[Path]]:
    """Return the files in the folder of a local package, and the folders that were searched.

    Caches, hidden folders, environments and what git ignores are left out, and unless `whole` packages in it.

    Raises:
        ConfigError: a file or folder cannot be read.
    """
    scope = _Scope(
        base=folder,
        within=folder.anchor,
        ignores=((folder, Ignore((*DEFAULT_EXCLUDES, "**/.*/*"))),),
        git=_git_rules_above(folder, folder.parent),
        takes_packages=whole,
    )
    with _readable():
        return list(islice(_walk(folder, scope), MAX_FILES)), scope.folders


def largest(files: Mapping[str, Path]) -> str:
    """List the ten largest of these files with their sizes, as text for users."""
    sizes = {name: path.stat().st_size for name, path in files.items()}
    most = sorted(sizes, key=lambda name: -sizes[name])[:_LISTED]
    return ", ".join(f"{name} ({readable(sizes[name])})" for name in most)


def total_size(files: Mapping[str, Path]) -> int:
    """Return the total size of these files in bytes."""
    return sum(path.stat().st_size for path in files.values())


def _entries(text: str, root: Path) -> list[tuple[Path, bool]]:
    """Return the paths that an entry of `includes` refers to, each with whether it is named rather than matched."""
    given = os.path.expanduser(text)  # noqa: PTH111 - Path's raises for a user without a home
    path = Path(os.path.normpath(root / given))
    if path == path.parent:
        raise ConfigError(f"Image(includes=...) names {text!r}, the whole file system. Name folders of code.")
    if path.exists():
        return [(path, True)]
    found = sorted(glob.glob(given, root_dir=root, recursive=True)) if glob.has_magic(text) else []  # noqa: PTH207
    if not found:
        raise ConfigError(f"Image(includes=...) names {text!r}, but {path} does not exist.")
    return [(Path(os.path.normpath(root / each)), False) for each in found]


def _refusal(refused: Mapping[str, str]) -> str:
    lines = "".join(f"\n  {name}: {why}" for name, why in list(refused.items())[:_LISTED])
    more = f"\n  and {len(refused) - _LISTED} more" if len(refused) > _LISTED else ""
    name = next(iter(refused))
    return (
        f"Image(includes=...) names folders with files that are not sent to other machines silently:{lines}{more}\n"
        f"Leave them out (with_excludes({name!r}), or .gitignore), or name them if nodes need them: "
        f"includes=[..., {name!r}]. Values that only a running function needs are better given as secrets= of the pool."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scope:
    """The rules for a folder that is searched.

    Attributes:
        base: base of the names of files.
        within: real path of the folder that links may lead to.
        ignores: patterns in Docker's format, and the folders that their paths are relative to.
        git: rules of the `.gitignore` files so far; None if these do not count.
        named: paths that are taken separately.
        above: real paths of the folders that are being searched, to detect links that lead back.
        takes_linked_files: whether links to files may lead anywhere.
        folders: receives each folder that is searched.
        takes_packages: whether folders with modules are searched.
    """

    base: Path
    within: str
    ignores: tuple[tuple[Path, Ignore], ...]
    git: _GitRules | None = ()
    named: frozenset[Path] = frozenset()
    above: tuple[str, ...] = ()
    takes_linked_files: bool = False
    folders: list[Path] = field(default_factory=list)
    takes_packages: bool = True

    def leaves_out(self, path: Path, *, is_folder: bool) -> bool:
        """Return whether patterns exclude a path, with no exception below it."""
        by_docker = any(
            ignore(path.relative_to(folder).as_posix()) and not (is_folder and ignore.has_exceptions)
            for folder, ignore in self.ignores
        )
        return by_docker or _is_ignored(self.git or (), path, is_folder=is_folder and not path.is_symlink())


def _search(path: Path, root: Path, excluded: Ignore, named: frozenset[Path], *, is_named: bool) -> Iterator[_Found]:
    """Yield an entry of `includes`, or the files below it."""
    base = root if path.is_relative_to(root) else path.parent
    if is_named and not path.is_dir():
        yield path.relative_to(base).as_posix(), path, "" if path.is_file() else "it is not a regular file"
        return
    ignores = [(base, excluded)]
    for folder in dict.fromkeys((root, path)):
        ignore = Ignore([line for line in _lines(folder / ".dockerignore") if not line.startswith("#")])
        # patterns that exclude a named folder do not apply to its files
        if folder == path or (path.is_relative_to(folder) and not ignore(path.relative_to(folder).as_posix())):
            ignores.append((folder, ignore))
    scope = _Scope(
        base=base,
        within=os.path.realpath(path),
        ignores=tuple(ignores),
        git=_git_rules_above(path, root),
        named=named,
    )
    yield from (_walk if is_named else _visit)(path, scope)


def _walk(folder: Path, scope: _Scope) -> Iterator[_Found]:
    """Yield the files in a folder."""
    scope.folders.append(folder)
    git = None if scope.git is None else (*scope.git, *_git_rules(folder))
    inner = replace(scope, git=git, above=(*scope.above, os.path.realpath(folder)))
    for path in sorted(folder.iterdir()):
        if path not in scope.named:
            yield from _visit(path, inner)


def _visit(path: Path, scope: _Scope) -> Iterator[_Found]:
    """Yield a file, or the files in a folder, unless they are left out."""
    name, is_folder = path.relative_to(scope.base).as_posix(), path.is_dir()
    if scope.leaves_out(path, is_folder=is_folder) or not path.exists():
        return
    if is_folder and ((path / "pyvenv.cfg").exists() or (path / "conda-meta").exists()):
        return  # an environment
    if is_folder and not scope.takes_packages and any(path.glob("*.py")):
        return
    real = os.path.realpath(path) if path.is_symlink() else ""
    if real and any(Path(folder).is_relative_to(real) for folder in scope.above):
        return
    if real and not Path(real).is_relative_to(scope.within) and (is_folder or not scope.takes_linked_files):
        yield name, path, f"a link that leads out, to {real}"
    elif not os.access(path, os.R_OK):
        yield name, path, "it cannot be read"
    elif is_folder:
        yield from _walk(path, scope)
    elif not path.is_file():
        yield name, path, "it is not a regular file"
    elif any(map(_is_secret, (name, real))) or _holds_key(path):
        yield name, path, "it seems to hold credentials"
    else:
        yield name, path, ""


def _is_secret(name: str) -> bool:
    return bool(_SECRET.fullmatch(name)) and not _HARMLESS.fullmatch(name)


def _holds_key(path: Path) -> bool:
    is_key = path.suffix.lower() not in _SOURCE and path.stat().st_size <= _LARGEST_KEY
    return is_key and bool(_KEY.search(path.read_bytes()))


def _git_rules(folder: Path) -> _GitRules:
    """Return the rules of the `.gitignore` in a folder; empty if there is none."""
    lines = _lines(folder / ".gitignore")
    if not any(lines):
        return ()
    from pathspec import GitIgnoreSpec  # loaded only if there is something to ignore: it takes 15 ms

    try:
        return ((folder, GitIgnoreSpec.from_lines(lines)),)
    except (ValueError, re.error) as error:
        raise ConfigError(f"{folder / '.gitignore'} has an invalid pattern: {error}.") from None


def _git_rules_above(start: Path, root: Path) -> _GitRules:
    """Return the rules for a folder from outside it: from the top of its repository, or the root, down to its parent.

    If they exclude the folder itself, they do not apply to its files, and none are returned.
    """
    top = next((folder for folder in start.parents if (folder / ".git").exists()), root)
    if (start / ".git").exists():
        return ()
    folders = [folder for folder in reversed(start.parents) if folder.is_relative_to(top)]
    rules = tuple(rule for folder in folders for rule in _git_rules(folder))
    return () if any(_is_ignored(rules, each, is_folder=True) for each in (*folders, start)) else rules


def _is_ignored(rules: _GitRules, path: Path, *, is_folder: bool) -> bool:
    """Return whether git excludes a path whose parent folder it does not exclude; the innermost rule applies."""
    for folder, spec in reversed(rules):
        if path != folder and path.is_relative_to(folder):
            word = spec.check_file(path.relative_to(folder).as_posix() + "/" * is_folder).include
            if word is not None:
                return word
    return False


def _lines(file: Path) -> list[str]:
    return file.read_text("utf-8-sig", "surrogateescape").splitlines() if file.is_file() else []


@contextmanager
def _readable() -> Iterator[None]:
    """Map failures to read files and folders."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{error.filename} cannot be sent to other machines, because it cannot be read: {error.strerror}. Make it "
            "readable, or leave it out (excludes=[...])."
        ) from None
