"""The requirements of an image, collected from requirement files, projects, dependency groups and local packages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from packaging.dependency_groups import resolve_dependency_groups

from skyward.builder.packages.local import LocalPackage, local_package, located
from skyward.builder.packages.lock import Request, Rules
from skyward.builder.packages.project import Choice, Locked, from_pylock, lock_of, locked_project, read_project
from skyward.builder.packages.pylock import Target
from skyward.builder.packages.requirement_files import Line, read_requirements
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
        ConfigError: a file is missing or has other content, or a lock does not fit its project; the message names the
            file.
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
        self._own = package_name(wanted.package or _name_of(folder))
        self._take(self._locked(folder, choice), f"the lock of your project {wanted.path!r}")

    def files(self) -> None:
        """Read files of requirements and of constraints."""
        for name in self._image.requirements:
            path = located(self._root, name)
            if path.name == "pyproject.toml":
                self._of_project(path.parent, Choice(itself=False), f"{name}, [project] dependencies")
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
        folder = next((each for each in (self._root, *self._root.parents) if (each / "pyproject.toml").is_file()), None)
        if folder is None:
            raise ConfigError(
                f"Image: groups={list(names)!r}, but there is no pyproject.toml in {self._root} or above."
            )
        document = read_project(folder)
        known = {package_name(name) for name in document.get("dependency-groups", {})}
        optional = _optional(document).keys()
        if unknown := [name for name in names if name not in known | optional]:
            listed = ", ".join(sorted(known | optional)) or "none"
            raise ConfigError(
                f"Image: groups names {unknown[0]!r}, which {folder / 'pyproject.toml'} does not have; "
                f"it has: {listed}."
            )
        chosen = tuple(name for name in names if name in known)
        extras = tuple(name for name in names if name not in known)
        if chosen:
            self._of_project(folder, Choice(groups=chosen, alone=True), f"your groups={list(chosen)!r}")
        if extras:
            self._of_project(folder, Choice(extras=extras, itself=False), f"your groups={list(extras)!r}")

    def local(self) -> None:
        """Read local wheels and projects; those with a lock as it has them."""
        asked = {*self._image.pip, *(entry for entry, _ in self._found)}
        for entry in sorted(entry for entry in asked if local_path(entry) is not None):
            folder = located(self._root, local_path(entry) or "")
            if folder in self._packages:
                continue
            if (folder / "pyproject.toml").is_file() and lock_of(folder):
                extras = tuple(entry.removesuffix("]").rpartition("[")[2].split(",")) if "[" in entry else ()
                locked = self._locked(folder, Choice(extras=extras))
                self._take(locked, f"your pip=[{entry!r}]", {package_name(_name_of(folder)): entry})
            else:
                self._packages[folder] = local_package(entry, folder)

    def _of_project(self, folder: Path, choice: Choice, origin: str) -> None:
        """Add what a project requires: as its lock has it, else as its pyproject.toml says."""
        if lock_of(folder):
            self._take(self._locked(folder, choice), origin)
            return
        path, document = folder / "pyproject.toml", read_project(folder)
        try:
            entries = [fields.requirement(entry) for entry in _declared(document, choice)]
        except (ConfigError, ValueError, TypeError, LookupError, ExceptionGroup) as error:
            raise ConfigError(f"{path} cannot be used for {origin}: {error}") from None
        sources = {package_name(name) for name in document.get("tool", {}).get("uv", {}).get("sources", {})}
        said = {name for index in self._image.pip_indexes for name in index.packages}
        said |= {requirement_name(entry) for entry in self._image.pip}
        if missing := sorted(sources & {requirement_name(entry) for entry in entries} - said):
            raise ConfigError(
                f"{path} takes {', '.join(missing)} from a source of its own ([tool.uv.sources]), which an image "
                f"follows only through a lock: run `uv lock` in {folder}, or name the source in pip_indexes= or pip=."
            )
        self._found += [(entry, origin) for entry in entries]

    def _locked(self, folder: Path, choice: Choice) -> Locked:
        return locked_project(folder, choice, self._root, self._target)

    def _take(self, locked: Locked, origin: str, entries: Mapping[str, str] | None = None) -> None:
        """Add the packages of a lock."""
        known = {package.name: package for package in (*locked.packages, *self._rules.pinned)}
        overrides = _joined(self._rules.overrides, locked.overrides)
        self._rules = replace(self._rules, pinned=tuple(known[name] for name in sorted(known)), overrides=overrides)
        self._image = replace(self._image, pip_indexes=(*self._image.pip_indexes, *locked.indexes))
        self._found += [(package.pin, origin) for package in locked.packages]
        for each in locked.local:
            self._packages[each.path] = replace(each, entry=(entries or {}).get(each.name, each.entry))
            self._found.append((self._packages[each.path].entry, origin))

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


def _declared(document: Mapping[str, Any], choice: Choice) -> Iterable[str]:
    """Return the chosen requirements of a pyproject.toml: of dependency groups (PEP 735), of extras, or its own."""
    if choice.groups:
        return resolve_dependency_groups(document["dependency-groups"], *choice.groups)
    if choice.extras:
        return [entry for name in choice.extras for entry in _optional(document)[name]]
    project = document.get("project")
    if project is None or "dependencies" in project.get("dynamic", ()):
        raise ConfigError("It has no static [project] dependencies. Run `uv lock` beside it, or install the project.")
    return project.get("dependencies", ())  # type: ignore[no-any-return]


def _optional(document: Mapping[str, Any]) -> Mapping[str, Sequence[str]]:
    """Return the optional dependencies of a project, with those of its own extras that they name."""
    project = document.get("project", {})
    found = {package_name(name): entries for name, entries in project.get("optional-dependencies", {}).items()}

    def expanded(name: str, seen: frozenset[str]) -> Iterator[str]:
        for entry in found.get(name, ()):
            if requirement_name(entry) == package_name(project.get("name", "")) and "[" in entry:
                names = map(package_name, map(str.strip, entry.partition("[")[2].partition("]")[0].split(",")))
                for inner in {*names} - seen:
                    yield from expanded(inner, seen | {inner})
            else:
                yield entry

    return {name: list(expanded(name, frozenset({name}))) for name in found}


def _name_of(folder: Path) -> str:
    return str(read_project(folder).get("project", {}).get("name", ""))


def _check_hash(path: Path, line: Line) -> None:
    from skyward.builder.files.copied import sha256_of

    if path.is_file() and f"sha256:{sha256_of(path)}" not in line.hashes:
        raise ConfigError(f"None of the hashes for {line.text} ({line.where}) matches {path}.")


def _joined(known: Iterable[str], more: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({*known, *more}))
