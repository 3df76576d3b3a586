"""`Image.infer`: proposes the packages of an image from what code imports and what this interpreter has installed.

The code is read, never imported or run. Local modules are followed, and their imports count as well. The user writes
the packages into the image; nothing is added silently.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import Distribution, distributions, packages_distributions
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from skyward.builder.sources.imports import EntryCode, Import, Module, entry_code, find_module, imports_in
from skyward.errors import ConfigError
from skyward.model.image import Image, local_path, package_name, requirement_name

State = Literal["add", "change", "keep", "unused"]
_SIGNS: dict[State, str] = {"add": "+", "change": "~", "keep": "=", "unused": "-"}
_SHOWN = 3  # places of an import that are shown
# frameworks that a plugin installs and sets up on nodes
_PLUGINS = {
    "jax": "jax",
    "joblib": "joblib",
    "keras": "keras",
    "scikit-learn": "sklearn",
    "tensorflow": "tensorflow",
    "torch": "torch",
    "transformers": "huggingface",
}


def infer(code: object) -> Inferred:
    """Return the installed packages that a function, class, module or script imports.

    Args:
        code: a function (also a compute function), a class, a module, or the path of a script or notebook.

    Raises:
        ConfigError: it is none of these, or its source cannot be read.
    """
    return _Inference(entry_code(code)).result()


@dataclass(frozen=True, slots=True, kw_only=True)
class InferredPackage:
    """A package that code imports.

    Attributes:
        name: normalised name.
        version: version installed here.
        requirement: the entry for `Image(pip=...)`: name and version, or the source of a package installed from a
            repository or a path.
        where: places of the imports, such as "train.py:3".
        optional: whether every import of it tolerates its absence.
        plugin: the plugin that sets it up on nodes, such as "torch"; None if there is none.
        note: how it was installed, unless that was by version from an index; else "".
    """

    name: str
    version: str
    requirement: str
    where: tuple[str, ...] = ()
    optional: bool = False
    plugin: str | None = None
    note: str = ""

    @property
    def about(self) -> str:
        """Description for users."""
        places = ", ".join(self.where[:_SHOWN]) + (", ..." if len(self.where) > _SHOWN else "")
        words = [f"imported in {places}" + (" (optional)" if self.optional else "")]
        words += [f"sky.plugins.{self.plugin}() installs it and sets it up"] if self.plugin else []
        return "; ".join([*words, *([self.note] if self.note else [])])


@dataclass(frozen=True, slots=True)
class Inferred:
    """The imports of some code, resolved in this interpreter. They are in no image until they are written into one.

    Attributes:
        code: name of the code that was read.
        packages: the imported packages by name, without their dependencies.
        missing: modules that are not installed: name, place of the import, and whether the import is optional.
        notes: sentences on other findings, such as projects in editable mode.
    """

    code: str
    packages: tuple[InferredPackage, ...]
    missing: tuple[tuple[str, str, bool], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def pip(self) -> tuple[str, ...]:
        """The packages as requirements for `Image(pip=...)`."""
        return tuple(package.requirement for package in self.packages)

    @property
    def plugins(self) -> tuple[str, ...]:
        """Names of the plugins that set up imported packages, for `sky.plugins`."""
        return tuple(sorted({package.plugin for package in self.packages if package.plugin}))

    def diff(self, image: Image, root: Path | None = None) -> Difference:
        """Compare an image with the imports.

        Args:
            image: the complete image to compare with; its requirements files are read.
            root: base of its relative paths; None for the working directory.

        Raises:
            ConfigError: a file that the image names cannot be read.
        """
        return Difference(self, tuple(_compared(self.packages, _wanted(image, root or Path.cwd()))))

    def __str__(self) -> str:
        return str(self.diff(Image()))


@dataclass(frozen=True, slots=True)
class Line:
    """One package in a difference.

    Attributes:
        state: "add": the image lacks it; "change": the image asks for another version; "keep": the image has it;
            "unused": nothing imports it, though another package may need it.
        requirement: the proposed requirement; the image's own one for "keep" and "unused".
        about: description for users.
        package: the imported package; None if nothing imports it.
    """

    state: State
    requirement: str
    about: str
    package: InferredPackage | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference between an image and the imports of some code; prints one line per package."""

    inferred: Inferred
    lines: tuple[Line, ...]

    def __bool__(self) -> bool:
        """Return whether the image lacks a package or asks for another version of it."""
        return any(line.state in ("add", "change") for line in self.lines)

    @property
    def pip(self) -> tuple[str, ...]:
        """Requirements to write into the image: missing ones, and those that replace another version."""
        return tuple(line.requirement for line in self.lines if line.state in ("add", "change"))

    def __str__(self) -> str:
        width = max((len(line.requirement) for line in self.lines), default=0)
        found = [f"{_SIGNS[line.state]} {line.requirement:<{width}}  {line.about}" for line in self.lines]
        for name, where, optional in self.inferred.missing:
            found.append(f"? {name:<{width}}  imported in {where}{' (optional)' * optional}, is not installed here")
        found += [f"# {note}" for note in self.inferred.notes]
        return "\n".join(found) or f"{self.inferred.code} imports nothing but the standard library and skyward."


