"""The requirements of an image, collected from requirement files, projects, dependency groups and local packages."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from skyward.builder.events import warn
from skyward.builder.packages.lock import Rules
from skyward.builder.packages.metadata import LocalPackage, dependencies_of, in_words, listed, local_package, located
from skyward.builder.packages.pip_files import EXPORTS, Line, read_pip_file
from skyward.builder.packages.project import Choice, from_pylock, located_project, lock_of, locked_project, read_project
from skyward.builder.packages.pylock import Locked, Target
from skyward.errors import ConfigError
from skyward.model import image_fields as fields
from skyward.model.image import Image, local_path, package_name, requirement_name
from skyward.model.image_fields import local_minor, platform_of

_PYLOCK = re.compile(r"pylock(\.[^.]+)?\.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """An image with all requirements from files among its own.

    Attributes:
        image: `requirements`, `constraints`, `groups` and `project` are empty; `pip` includes the dependencies of local
            packages, with their origins recorded. Packages provided locally are not requested from an index.
        packages: the local packages.
        rules: other rules from the files.
    """

    image: Image
    packages: tuple[LocalPackage, ...] = ()
    rules: Rules = field(default_factory=Rules)


def resolve_files(image: Image, root: Path, *, python: str | None = None, platform: str | None = None) -> Resolved:
    """Read all files that an image names.

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
    return reading.resolved()


class _Reading:
    """The content found so far in the files of one image."""

    def __init__(self, image: Image, root: Path, python: str, platform: str) -> None:
        self._image, self._root, self._target = image, root, Target(python, platform)
        self._found: list[tuple[str, str]] = []  # requirements and their origins
        self._packages: dict[Path, LocalPackage] = {}
        self._rules = Rules()
        self._locks: dict[str, str] = {}  # packages pinned by locks, with the origin of the lock
        self._own: Path | None = None  # the project of the image

    def resolved(self) -> Resolved:
        """Return the image with everything that was found."""
        found = (replace(each, is_project=path == self._own) for path, each in self._packages.items())
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
        rules = replace(
            self._rules, pinned=tuple(package for package in self._rules.pinned if package.name not in provided)
        )
        return Resolved(image=image, packages=packages, rules=rules)

    def project(self) -> None:
        """Read the project of the image."""
        wanted = self._image.project
        if wanted is None:
            return
        choice = Choice(groups=tuple(wanted.groups), extras=tuple(wanted.extras), package=wanted.package)
        folder = located(self._root, wanted.path)
        self._own = located_project(folder, choice.package)
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
                for line in read_pip_file(path, name, self._root):
                    self._line(line)
        for name in self._image.constraints:
            for line in read_pip_file(located(self._root, name), name, self._root, constraints=True):
                self._line(line)

    def groups(self) -> None:
        """Read dependency groups of the nearest project."""
        if not self._image.groups:
            return
        path = _nearest(self._root, self._image)
        document = read_project(path.parent)
        groups = {package_name(name): texts for name, texts in document.get("dependency-groups", {}).items()}
        optional = {package_name(name) for name in document.get("project", {}).get("optional-dependencies", {})}
        if unknown := [name for name in self._image.groups if name not in {*groups, *optional}]:
            raise ConfigError(
                f"Image: groups names {unknown[0]!r}, which {path} does not have; it has: "
                f"{in_words({*groups, *optional})}."
            )
        if lock_of(path.parent):
            chosen = tuple(name for name in self._image.groups if name in groups)
            if chosen:
                locked = self._locked(path.parent, Choice(groups=chosen, alone=True))
                self._take(locked, f"your groups={list(chosen)!r}")
            extras = tuple(name for name in self._image.groups if name not in groups)
            if extras:
                locked = self._locked(path.parent, Choice(extras=extras, itself=False))
                self._take(locked, f"your groups={list(extras)!r}")
            return
        self._settings(document, path)
        for name in self._image.groups:
            if name in groups:
                texts = tuple(_expanded(name, groups, path, ()))
                entries = _checked(texts, f"{path}, [dependency-groups] {name}")
            else:
                texts = dependencies_of({**document["project"], "dependencies": []}, (name,))
                entries = _checked(texts, f"{path}, [project.optional-dependencies] {name}")
            _refuse_sources(document, entries, self._image, path)
            self._found += [(entry, f"your groups=[{name!r}]") for entry in entries]

    def local(self) -> None:
        """Read local wheels and projects, and their dependencies."""
        asked = {*self._image.pip, *(entry for entry, _ in self._found)}
        for entry in sorted(entry for entry in asked if local_path(entry) is not None):
            folder = located_project(located(self._root, local_path(entry) or ""), None)
            if folder in self._packages:
                continue
            origin = f"your pip=[{entry!r}]"
            if (folder / "pyproject.toml").is_file():
                document = read_project(folder)
                if lock_of(folder):
                    extras = tuple(entry.removesuffix("]").rpartition("[")[2].split(",")) if "[" in entry else ()
                    self._take(self._locked(folder, Choice(extras=extras)), origin, {folder: entry})
                    continue
                self._settings(document, folder / "pyproject.toml")
            package = self._packages[folder] = local_package(entry, folder)
            needs = [(fields.requirement(need), origin) for need in package.dependencies]
            if (folder / "pyproject.toml").is_file():
                _refuse_sources(document, [need for need, _ in needs], self._image, folder / "pyproject.toml")
            self._found += needs

    def _project_file(self, path: Path, name: str) -> None:
        where = f"{name}, [project] dependencies"
        if lock_of(path.parent):
            self._take(self._locked(path.parent, Choice(itself=False)), where)
            return
        table = read_project(path.parent)
        _check_says_needs(table, path)
        entries = _checked(dependencies_of(table.get("project", {}), ()), f"{path}, [project] dependencies")
        self._settings(table, path)
        _refuse_sources(table, entries, self._image, path)
        self._found += [(entry, where) for entry in entries]

    def _locked(self, folder: Path, choice: Choice) -> Locked:
        return locked_project(folder, choice, self._root, self._target)

    def _take(self, locked: Locked, origin: str, entries: dict[Path, str] | None = None) -> None:
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
            self._packages[each.path] = replace(each, entry=(entries or {}).get(each.path, each.entry))
            self._found.append((self._packages[each.path].entry, origin))
        self._override(locked.overrides)

    def _settings(self, document: dict[str, Any], path: Path) -> None:
        """Add constraints and overrides of a project without a lock; warn of a lock that only its own tool reads."""
        for name, export in EXPORTS.items():
            if (path.parent / name).is_file():
                warn(
                    f"{path.parent / name} is not used, as only its own tool reads that form: what {path} needs is "
                    f"resolved anew. To have the versions that it names, `{export}` in {path.parent}, and name "
                    f"{export.split()[-1]} in requirements= in place of the project."
                )
        settings = document.get("tool", {}).get("uv", {})
        constraints = _checked(settings.get("constraint-dependencies", ()), f"{path}, constraint-dependencies")
        self._rules = replace(self._rules, constraints=_joined(self._rules.constraints, constraints))
        self._override(_checked(settings.get("override-dependencies", ()), f"{path}, override-dependencies"))

    def _override(self, overrides: Iterable[str]) -> None:
        self._rules = replace(self._rules, overrides=_joined(self._rules.overrides, overrides))

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
    """Check that a local file is one of those that a line allows."""
    from skyward.builder.files.copied import sha256_of

    if path.is_file() and f"sha256:{sha256_of(path)}" not in line.hashes:
        raise ConfigError(f"The hashes that {line.where} gives for {line.text} are not those of {path}.")


