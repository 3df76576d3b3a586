"""The requirements of an image, collected from requirement files, projects, dependency groups and local packages."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from skyward.builder.events import warn
from skyward.builder.packages.local import LocalPackage, local_package, located
from skyward.builder.packages.lock import Request, Rules
from skyward.builder.packages.project import Choice, Locked, from_pylock, lock_of, locked_project, read_project
from skyward.builder.packages.pylock import Target
from skyward.builder.packages.requirement_files import EXPORTS, Line, read_requirements
from skyward.errors import ConfigError
from skyward.model import image_fields as fields
from skyward.model.image import Image, local_path, package_name, requirement_name
from skyward.model.image_fields import local_minor, platform_of

_PYLOCK = re.compile(r"pylock(\.[^.]+)?\.toml")


def resolve_files(image: Image, root: Path, *, python: str | None = None, platform: str | None = None) -> Request:
    """Read all files that an image names, and return what is to be locked.

    In its image, `requirements`, `constraints`, `groups` and `project` are empty: `pip` has their entries, with their
    origins recorded. Packages provided locally are not requested from an index.

    Args:
        image: the description.
        root: base of its relative paths.
        python: minor version of the nodes; None for the client's.
        platform: OCI platform of the nodes, unless the image names one; None for this machine's.

    Raises:
        ConfigError: a file is missing or has other content, or a lock does not fit its project; the message names file
            and line.
    """
    reading = _Reading(image, root, python or local_minor(), image.platform or platform or platform_of(None))
    reading.project()
    reading.files()
    reading.groups()
    reading.local()
    return reading.request()


class _Reading:
    """The content found so far in the files of one image."""

    def __init__(self, image: Image, root: Path, python: str, platform: str) -> None:
        self._image, self._root, self._target = image, root, Target(python, platform)
        self._found: list[tuple[str, str]] = []  # requirements and their origins
        self._packages: dict[Path, LocalPackage] = {}
        self._rules = Rules()
        self._locks: dict[str, str] = {}  # packages pinned by locks, with the origin of the lock
        self._own = ""  # name of the project of the image

    def request(self) -> Request:
        """Return the image with everything that was found."""
        found = (replace(each, is_project=each.name == self._own) for each in self._packages.values())
        packages = tuple(sorted(found, key=lambda each: each.name))
        provided = {package.name for package in packages}
        entries = {*self._image.pip, *(entry for entry, _ in self._found)}
        entries |= {package.entry for package in packages}
        kept = (each for each in entries if local_path(each) is not None or requirement_name(each) not in provided)
        origins = {f"pip:{entry}": origin for entry, origin in self._found if entry not in self._image.pip}
        image = replace(
            self._image,
            pip=tuple(kept),
            requirements=(),
            constraints=(),
            groups=(),
            project=None,
            origins=tuple(sorted((origins | dict(self._image.origins)).items())),
        )
        pinned = tuple(package for package in self._rules.pinned if package.name not in provided)
        return Request(
            image=image,
            python=self._target.python,
            platform=self._target.platform,
            packages=packages,
            rules=replace(self._rules, pinned=pinned),
        )

    def project(self) -> None:
        """Read the project of the image."""
        wanted = self._image.project
        if wanted is None:
            return
        choice = Choice(groups=tuple(wanted.groups), extras=tuple(wanted.extras), package=wanted.package)
        folder = located(self._root, wanted.path)
        name = wanted.package or read_project(folder).get("project", {}).get("name", "")
        self._own = package_name(name)
        self._take(self._locked(folder, choice), f"the lock of your project {wanted.path!r}")

    def files(self) -> None:
        """Read files of requirements and of constraints."""
        for name in self._image.requirements:
            path = located(self._root, name)
            if path.name == "pyproject.toml":
                self._project_file(path, name)
            elif _PYLOCK.fullmatch(path.name):
                self._take(from_pylock(path, Choice(), self._root, self._target), name)
            else:
                for line in read_requirements(path, name, self._root):
                    self._line(line)
        for name in self._image.constraints:
            for line in read_requirements(located(self._root, name), name, self._root, "constraint"):
                self._line(line)

    def groups(self) -> None:
        """Read dependency groups of the nearest project, or its optional dependencies of that name."""
        names = self._image.groups
        if not names:
            return
        path = _nearest(self._root, names)
        document = read_project(path.parent)
        groups = {package_name(name) for name in document.get("dependency-groups", {})}
        optional = {package_name(name) for name in document.get("project", {}).get("optional-dependencies", {})}
        if unknown := [name for name in names if name not in groups | optional]:
            known = ", ".join(sorted(groups | optional)) or "none"
            raise ConfigError(f"Image: groups names {unknown[0]!r}, which {path} does not have; it has: {known}.")
        chosen = tuple(name for name in names if name in groups)
        extras = tuple(name for name in names if name not in groups)
        if lock_of(path.parent):
            if chosen:
                locked = self._locked(path.parent, Choice(groups=chosen, alone=True))
                self._take(locked, f"your groups={list(chosen)!r}")
            if extras:
                locked = self._locked(path.parent, Choice(extras=extras, itself=False))
                self._take(locked, f"your groups={list(extras)!r}")
            return
        self._settings(document, path)
        for name in chosen:
            self._add(_group(document, name, path), f"your groups=[{name!r}]", document, path)
        for name in extras:
            self._add(_extra(document["project"], name, set()), f"your groups=[{name!r}]", document, path)

    def local(self) -> None:
        """Read local wheels and projects."""
        asked = {*self._image.pip, *(entry for entry, _ in self._found)}
        for entry in sorted(entry for entry in asked if local_path(entry) is not None):
            folder = located(self._root, local_path(entry) or "")
            if folder in self._packages:
                continue
            if (folder / "pyproject.toml").is_file():
                if lock_of(folder):
                    extras = tuple(entry.removesuffix("]").rpartition("[")[2].split(",")) if "[" in entry else ()
                    name = package_name(read_project(folder).get("project", {}).get("name", ""))
                    self._take(self._locked(folder, Choice(extras=extras)), f"your pip=[{entry!r}]", {name: entry})
                    continue
                self._settings(read_project(folder), folder / "pyproject.toml")
            self._packages[folder] = local_package(entry, folder)

    def _project_file(self, path: Path, name: str) -> None:
        where = f"{name}, [project] dependencies"
        if lock_of(path.parent):
            self._take(self._locked(path.parent, Choice(itself=False)), where)
            return
        document = read_project(path.parent)
        project = document.get("project")
        if project is None or "dependencies" in project.get("dynamic", ()):
            raise ConfigError(
                f"{path} has no static [project] dependencies. Write them there, or install the project itself: "
                f"Image(pip=[{str(path.parent)!r}])."
            )
        self._settings(document, path)
        self._add(project.get("dependencies", []), where, document, path)

    def _add(self, texts: Iterable[Any], origin: str, document: dict[str, Any], path: Path) -> None:
        """Add requirements of a project without a lock. Those that uv would take from another source are refused."""
        entries = _checked(texts, str(path))
        sources = {package_name(name) for name in document.get("tool", {}).get("uv", {}).get("sources", {})}
        said = {name for index in self._image.pip_indexes for name in index.packages}
        said |= {requirement_name(entry) for entry in self._image.pip}
        if missing := sorted(sources & {requirement_name(entry) for entry in entries} - said):
            raise ConfigError(
                f"{path} takes {', '.join(missing)} from a source of its own ([tool.uv.sources]), which an image "
                f"follows only through a lock: run `uv lock` in {path.parent}. Or name its source in the image: "
                "pip_indexes for an index, pip for a path or a version."
            )
        self._found += [(entry, origin) for entry in entries]

    def _locked(self, folder: Path, choice: Choice) -> Locked:
        return locked_project(folder, choice, self._root, self._target)

    def _take(self, locked: Locked, origin: str, entries: dict[str, str] | None = None) -> None:
        """Add the packages of a lock."""
        known = {package.name: package for package in self._rules.pinned}
        for package in locked.packages:
            other = known.setdefault(package.name, package)
            if other.pin != package.pin:
                raise ConfigError(
                    f"The locks of an image contradict each other: {self._locks[package.name]} has {other.pin}, "
                    f"{origin} has {package.pin}. Lock them together, as one workspace."
                )
            self._locks.setdefault(package.name, origin)
        self._rules = replace(self._rules, pinned=tuple(known[name] for name in sorted(known)))
        self._image = replace(self._image, pip_indexes=(*self._image.pip_indexes, *locked.indexes))
        self._found += [(package.pin, origin) for package in locked.packages]
        for each in locked.local:
            self._packages[each.path] = replace(each, entry=(entries or {}).get(each.name, each.entry))
            self._found.append((self._packages[each.path].entry, origin))
        self._rules = replace(self._rules, overrides=_joined(self._rules.overrides, locked.overrides))

    def _settings(self, document: dict[str, Any], path: Path) -> None:
        """Add constraints and overrides of a project without a lock; warn of a lock that only its own tool reads."""
        for name, export in EXPORTS.items():
            if (path.parent / name).is_file():
                warn(
                    f"{path.parent / name} is not used: only its own tool reads it, and {path} is locked without it. "
                    f"To use its versions, run `{export}` in {path.parent} and name {export.split()[-1]} in "
                    "requirements= instead of the project."
                )
        settings = document.get("tool", {}).get("uv", {})
        constraints = _checked(settings.get("constraint-dependencies", ()), f"{path}, constraint-dependencies")
        overrides = _checked(settings.get("override-dependencies", ()), f"{path}, override-dependencies")
        self._rules = replace(
            self._rules,
            constraints=_joined(self._rules.constraints, constraints),
            overrides=_joined(self._rules.overrides, overrides),
        )

    def _line(self, line: Line) -> None:
        """Add the content of a line of a file."""
        rules, sources = self._rules, self._rules.sources
        if line.hashes and (path := local_path(line.text)) is not None:
            _check_hash(located(self._root, path), line)
        elif line.hashes:
            rules = replace(rules, hashed=(*rules.hashed, line))
        match line.kind:
            case "requirement":
                self._found.append((line.text, line.where))
            case "constraint":
                rules = replace(rules, constraints=_joined(rules.constraints, [line.text]))
            case "require-hashes":
                rules = replace(rules, all_hashed=rules.all_hashed or line.where)
            case "index-url":
                sources = replace(sources, default=line.text)
            case "extra-index-url":
                sources = replace(sources, extra=(*sources.extra, line.text))
            case "find-links":
                sources = replace(sources, find_links=(*sources.find_links, line.text))
        self._rules = replace(rules, sources=sources)


def _check_hash(path: Path, line: Line) -> None:
    from skyward.builder.files.copied import sha256_of

    if path.is_file() and f"sha256:{sha256_of(path)}" not in line.hashes:
        raise ConfigError(f"None of the hashes for {line.text} ({line.where}) matches {path}.")


def _joined(known: Iterable[str], more: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({*known, *more}))


def _checked(entries: Any, where: str) -> list[str]:
    if isinstance(entries, str):
        raise ConfigError(f"{where}: requirements must be a list, such as ['numpy>=2']; found {entries!r}.")
    try:
        return [fields.requirement(entry) for entry in entries]
    except ConfigError as error:
        raise ConfigError(f"{where}: {str(error).removeprefix('Image: ')}") from None


def _group(document: dict[str, Any], name: str, path: Path) -> tuple[str, ...]:
    """Expand a dependency group with the groups it includes (PEP 735)."""
    from packaging.dependency_groups import resolve_dependency_groups

    try:
        return resolve_dependency_groups(document["dependency-groups"], name)
    except (ValueError, TypeError, LookupError, ExceptionGroup) as error:
        raise ConfigError(f"{path}: the dependency group {name!r} is invalid: {error}.") from None


def _extra(project: dict[str, Any], name: str, seen: set[str]) -> list[str]:
    """Return the requirements of optional dependencies, which may name others of the same project."""
    optional = {package_name(key): texts for key, texts in project["optional-dependencies"].items()}
    found: list[str] = []
    for text in optional.get(name, ()):
        own = re.fullmatch(r"([A-Za-z0-9._-]+)\s*\[([^\]]+)\]", text)
        if own and package_name(own[1]) == package_name(project.get("name", "")):
            for inner in map(package_name, map(str.strip, own[2].split(","))):
                found += [] if inner in seen else _extra(project, inner, seen | {name})
        else:
            found.append(text)
    return found


def _nearest(root: Path, names: Iterable[str]) -> Path:
    for folder in (root, *root.parents):
        if (folder / "pyproject.toml").is_file():
            return folder / "pyproject.toml"
    raise ConfigError(f"Image: groups={list(names)!r}, but there is no pyproject.toml in {root} or above.")
