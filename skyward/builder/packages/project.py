"""The locked requirements of a Python project: `uv.lock` by `uv export`, else a `pylock.toml`.

Nothing is resolved: uv checks that the lock is as new as the project, and writes down what the lock says. With a fresh
lock this takes no network.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from skyward.builder.folders import uv_variables
from skyward.builder.packages.lock import find_uv
from skyward.builder.packages.metadata import in_words
from skyward.builder.packages.pip_files import EXPORTS
from skyward.builder.packages.pylock import (
    Locked,
    Source,
    Target,
    bare,
    check_requires_python,
    default_groups,
    locked_for,
    read_pylock,
)
from skyward.errors import ConfigError
from skyward.model.image import package_name
from skyward.model.image_fields import requirement, without_logins


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What of a project is wanted.

    Attributes:
        groups: dependency groups.
        extras: optional dependencies.
        package: a workspace member in place of the project itself; None for the project.
        alone: the groups only, without the project and what it needs.
        itself: whether the project is installed, or only what it needs.
    """

    groups: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    package: str | None = None
    alone: bool = False
    itself: bool = True


def lock_of(folder: Path) -> Path | None:
    """The lock that holds for the project in a folder: its own, or that of the workspace it is a member of."""
    for place in (folder, *folder.parents):
        if (place / "uv.lock").is_file() and (place == folder or _is_member(folder, place)):
            return place / "uv.lock"
    own = folder / "pylock.toml"
    return own if own.is_file() else None


def locked_project(folder: Path, choice: Choice, root: Path, target: Target) -> Locked:
    """What the lock of the project in a folder has for a target.

    Args:
        folder: that of the project's `pyproject.toml`.
        choice: what is wanted of it.
        root: what the image's relative paths are relative to.
        target: the nodes' Python and platform.

    Raises:
        ConfigError: there is no project or no lock, the lock is older than the project, it has no such group, extra
            or member, or it is not for that Python.
        ImageError: uv is missing.
    """
    project = read_project(folder)
    lock = lock_of(folder)
    if lock is None:
        raise _no_lock(folder)
    check_requires_python(
        str(project.get("project", {}).get("requires-python", "")), f"{folder}/pyproject.toml", target
    )
    if lock.name == "pylock.toml":
        return from_pylock(lock, choice, root, target)
    _check_names(folder, project, lock, choice)
    indexes = frozenset(url for place in (folder, lock.parent) for url in _named_indexes(read_project(place)))
    _check_fresh(folder, lock, indexes)
    document = _export(folder, choice)
    source = Source(where=str(lock), folder=folder, root=root, indexes=indexes)
    overrides = read_project(lock.parent).get("tool", {}).get("uv", {}).get("override-dependencies", ())
    return replace(locked_for(document, source, target), overrides=tuple(map(requirement, overrides)))


def located_project(folder: Path, package: str | None) -> Path:
    """The folder of a project, or of the member of its workspace that is asked for."""
    lock = lock_of(folder)
    return _members(lock).get(package, folder) if package and lock and lock.name == "uv.lock" else folder


def read_project(folder: Path) -> dict[str, Any]:
    """The `pyproject.toml` of a folder.

    Raises:
        ConfigError: it is not there, or cannot be read.
    """
    path = folder / "pyproject.toml"
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        other = next((name for name in EXPORTS if (folder / name).is_file()), None)
        if other and isinstance(error, FileNotFoundError):
            raise _no_lock(folder) from None
        raise ConfigError(f"{path} cannot be read: {error}.") from None


def _no_lock(folder: Path) -> ConfigError:
    for name, export in EXPORTS.items():
        if (folder / name).is_file():
            file = export.split()[-1]
            use = f"Image(requirements=[{str(folder / file)!r}])" if file == "requirements.txt" else "the same again"
            return ConfigError(
                f"{folder / name} is in a form that only its own tool reads. Write it down in one that all read: "
                f"`{export}` in {folder}, and then use {use}."
            )
    return ConfigError(
        f"The project in {folder} has no lock: neither uv.lock nor pylock.toml is there. Make one: "
        f"`uv lock` in {folder}."
    )


