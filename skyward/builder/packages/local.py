"""Local wheels, archives and projects that an image installs: their names, requirements and files.

Their metadata is read, and none of their code is run: a project is built where it is installed, in the image.
"""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skyward.builder.files.included import project_files
from skyward.builder.packages.build_system import FILES, BuildSystem, build_system, texts_of
from skyward.errors import ConfigError
from skyward.model.image import DEFAULT_EXCLUDES, Image, local_path, package_name

if TYPE_CHECKING:
    from packaging.requirements import Requirement  # loaded where there is something local: it takes 15 ms

_NOT_SOURCE = (*DEFAULT_EXCLUDES, "**/.*_cache", "**/.tox", "**/.nox", "**/.hypothesis", "build", "dist")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPackage:
    """A package from this machine's files.

    Attributes:
        entry: as it stands in `Image.pip`.
        name: the package's name in normal form.
        path: where it is: a file, or the directory of a project.
        dependencies: what it needs, extras included: requirements without the `extra` marker.
        build: what building it takes; None for a wheel.
        files: what has to be there to install it: paths relative to it (the file's own name for a file), and where
            they are.
        is_project: whether it is the project that the image is for, which is installed last.
    """

    entry: str
    name: str
    path: Path
    dependencies: tuple[str, ...]
    build: BuildSystem | None = None
    files: tuple[tuple[str, Path], ...] = field(repr=False)
    is_project: bool = False


def local_packages(image: Image, root: Path) -> tuple[LocalPackage, ...]:
    """The local packages among an image's requirements.

    Args:
        image: the description.
        root: what its relative paths are relative to.

    Raises:
        ConfigError: a path does not exist, or is not a wheel or project whose needs can be read.
    """
    found = [(entry, path) for entry in image.pip if (path := local_path(entry)) is not None]
    return tuple(_package(entry, located(root, path)) for entry, path in found)


def local_package(entry: str, name: str, path: Path) -> LocalPackage:
    """The package in a directory or file whose name is known, and whose needs are among the others.

    Raises:
        ConfigError: it does not exist.
    """
    if not path.exists():
        raise ConfigError(f"The lock takes {name} from {path}, which does not exist.")
    files = project_files(path, _NOT_SOURCE) if path.is_dir() else ((path.name, path),)
    build = build_system(name, texts_of(path)) if path.is_dir() else None
    return LocalPackage(entry=entry, name=name, path=path, dependencies=(), build=build, files=files)


def located(root: Path, path: str) -> Path:
    """Where a path of a description is."""
    return Path(os.path.normpath(root / Path(path).expanduser()))


def entry_for(path: Path, root: Path) -> str:
    """What an image calls a path of this machine: relative to its root, so that it is the same on all machines."""
    relative = os.path.relpath(path, root)
    return relative if relative.startswith("..") or relative == "." else f"./{relative}"


def dependencies_of(table: dict[str, Any], extras: tuple[str, ...]) -> tuple[str, ...]:
    """Requirements of a `[project]` table, those of its extras included."""
    from packaging.requirements import Requirement

    own = package_name(str(table.get("name", "")))
    optional = {package_name(name): texts for name, texts in table.get("optional-dependencies", {}).items()}
    wanted = [*listed(table.get("dependencies", []), "[project] dependencies")]
    todo, seen = list(extras), set[str]()
    while todo:
        extra = package_name(todo.pop())
        if extra in seen:
            continue
        seen.add(extra)
        if extra not in optional:
            raise ConfigError(f"{own or 'The project'} has no extra {extra!r}; it has: {_listed(optional)}.")
        for text in listed(optional[extra], f"[project.optional-dependencies] {extra}"):
            inner = Requirement(text)
            if package_name(inner.name) == own:  # an extra made of others
                todo += inner.extras
            else:
                wanted.append(text)
    return tuple(wanted)


def listed(value: Any, where: str) -> list[Any]:
    """A list in a project's file.

    Raises:
        ConfigError: it is something else; a text would count as its letters.
    """
    if not isinstance(value, list):
        raise ConfigError(f"{where} must be a list, such as ['numpy>=2']; found {value!r}.")
    return value


