"""The locked requirements of a Python project: `uv.lock` through `uv export`, or else a `pylock.toml`.

Nothing is resolved: uv checks that the lock is up to date with the project, and exports it. This needs no network if
the lock is up to date.
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


def lock_of(folder: Path) -> Path | None:
    """Return the lock of the project in a folder: its own, or that of the workspace it belongs to.

    A symbolic link to a folder may be a member, or lead to one.
    """
    for start in dict.fromkeys((folder, folder.resolve())):
        for place in (start, *start.parents):
            if (place / "uv.lock").is_file() and (place == start or _is_member(start, place)):
                return place / "uv.lock"
    own = folder / "pylock.toml"
    return own if own.is_file() else None


def locked_project(folder: Path, choice: Choice, root: Path, target: Target) -> Locked:
    """Return the locked packages of the project in a folder for a target.

    Args:
        folder: folder of the project's `pyproject.toml`.
        choice: the selected parts.
        root: base of the image's relative paths.
        target: the nodes' Python and platform.

    Raises:
        ConfigError: there is no project or no lock, the lock is out of date, there is no such group, extra or member,
            or the lock is not for that Python.
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
    if choice.package is None and folder.resolve() != lock.parent.resolve():
        choice = replace(choice, package=project.get("project", {}).get("name"))
    document = _export(lock.parent, choice)
    source = Source(where=str(lock), folder=lock.parent, root=root, indexes=indexes)
    overrides = read_project(lock.parent).get("tool", {}).get("uv", {}).get("override-dependencies", ())
    return replace(locked_for(document, source, target), overrides=tuple(map(requirement, overrides)))


def located_project(folder: Path, package: str | None) -> Path:
    """Return the folder of a project, or of the given member of its workspace, by the path in its lock."""
    lock = lock_of(folder)
    if lock is None or lock.name != "uv.lock":
        return folder
    members = _members(lock)
    if package:
        return members.get(package, folder)
    return next((each for each in members.values() if each.resolve() == folder.resolve()), folder)


def read_project(folder: Path) -> dict[str, Any]:
    """Read the `pyproject.toml` of a folder.

    Raises:
        ConfigError: it is missing or unreadable.
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
    """Return whether a folder is a member of the workspace in a folder above it."""
    workspace = read_project(place).get("tool", {}).get("uv", {}).get("workspace")
    if workspace is None:
        return False

    def among(patterns: Sequence[str]) -> bool:
        return any(folder in place.glob(pattern) for pattern in patterns)

    return among(workspace.get("members", ())) and not among(workspace.get("exclude", ()))


def from_pylock(lock: Path, choice: Choice, root: Path, target: Target) -> Locked:
    """Return the packages of a `pylock.toml` for a target; see `locked_project`."""
    document = read_pylock(lock)
    for kind, wanted in (("extras", choice.extras), ("dependency-groups", choice.groups)):
        known = {package_name(name) for name in document.get(kind, ())}
        if missing := sorted(set(wanted) - known):
            raise ConfigError(f"{lock} has no {missing[0]!r} among its {kind}; it has: {in_words(known)}.")
    groups = choice.groups if choice.alone else (*choice.groups, *default_groups(document))
    source = Source(where=str(lock), folder=lock.parent, root=root, extras=choice.extras, groups=groups)
    return locked_for(document, source, target)


def _check_names(folder: Path, project: Mapping[str, Any], lock: Path, choice: Choice) -> None:
    """Check that the selected groups, extras and member exist."""
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
    """Return the members of a lock's workspace by name."""
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
    """Yield the files that uv reads to check a lock against its projects, and the folders it searches for members."""
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
    return [bare(str(index.get("url", ""))).rstrip("/") for index in indexes]  # locks contain no logins


def _check_fresh(folder: Path, lock: Path, declared: frozenset[str]) -> None:
    """Check that the lock fits the project.

    The first check uses no network, and the indexes in the lock instead of this user's: uv considers a lock made with
    another mirror out of date (https://github.com/astral-sh/uv/pull/6026). The second one uses the user's settings.
    """
    done = _uv(lock.parent, "lock", "--check", environment=_as_locked(lock, declared))
    if done.returncode:
        done = _uv(lock.parent, "lock", "--check", environment={**os.environ, "UV_PYTHON_DOWNLOADS": "never"})
    if done.returncode:
        raise ConfigError(
            f"{lock} does not fit {folder / 'pyproject.toml'} any more, or that cannot be told. Lock the project "
            f"anew: `uv lock` in {lock.parent}. uv said:\n{without_logins(done.stderr.strip())}"
        )


def _as_locked(lock: Path, declared: frozenset[str]) -> dict[str, str]:
    """Return an environment in which uv has no network, and only the settings of the project and its lock."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
    kept = {name: os.environ[name] for name in ("UV_CACHE_DIR",) if name in os.environ}
    nowhere = str(lock)  # a file, so there are no settings below it
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
    """Return whether a variable changes uv's result for a project; settings of servers and the network do not."""
    return name == "VIRTUAL_ENV" or (name.startswith("UV_") and not name.startswith(_ASKED))


# indexes and their logins, certificates, the network and uv's cache
_ASKED = (
    *("UV_CACHE_DIR", "UV_CONFIG_FILE", "UV_CREDENTIALS_DIR", "UV_DEFAULT_INDEX", "UV_EXTRA_INDEX_URL"),
    *("UV_FIND_LINKS", "UV_GITHUB_TOKEN", "UV_HTTP_", "UV_INDEX", "UV_INSECURE_HOST", "UV_KEYRING_PROVIDER"),
    *("UV_NATIVE_TLS", "UV_NO_CACHE", "UV_NO_INDEX", "UV_OFFLINE", "UV_PYTHON_DOWNLOADS", "UV_REQUEST_TIMEOUT"),
    "UV_SYSTEM_CERTS",
)
