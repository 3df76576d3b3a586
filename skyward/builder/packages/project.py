"""The locked requirements of a Python project: `uv.lock` through `uv export`, or else a `pylock.toml`."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from skyward.builder.folders import home, uv_variables
from skyward.builder.packages.local import LocalPackage, entry_for, local_package
from skyward.builder.packages.pylock import Target, bare, local_path_of, packages_of, read_pylock, selected
from skyward.builder.packages.requirement_files import no_lock
from skyward.builder.packages.uv import find_uv, run_uv
from skyward.builder.site.indexes import host_indexes, is_default
from skyward.errors import ConfigError
from skyward.image import Package
from skyward.model.image import PipIndex, package_name
from skyward.model.image_fields import requirement, without_logins

# settings of logins, the network and uv's cache; others would change what a project's lock says
_KEPT = ("UV_CACHE_DIR", "UV_HTTP_", "UV_INDEX_", "UV_INSECURE_HOST", "UV_KEYRING_PROVIDER", "UV_OFFLINE")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The selected parts of a project.

    Attributes:
        groups: dependency groups.
        extras: optional dependencies.
        package: a workspace member instead of the project itself; None for the project.
        alone: only the groups, without the project and its dependencies.
        itself: whether the project is installed, or only its dependencies.
    """

    groups: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    package: str | None = None
    alone: bool = False
    itself: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Locked:
    """The content of a lock file for a target.

    Attributes:
        packages: packages from indexes, URLs and repositories, each with its hashes.
        local: packages from this machine's files.
        indexes: indexes that the project names for packages.
        overrides: requirements that replaced those of packages.
    """

    packages: tuple[Package, ...] = ()
    local: tuple[LocalPackage, ...] = ()
    indexes: tuple[PipIndex, ...] = ()
    overrides: tuple[str, ...] = ()


def lock_of(folder: Path) -> Path | None:
    """Return the lock of the project in a folder: its own, or that of the workspace it belongs to."""
    start = folder.resolve()
    for place in (start, *start.parents):
        if (place / "uv.lock").is_file() and (place == start or _is_member(start, place)):
            return place / "uv.lock"
    own = folder / "pylock.toml"
    return own if own.is_file() else None


def _is_member(folder: Path, place: Path) -> bool:
    workspace = read_project(place).get("tool", {}).get("uv", {}).get("workspace", {})

    def among(patterns: Sequence[str]) -> bool:
        return any(folder in place.glob(pattern) for pattern in patterns)

    return among(workspace.get("members", ())) and not among(workspace.get("exclude", ()))


def locked_project(folder: Path, choice: Choice, root: Path, target: Target) -> Locked:
    """Return the locked packages of the project in a folder for a target; `root` is the base of the image's paths.

    Raises:
        ConfigError: there is no project or no lock, the lock is out of date, there is no such group, extra or member,
            or the lock is not for that Python.
    """
    lock = lock_of(folder)
    if lock is None:
        raise no_lock(folder)
    if lock.name == "pylock.toml":
        return from_pylock(lock, choice, root, target)
    top = read_project(lock.parent).get("tool", {}).get("uv", {})
    own = read_project(folder)
    indexes = {*_named_indexes(top), *_named_indexes(own.get("tool", {}).get("uv", {}))}
    if choice.package is None and folder.resolve() != lock.parent.resolve():
        choice = replace(choice, package=own.get("project", {}).get("name"))
    document = read_pylock(_export(lock, choice, indexes), str(lock))
    found = _locked(selected(document, str(lock), target), lock, root, target, indexes)
    overrides = tuple(map(requirement, top.get("override-dependencies", ())))
    return Locked(packages=found.packages, local=found.local, indexes=found.indexes, overrides=overrides)