def _package(entry: str, path: Path) -> LocalPackage:
    from packaging.requirements import InvalidRequirement

    extras = tuple(entry.removesuffix("]").rpartition("[")[2].split(",")) if entry.endswith("]") else ()
    if not path.exists():
        raise ConfigError(f"Image: pip names {entry!r}, but there is no {path}.")
    try:
        if path.is_dir():
            name, dependencies = _of_project(path, extras)
            files = project_files(path, _NOT_SOURCE)
        elif path.suffix == ".whl":
            name, dependencies = _of_wheel(path, extras)
            files = ((path.name, path),)
        else:
            raise ConfigError(f"{path} is neither a wheel nor a project. {_remedy(path)}")
    except (ConfigError, InvalidRequirement, tomllib.TOMLDecodeError, OSError) as error:
        raise ConfigError(f"Image: pip={entry!r} cannot be used: {error}") from error
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", name):  # it becomes a folder of the build
        raise ConfigError(f"Image: pip={entry!r} calls itself {name!r}, which is not a name of a Python package.")
    return LocalPackage(
        entry=entry,
        name=package_name(name),
        path=path,
        dependencies=dependencies,
        build=build_system(name, texts_of(path)) if path.is_dir() else None,
        files=files,
    )


def _of_project(path: Path, extras: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    from packaging.requirements import Requirement

    file = path / "pyproject.toml"
    if not any((path / name).is_file() for name in FILES):
        raise ConfigError(
            f"{path} is no Python project: it has no pyproject.toml. Name the folder of one; modules that are "
            "no package are sent by includes=[...]."
        )
    table = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {}) if file.is_file() else {}
    dynamic = {"dependencies", "optional-dependencies"} & {*table.get("dynamic", ())}
    if "name" not in table or dynamic:
        lacking = f"{' and '.join(sorted(dynamic))} in [project] are dynamic" if dynamic else "it has no [project] name"
        raise ConfigError(f"what it needs cannot be read from {file}: {lacking}. {_remedy(path)}")
    return str(table["name"]), tuple(str(Requirement(text)) for text in dependencies_of(table, extras))


def _of_wheel(path: Path, extras: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    from email.parser import HeaderParser
    from zipfile import BadZipFile, ZipFile

    from packaging.requirements import Requirement

    try:
        with ZipFile(path) as wheel:
            name = next(name for name in wheel.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
            metadata = HeaderParser().parsestr(wheel.read(name).decode("utf-8"))
    except (BadZipFile, StopIteration) as error:
        raise ConfigError(f"{path} is not a wheel: {str(error) or 'it holds no metadata'}.") from None
    offered = {package_name(name) for name in metadata.get_all("Provides-Extra", [])}
    if unknown := sorted(set(extras) - offered):
        raise ConfigError(f"{path.name} has no extra {unknown[0]!r}; it has: {_listed(offered)}.")
    needed = [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]
    return str(metadata["Name"]), tuple(str(found) for each in needed if (found := _for_extras(each, extras)))


def _for_extras(requirement: Requirement, extras: tuple[str, ...]) -> Requirement | None:
    """A wheel's requirement with its word on extras decided; None if it is for others only."""
    from packaging.markers import Marker

    asked: list[bool] = []

    def decided(condition: re.Match[str]) -> str:
        asked.append((package_name(condition[2]) in extras) == (condition[1] == "=="))
        return f'python_version {">=" if asked[-1] else "<"} "0"'

    text = re.sub(r"""extra\s*(==|!=)\s*["']([^"']*)["']""", decided, str(requirement.marker or ""))
    if " or " not in text and not all(asked):
        return None
    requirement.marker = Marker(text) if text and text != 'python_version >= "0"' else None
    return requirement


def _remedy(path: Path) -> str:
    return f"Make a wheel of it (`python -m pip wheel --no-deps -w dist {path}`) and name that."


def _listed(names: Any) -> str:
    return ", ".join(sorted(names)) or "none"