def _wanted(image: Image, root: Path) -> dict[str, list[str]]:
    """Return an image's requirements by package."""
    from skyward.builder.packages.requirements import resolve_files

    wanted: dict[str, list[str]] = {}
    for entry in resolve_files(image, root).image.pip:
        wanted.setdefault(requirement_name(entry) or entry, []).append(entry)
    return wanted


def _compared(packages: Iterable[InferredPackage], wanted: dict[str, list[str]]) -> Iterator[Line]:
    left = dict(wanted)
    for package in packages:
        there = left.pop(package.name, None) or left.pop(package.requirement, None)
        if there is None:
            yield Line("add", package.requirement, package.about, package)
        elif all(_allows(entry, package.version) for entry in there):
            yield Line("keep", ", ".join(there), package.about, package)
        else:
            yield Line("change", package.requirement, f"the image has {', '.join(there)}; {package.about}", package)
    for name, entries in left.items():
        if local_path(name) is None:
            about = "in the image; nothing imports it, though other packages may need it"
            yield Line("unused", ", ".join(entries), about)


def _allows(requirement: str, version: str) -> bool:
    from packaging.requirements import Requirement

    if local_path(requirement) is not None:
        return True
    parsed = Requirement(requirement)
    return parsed.url is not None or parsed.specifier.contains(version, prereleases=True)