def from_pylock(lock: Path, choice: Choice, root: Path, target: Target) -> Locked:
    """Return the packages of a `pylock.toml` for a target; see `locked_project`."""
    try:
        text = lock.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{lock} cannot be read: {error}.") from None
    document = read_pylock(text, str(lock))
    groups = choice.groups if choice.alone else (*choice.groups, *(document.default_groups or ()))
    entries = selected(document, str(lock), target, choice.extras, groups)
    ours = host_indexes(os.environ, home())
    own = {each.rstrip("/") for each in (*ours.extra, ours.default or "")}
    named = {each.index.rstrip("/") for each in entries if each.index} - own
    return _locked(entries, lock, root, target, named)


def _locked(entries: Sequence[Any], lock: Path, root: Path, target: Target, named: set[str]) -> Locked:
    """Divide the packages of a lock; those of `named` indexes must come from there."""
    from skyward.builder.files.copied import sha256_of

    local, others, scoped = [], [], dict[str, set[str]]()
    for entry in entries:
        name, path = package_name(entry.name), local_path_of(entry, lock.parent)
        if path is None:
            others.append(entry)
            index = (entry.index or "").rstrip("/")
            if index in named and index.startswith("http") and not is_default(index):
                scoped.setdefault(index, set()).add(name)
            continue
        expected = entry.archive.hashes.get("sha256") if entry.archive else None
        if expected and path.is_file() and sha256_of(path) != expected:
            raise ConfigError(f"{lock} has another {name}: the SHA-256 of {path} is not {expected}. Lock it again.")
        local.append(local_package(entry_for(path, root), path, name))
    indexes = tuple(PipIndex(url, tuple(names)) for url, names in sorted(scoped.items()))
    index_of = {name: index.url for index in indexes for name in index.packages}
    packages = tuple(packages_of(others, index_of, target))
    return Locked(packages=packages, local=tuple(local), indexes=indexes)


def read_project(folder: Path) -> dict[str, Any]:
    """Read the `pyproject.toml` of a folder.

    Raises:
        ConfigError: it is missing or unreadable.
    """
    path = folder / "pyproject.toml"
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.") from None


def _named_indexes(settings: Mapping[str, Any]) -> list[str]:
    return [bare(str(index.get("url", ""))).rstrip("/") for index in settings.get("index", ())]


def _export(lock: Path, choice: Choice, declared: set[str]) -> str:
    """Return the lock as a `pylock.toml`, after uv has checked that it is up to date."""
    words = [find_uv(), "export", "--locked", "--format", "pylock.toml", "--no-header", "--no-editable", "--quiet"]
    words += ["--no-default-groups", "--color=never", "--python", sys.executable]
    words += [word for name in choice.extras for word in ("--extra", name)]
    words += [word for name in choice.groups for word in ("--only-group" if choice.alone else "--group", name)]
    words += ["--package", choice.package] if choice.package else []
    words += [] if choice.itself else ["--no-emit-project"]
    environment = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(_KEPT) or not name.startswith(("UV_", "VIRTUAL_ENV"))
    }
    environment |= uv_variables() | {"UV_PYTHON_DOWNLOADS": "never"} | _indexes_of(lock, declared)
    done = run_uv(words, lock.parent, environment)
    if done.returncode:
        raise ConfigError(f"uv cannot export {lock} for this image. uv said:\n{without_logins(done.stderr.strip())}")
    return done.stdout


def _indexes_of(lock: Path, declared: set[str]) -> dict[str, str]:
    """Return variables for uv with the indexes in a lock in place of this user's.

    uv considers a lock made with another mirror out of date (https://github.com/astral-sh/uv/pull/6026).
    """
    environment = {"XDG_CONFIG_HOME": str(lock), "XDG_CONFIG_DIRS": str(lock)}  # a file, with no settings below it
    named = dict.fromkeys(re.findall(r'registry = "([^"]+)"', lock.read_text(encoding="utf-8")))
    indexes = [url for url in named if "://" in url and url.rstrip("/") not in declared]
    folders = [os.path.normpath(lock.parent / path) for path in named if "://" not in path]
    if indexes:
        environment |= {"UV_DEFAULT_INDEX": indexes[0], "UV_INDEX": " ".join(indexes[1:])}
    if folders:
        environment["UV_FIND_LINKS"] = ",".join(folders)
    return environment