def _joined(known: Iterable[str], more: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({*known, *more}))


def _checked(entries: Iterable[str], where: str) -> list[str]:
    checked = []
    for entry in entries:
        try:
            checked.append(fields.requirement(entry))
        except ConfigError as error:
            raise ConfigError(f"{where}: {str(error).removeprefix('Image: ')}") from None
    return checked


def _expanded(name: str, groups: dict[str, Any], path: Path, above: tuple[str, ...]) -> list[str]:
    """Expand a dependency group with the groups it includes (PEP 735)."""
    if name in above:
        raise ConfigError(f"{path}: the dependency group {name!r} includes itself, by way of {above[-1]!r}.")
    texts: list[str] = []
    for entry in listed(groups[name], f"{path}: the dependency group {name!r}"):
        inner = package_name(entry["include-group"]) if isinstance(entry, dict) and "include-group" in entry else None
        if inner in groups:
            texts += _expanded(inner, groups, path, (*above, name))
        elif isinstance(entry, str):
            texts.append(entry)
        else:
            raise ConfigError(f"{path}: the dependency group {name!r} holds {entry!r}, which names no group there.")
    return texts


def _check_says_needs(table: dict[str, Any], path: Path) -> None:
    """Check that a project without a lock declares its dependencies where all tools read them."""
    project = table.get("project")
    if project is not None and "dependencies" not in project.get("dynamic", ()):
        listed(project.get("dependencies", []), f"{path}: [project] dependencies")
        return
    lacks = "has no [project] table" if project is None else "has its dependencies from its build (dynamic)"
    remedy = "write them into [project] dependencies"
    if "poetry" in table.get("tool", {}):
        remedy = f"`poetry export -f requirements.txt -o requirements.txt` in {path.parent}, and name that file"
    elif groups := table.get("dependency-groups"):
        remedy = f"name its groups: Image(groups=[{min(groups)!r}])"
    raise ConfigError(f"{path} {lacks}, so that what it needs cannot be read from it; {remedy}.")


def _nearest(root: Path, image: Image) -> Path:
    for folder in (root, *root.parents):
        if (folder / "pyproject.toml").is_file():
            return folder / "pyproject.toml"
    raise ConfigError(f"Image: groups={list(image.groups)!r}, but there is no pyproject.toml in {root} or above.")


def _refuse_sources(document: dict[str, Any], entries: list[str], image: Image, path: Path) -> None:
    """Refuse packages that uv would take from another source for this project, unless the image names their source."""
    sources = document.get("tool", {}).get("uv", {}).get("sources", {})
    elsewhere = {package_name(name) for name in sources} & {requirement_name(entry) for entry in entries}
    said = {name for index in image.pip_indexes for name in index.packages}
    said |= {requirement_name(entry) for entry in image.pip}
    if missing := sorted(elsewhere - said):
        raise ConfigError(
            f"{path} takes {', '.join(missing)} from a source of its own ([tool.uv.sources]), which an image follows "
            f"by way of a lock only: `uv lock` in {path.parent}. Or say in the image where it comes from: pip_indexes "
            "for an index, pip for a path or a version."
        )