def _is_member(folder: Path, place: Path) -> bool:
    """Whether a folder is a member of the workspace in a folder above it."""
    workspace = read_project(place).get("tool", {}).get("uv", {}).get("workspace")
    if workspace is None:
        return False

    def among(patterns: Sequence[str]) -> bool:
        return any(folder in place.glob(pattern) for pattern in patterns)

    return among(workspace.get("members", ())) and not among(workspace.get("exclude", ()))


def from_pylock(lock: Path, choice: Choice, root: Path, target: Target) -> Locked:
    """What a `pylock.toml` has for a target; see `locked_project`."""
    document = read_pylock(lock)
    for kind, wanted in (("extras", choice.extras), ("dependency-groups", choice.groups)):
        known = {package_name(name) for name in document.get(kind, ())}
        if missing := sorted(set(wanted) - known):
            raise ConfigError(f"{lock} has no {missing[0]!r} among its {kind}; it has: {in_words(known)}.")
    groups = choice.groups if choice.alone else (*choice.groups, *default_groups(document))
    source = Source(where=str(lock), folder=lock.parent, root=root, extras=choice.extras, groups=groups)
    return locked_for(document, source, target)


def _check_names(folder: Path, project: Mapping[str, Any], lock: Path, choice: Choice) -> None:
    """See that the groups, extras and the member that are asked for are there."""
    if choice.package is not None:
        members = _members(lock)
        if choice.package not in members:
            raise ConfigError(f"The workspace of {lock} has no member {choice.package!r}; it has: {in_words(members)}.")
        project = read_project(members[choice.package])
        folder = members[choice.package]
    known = {
        "groups": {package_name(name) for name in project.get("dependency-groups", {})},
        "extras": {package_name(name) for name in project.get("project", {}).get("optional-dependencies", {})},
    }
    known["groups"] |= {"dev"} if "dev-dependencies" in project.get("tool", {}).get("uv", {}) else set()
    for kind, names in known.items():
        if missing := sorted(set(getattr(choice, kind)) - names):
            raise ConfigError(
                f"{folder / 'pyproject.toml'} has no {missing[0]!r} among its {kind}; it has: {in_words(names)}."
            )


def _members(lock: Path) -> dict[str, Path]:
    """The members of a lock's workspace by name."""
    document = tomllib.loads(lock.read_text(encoding="utf-8"))
    found = {}
    for package in document.get("package", ()):
        source = package.get("source", {})
        path = source.get("editable") or source.get("virtual") or source.get("directory")
        named = document.get("manifest", {}).get("members", [package["name"]])
        if path is not None and package["name"] in named:
            found[package["name"]] = Path(os.path.normpath(lock.parent / path))
    return found


def read_by_uv(lock: Path) -> Iterator[Path]:
    """The files that uv reads to see whether a lock fits its projects, and the folders that it looks for members in."""
    yield Path(find_uv())
    for package in tomllib.loads(lock.read_text(encoding="utf-8")).get("package", ()):
        source = package.get("source", {})
        path = source.get("editable") or source.get("virtual") or source.get("directory") or source.get("path")
        if path is not None:
            folder = Path(os.path.normpath(lock.parent / path))
            yield from (folder, *(folder / name for name in ("pyproject.toml", "setup.py", "setup.cfg")))
    workspace = read_project(lock.parent).get("tool", {}).get("uv", {}).get("workspace", {})
    for pattern in workspace.get("members", ()):
        yield from {each.parent for each in lock.parent.glob(pattern)}


def _named_indexes(project: Mapping[str, Any]) -> list[str]:
    indexes = project.get("tool", {}).get("uv", {}).get("index", ())
    return [bare(str(index.get("url", ""))).rstrip("/") for index in indexes]  # locks hold no logins


