"""The packages of the client's interpreter: which one a module belongs to, in which version, and from where it came."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import Distribution, distributions, packages_distributions
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from skyward.model.image import package_name


@dataclass(frozen=True, slots=True)
class Installed:
    """A package as it is installed here.

    Attributes:
        name: in normal form.
        version: with its local part, such as "+cpu".
        requirement: what gives the same package elsewhere, as `Image(pip=...)` takes it.
        note: how it came here, where that is not by name and version from an index; "" where it is.
    """

    name: str
    version: str
    requirement: str
    note: str = ""


def package_of(module: str) -> Installed | None:
    """The package that a module (with dots) belongs to; None if none that is installed has it."""
    names = sorted(set(_by_module().get(module.partition(".")[0], ())))
    if not names:
        return None
    if len(names) > 1:  # one namespace, or alternatives such as opencv-python and opencv-python-headless
        parts = module.split(".")
        for length in range(len(parts), 1, -1):
            below = "/".join(parts[:length])
            having = [name for name in names if _has(name, below)]
            if having:
                return _described(Distribution.from_name(having[0]))
    return _described(Distribution.from_name(names[0]))


def editable_project(file: str) -> str | None:
    """Name and place of the editable install that a file belongs to; None if it belongs to none."""
    for name, folder in _editables():
        if file.startswith(folder + os.sep):
            return f"{name}, installed in editable mode from {folder}"
    return None


@lru_cache(maxsize=1)
def _by_module() -> dict[str, list[str]]:
    return dict(packages_distributions())


@lru_cache(maxsize=256)
def _has(name: str, below: str) -> bool:
    files = Distribution.from_name(name).files or ()
    return any(str(file).startswith((f"{below}/", f"{below}.")) for file in files)


@lru_cache(maxsize=1)
def _editables() -> tuple[tuple[str, str], ...]:
    found = []
    for distribution in distributions():
        origin = _origin(distribution)
        folder = _path(str(origin.get("url", "")))
        if folder is not None and origin.get("dir_info", {}).get("editable"):
            found.append((str(distribution.metadata["Name"]), os.path.realpath(folder)))
    return tuple(found)


def _origin(distribution: Distribution) -> dict[str, Any]:
    """Where a package was installed from, if not from an index.

    The form is that of https://packaging.python.org/en/latest/specifications/direct-url/.
    """
    try:
        found = json.loads(distribution.read_text("direct_url.json") or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) and "url" in found else {}


def _described(distribution: Distribution) -> Installed:
    from packaging.version import InvalidVersion, Version

    name, version = package_name(distribution.metadata["Name"]), distribution.version
    try:
        public = Version(version).public  # an index seldom has what stands after "+", such as "cpu"
    except InvalidVersion:
        public = version
    requirement, note = f"{name}=={public}", "" if public == version else f"{version} here"
    origin = _origin(distribution)
    if not origin:
        return Installed(name, version, requirement, note)
    url, path = _without_login(str(origin["url"])), _path(str(origin["url"]))
    if "vcs_info" in origin:
        vcs, below = origin["vcs_info"], origin.get("subdirectory")
        source = f"{vcs['vcs']}+{url}@{vcs['commit_id']}" + (f"#subdirectory={below}" if below else "")
        if url.startswith(("https://", "ssh://")):
            return Installed(name, version, f"{name} @ {source}", f"installed from {source}")
        return Installed(name, version, requirement, f"installed from {source}, which nodes cannot reach")
    if path and path.exists():
        return Installed(name, version, str(path), f"{version}, installed from {path}")
    if path:
        return Installed(name, version, requirement, f"installed from {path}, which is gone")
    return Installed(name, version, f"{name} @ {url}", f"installed from {url}")


def _path(url: str) -> Path | None:
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def _without_login(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme == "ssh" and not parts.password:
        return url
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