class _Inference:
    """Follows the imports of one piece of code."""

    def __init__(self, entry: EntryCode) -> None:
        self._entry = entry
        self._path = tuple([str(entry.folder)] if entry.folder else []) + tuple(sys.path)
        self._packages: dict[str, InferredPackage] = {}
        self._missing: dict[str, Import] = {}
        self._notes: dict[str, None] = {}
        self._followed = set[str]()

    def result(self) -> Inferred:
        """Follow the imports and return the result."""
        todo = list(self._entry.imports)
        while todo:
            todo += self._resolve(todo.pop(0))
        packages = tuple(self._packages[name] for name in sorted(self._packages))
        missing = tuple((name, each.where, each.optional) for name, each in sorted(self._missing.items()))
        return Inferred(self._entry.name, packages, missing, tuple(self._notes))

    def _resolve(self, found: Import) -> Iterator[Import]:
        """Record the package of a module; for a local module, yield its imports instead."""
        top = found.name.partition(".")[0]
        if top in sys.stdlib_module_names or top in ("skyward", "__main__", "__future__"):
            return
        module = find_module(found.name, self._path)
        top_module = module if top == found.name else find_module(top, self._path)
        if top_module is not None and top_module.is_local:
            if module is not None:
                yield from self._follow(found.name, module)
            elif not found.maybe:
                self._missing.setdefault(found.name, found)
            return
        if module is not None and module.file is None and module.places:
            return  # a namespace alone belongs to no package
        above = find_module(found.name.rpartition(".")[0], self._path) if found.maybe else None
        if above is not None and above.file is None and module is None:
            self._missing.setdefault(found.name, found)  # a namespace contains only modules
            return
        installed = _package_of(found.name)
        if installed is not None:
            known = self._packages.get(installed.name, installed)
            where = known.where if found.where in known.where else (*known.where, found.where)
            self._packages[installed.name] = replace(known, where=where, optional=known.optional and found.optional)
        elif top_module is not None:
            self._notes[f"{top}, imported in {found.where}, is here, but no installed package is known to have it"] = (
                None
            )
        elif not found.maybe:
            self._missing.setdefault(top, found)

    def _follow(self, name: str, module: Module) -> Iterator[Import]:
        """Yield the imports of a local module and of the packages that contain it."""
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            each = ".".join(parts[:length])
            found = module if each == name else find_module(each, self._path)
            if each in self._followed or found is None or found.file is None:
                continue
            self._followed.add(each)
            if project := _editable_project(str(found.file.resolve())):
                self._notes[f"{each.partition('.')[0]} is local: {project}; its files are sent with calls"] = None
            if found.file.suffix != ".py":
                self._notes[f"{each} is local and not of Python: {found.file} is sent only if includes names it"] = None
                continue
            package = each if found.places else each.rpartition(".")[0]
            try:
                yield from imports_in(found.file, package, self._shown(found.file))
            except ConfigError as error:
                self._notes[f"{each} is not followed: {error}"] = None

    def _shown(self, file: Path) -> str:
        folder = self._entry.folder
        return file.relative_to(folder).as_posix() if folder and file.is_relative_to(folder) else str(file)


def _package_of(module: str) -> InferredPackage | None:
    """Return the installed package that provides a module (dotted name); None if there is none."""
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


def _editable_project(file: str) -> str | None:
    """Return name and place of the editable install that a file belongs to; None if it belongs to none."""
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
    """Return the origin of a package not installed from an index, else an empty dict; see `_of_origin`."""
    try:
        found = json.loads(distribution.read_text("direct_url.json") or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) and "url" in found else {}


def _described(distribution: Distribution) -> InferredPackage:
    """Describe an installed package without imports. It starts as optional; the first required import changes that."""
    from packaging.version import InvalidVersion, Version

    name, version = package_name(distribution.metadata["Name"]), distribution.version
    try:
        public = Version(version).public  # indexes seldom have a local version, such as "+cpu"
    except InvalidVersion:
        public = version
    requirement, note = f"{name}=={public}", "" if public == version else f"{version} here"
    if origin := _origin(distribution):
        requirement, note = _of_origin(name, version, requirement, origin)
    return InferredPackage(
        name=name, version=version, requirement=requirement, optional=True, plugin=_PLUGINS.get(name), note=note
    )


def _of_origin(name: str, version: str, requirement: str, origin: dict[str, Any]) -> tuple[str, str]:
    """Return the requirement and note of a package that was not installed from an index.

    The format of `origin` is https://packaging.python.org/en/latest/specifications/direct-url/.
    """
    url, path = _without_login(str(origin["url"])), _path(str(origin["url"]))
    if "vcs_info" in origin:
        vcs, below = origin["vcs_info"], origin.get("subdirectory")
        source = f"{vcs['vcs']}+{url}@{vcs['commit_id']}" + (f"#subdirectory={below}" if below else "")
        if url.startswith(("https://", "ssh://")):
            return f"{name} @ {source}", f"installed from {source}"
        return requirement, f"installed from {source}, which nodes cannot reach"
    if path and path.exists():
        return str(path), f"{version}, installed from {path}"
    if path:
        return requirement, f"installed from {path}, which is gone"
    return f"{name} @ {url}", f"installed from {url}"


def _path(url: str) -> Path | None:
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def _without_login(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme == "ssh" and not parts.password:
        return url
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