def _check_fresh(folder: Path, lock: Path, declared: frozenset[str]) -> None:
    """See that the lock says what the project asks for.

    First without the network, and with the indexes that the lock names in place of this user's: uv takes a lock that
    was made with another mirror for out of date (https://github.com/astral-sh/uv/pull/6026). Then as the user would.
    """
    done = _uv(folder, "lock", "--check", environment=_as_locked(lock, declared))
    if done.returncode:
        done = _uv(folder, "lock", "--check", environment={**os.environ, "UV_PYTHON_DOWNLOADS": "never"})
    if done.returncode:
        raise ConfigError(
            f"{lock} does not fit {folder / 'pyproject.toml'} any more, or that cannot be told. Lock the project "
            f"anew: `uv lock` in {lock.parent}. uv said:\n{without_logins(done.stderr.strip())}"
        )


def _as_locked(lock: Path, declared: frozenset[str]) -> dict[str, str]:
    """An environment in which uv has no network, and no settings but those of the project and its lock."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
    kept = {name: os.environ[name] for name in ("UV_CACHE_DIR",) if name in os.environ}
    nowhere = str(lock)  # a file: there are no settings below it
    environment = {**own, **kept, "XDG_CONFIG_HOME": nowhere, "XDG_CONFIG_DIRS": nowhere, "UV_OFFLINE": "1"}
    named = dict.fromkeys(re.findall(r'registry = "([^"]+)"', lock.read_text(encoding="utf-8")))
    indexes = [url for url in named if "://" in url and url.rstrip("/") not in declared]
    folders = [os.path.normpath(lock.parent / path) for path in named if "://" not in path]
    if indexes:
        environment |= {"UV_DEFAULT_INDEX": indexes[0], "UV_INDEX": " ".join(indexes[1:])}
    if folders:
        environment["UV_FIND_LINKS"] = ",".join(folders)
    return environment


def _export(folder: Path, choice: Choice) -> dict[str, Any]:
    words = ["export", "--frozen", "--format", "pylock.toml", "--no-header", "--no-editable", "--no-default-groups"]
    words += [word for name in choice.extras for word in ("--extra", name)]
    words += [word for name in choice.groups for word in ("--only-group" if choice.alone else "--group", name)]
    words += ["--package", choice.package] if choice.package else []
    words += [] if choice.itself else ["--no-emit-project"]
    done = _uv(folder, *words, environment={**os.environ, "UV_OFFLINE": "1"})
    if done.returncode:
        raise ConfigError(f"uv cannot read the lock of {folder}. uv said:\n{without_logins(done.stderr.strip())}")
    return tomllib.loads(done.stdout)


def _uv(folder: Path, *words: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [find_uv(), *words, "--python", sys.executable, "--quiet", "--color=never"],
        cwd=folder,
        env={name: value for name, value in environment.items() if not _decides(name)} | uv_variables(),
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def _decides(name: str) -> bool:
    """Whether a variable changes what uv makes of a project; those that say whom it asks, and how, do not count."""
    return name == "VIRTUAL_ENV" or (name.startswith("UV_") and not name.startswith(_ASKED))


# indexes and their logins, certificates, the network and uv's cache
_ASKED = (
    *("UV_CACHE_DIR", "UV_CONFIG_FILE", "UV_CREDENTIALS_DIR", "UV_DEFAULT_INDEX", "UV_EXTRA_INDEX_URL"),
    *("UV_FIND_LINKS", "UV_GITHUB_TOKEN", "UV_HTTP_", "UV_INDEX", "UV_INSECURE_HOST", "UV_KEYRING_PROVIDER"),
    *("UV_NATIVE_TLS", "UV_NO_CACHE", "UV_NO_INDEX", "UV_OFFLINE", "UV_PYTHON_DOWNLOADS", "UV_REQUEST_TIMEOUT"),
    "UV_SYSTEM_CERTS",
)
