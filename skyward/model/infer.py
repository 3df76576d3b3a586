"""`Image.infer`: proposes the packages of an image from what code imports and what this interpreter has installed.

Files are read, never imported or run. Local modules are followed, and their imports count as well. The user writes the
packages into the image; nothing is added silently.
"""

from __future__ import annotations

import functools
import inspect
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import Distribution, packages_distributions
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote, urlsplit

from skyward.errors import ConfigError
from skyward.model.image_fields import local_path, package_name, requirement_name, without_logins
from skyward.model.source import Import, imports_in

if TYPE_CHECKING:
    from skyward.model.image import Image

State = Literal["add", "change", "keep", "unused"]
_SIGNS: dict[State, str] = {"add": "+", "change": "~", "keep": "=", "unused": "-"}
_SHOWN = 3  # places of an import that are shown
_MAIN = ("__main__", "__mp_main__")
# frameworks that a plugin installs and sets up on nodes
_PLUGINS = {
    **{name: name for name in ("jax", "joblib", "keras", "tensorflow", "torch")},
    "scikit-learn": "sklearn",
    "transformers": "huggingface",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class InferredPackage:
    """A package that code imports.

    Attributes:
        name: normalised name.
        version: version installed here.
        requirement: the entry for `Image(pip=...)`: name and version, or where it was installed from.
        where: places of the imports, such as "train.py:3".
        optional: whether every import of it tolerates its absence.
        plugin: the plugin that sets it up on nodes, such as "torch"; None if there is none.
        note: how it was installed, unless that was by version from an index; else "".
    """

    name: str
    version: str
    requirement: str
    where: tuple[str, ...] = ()
    optional: bool = True
    plugin: str | None = None
    note: str = ""

    @property
    def about(self) -> str:
        """Description for users."""
        places = ", ".join(self.where[:_SHOWN]) + (", ..." if len(self.where) > _SHOWN else "")
        words = [f"imported in {places}" + " (optional)" * self.optional]
        words += [f"sky.plugins.{self.plugin}() installs it and sets it up"] if self.plugin else []
        return "; ".join([*words, *([self.note] if self.note else [])])


@dataclass(frozen=True, slots=True)
class Inferred:
    """The imports of some code, resolved in this interpreter. They are in no image until they are written into one.

    Attributes:
        code: name of the code that was read.
        packages: the imported packages by name, without their dependencies.
        missing: modules that are not installed: name, place of the import, and whether the import is optional.
        notes: sentences on local modules that cannot be read.
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
            image: the image to compare with: its `pip`, and the lines of its requirements files.
            root: base of its relative paths; None for the working directory.

        Raises:
            ConfigError: a requirements file cannot be read.
        """
        return Difference(self, tuple(_compared(self.packages, _requirements(image, root or Path.cwd()))))

    def __str__(self) -> str:
        from skyward.model.image import Image

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
        return bool(self.pip)

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


def _requirements(image: Image, root: Path) -> dict[str, list[str]]:
    """Return an image's requirements by package."""
    lines = list(image.pip)
    for name in image.requirements:
        try:
            text = (root / name).read_text() if not name.endswith(".toml") else ""
        except OSError as error:
            raise ConfigError(f"{name} cannot be read: {error.strerror}.") from None
        each = (line.partition(" #")[0].strip() for line in text.splitlines())
        lines += [line for line in each if line[:1] not in ("", "#", "-")]
    wanted: dict[str, list[str]] = {}
    for line in lines:
        wanted.setdefault(requirement_name(line) or line, []).append(line)
    return wanted


def _compared(packages: Iterable[InferredPackage], wanted: dict[str, list[str]]) -> Iterator[Line]:
    for package in packages:
        there = wanted.pop(package.name, None) or wanted.pop(package.requirement, None)
        if there is None:
            yield Line("add", package.requirement, package.about, package)
        elif all(_allows(entry, package.version) for entry in there):
            yield Line("keep", ", ".join(there), package.about, package)
        else:
            yield Line("change", package.requirement, f"the image has {', '.join(there)}; {package.about}", package)
    for name, entries in wanted.items():
        if local_path(name) is None:
            about = "in the image; nothing imports it, though other packages may need it"
            yield Line("unused", ", ".join(entries), about)


def _allows(requirement: str, version: str) -> bool:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        parsed = Requirement(requirement)
    except InvalidRequirement:  # a path, or a line with options
        return True
    return parsed.url is not None or parsed.specifier.contains(version, prereleases=True)


# from code to packages ------------------------------------------------------------------------------------------------


def infer(code: object) -> Inferred:
    """Return the installed packages that a module imports; for a function or class, the module that defines it.

    Args:
        code: a function (also a compute function), a class, a module, or the path of a script or notebook.

    Raises:
        ConfigError: it is none of these, or its source cannot be read.
    """
    if not isinstance(code, str | Path):
        module = _module_of(code)
        if module.__name__ not in _MAIN:
            return _Inference().follow(module.__name__, [Import(module.__name__, f"the module {module.__name__}")])
        code = getattr(module, "__file__", None)
        if code is None:
            raise ConfigError("Image.infer: the main program has no file. Give the path of the script or notebook.")
    path = Path(code).expanduser().absolute()
    if path.suffix not in (".py", ".pyw", ".ipynb"):
        raise ConfigError(f"Image.infer takes the path of a Python script or notebook; found {str(code)!r}.")
    folder, package = path.parent, list[str]()
    while (folder / "__init__.py").is_file():  # in a package, relative imports start at the outermost one
        package.insert(0, folder.name)
        folder = folder.parent
    return _Inference(folder).follow(path.name, imports_in(path, ".".join(package)))


def _module_of(code: Any) -> ModuleType:
    """Return the module that defines a function (also a compute function or a partial of it) or a class."""
    plain = inspect.unwrap(code.func if isinstance(code, functools.partial) else code)
    found = plain if isinstance(plain, ModuleType) else sys.modules.get(str(getattr(plain, "__module__", None)))
    if found is None:
        raise ConfigError(
            f"Image.infer takes a function, a class, a module or the path of a script; found {type(code).__name__}."
        )
    return found


class _Inference:
    """Follows the imports of one piece of code."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._path = [*([str(folder)] if folder else []), *sys.path]
        self._installed = packages_distributions()
        self._packages: dict[str, InferredPackage] = {}
        self._missing: dict[str, Import] = {}
        self._notes: dict[str, None] = {}
        self._followed = set[Path]()

    def follow(self, code: str, imports: list[Import]) -> Inferred:
        """Follow imports and return the result."""
        todo = list(imports)
        while todo:
            todo += self._resolve(todo.pop(0))
        packages = tuple(self._packages[name] for name in sorted(self._packages))
        missing = tuple((name, each.where, each.optional) for name, each in sorted(self._missing.items()))
        return Inferred(code, packages, missing, tuple(self._notes))

    def _resolve(self, found: Import) -> Iterator[Import]:
        """Record the package of a module; for a local module, yield its imports instead."""
        top = found.name.partition(".")[0]
        if top in sys.stdlib_module_names or top in ("skyward", *_MAIN):
            return
        specs = list(self._specs(found.name))
        files = [Path(spec.origin) for spec in specs if spec.origin]
        names = sorted({*self._installed.get(top, ())})
        if len(names) > 1:  # one namespace, or alternatives such as opencv-python and opencv-python-headless
            names = [name for name in names if files and files[-1] in _files_of(name)][:1]
        local = [file for file in files if not {"site-packages", "dist-packages"} & {*file.parts}]
        if names and not local:
            self._add(Distribution.from_name(names[0]), found)
        elif len(specs) <= found.name.count(".") and not (found.maybe and files):  # a namespace has only modules
            self._missing.setdefault(found.name if specs else top, found)
        for number, file in enumerate(local, 1):
            if file not in self._followed:
                self._followed.add(file)
                yield from self._imports(".".join(found.name.split(".")[:number]), file)

    def _specs(self, name: str) -> Iterator[ModuleSpec]:
        """Yield where the packages around a module and it itself are found, without importing them."""
        path: Iterable[str] = self._path
        for part in name.split("."):
            spec = PathFinder.find_spec(part, list(path))
            if spec is None:
                return
            yield spec
            path = spec.submodule_search_locations or ()

    def _imports(self, name: str, file: Path) -> Iterator[Import]:
        """Yield the imports of a local module."""
        shown = file.relative_to(self._folder) if self._folder and file.is_relative_to(self._folder) else file
        try:
            yield from imports_in(file, name if file.stem == "__init__" else name.rpartition(".")[0], str(shown))
        except ConfigError as error:
            self._notes[f"{name} is not followed: {error}"] = None

    def _add(self, distribution: Distribution, found: Import) -> None:
        origin = _origin(distribution)
        if origin.get("dir_info", {}).get("editable"):  # local code, which is sent with calls
            return
        package = _described(distribution, origin)
        known = self._packages.get(package.name, package)
        where = known.where if found.where in known.where else (*known.where, found.where)
        self._packages[package.name] = replace(known, where=where, optional=known.optional and found.optional)


def _files_of(name: str) -> set[Path]:
    found = Distribution.from_name(name)
    return {Path(str(found.locate_file(file))) for file in found.files or ()}


def _origin(distribution: Distribution) -> dict[str, Any]:
    """Return where a package was installed from, if that was not an index; else an empty dict.

    The format is https://packaging.python.org/en/latest/specifications/direct-url/.
    """
    found: dict[str, Any] = json.loads(distribution.read_text("direct_url.json") or "{}")
    return found


def _described(distribution: Distribution, origin: dict[str, Any]) -> InferredPackage:
    """Describe an installed package, without the places of its imports."""
    name, version = package_name(distribution.metadata["Name"]), distribution.version
    public = version.partition("+")[0]  # indexes seldom have a local version, such as "+cpu"
    requirement, note = f"{name}=={public}", "" if public == version else f"{version} here"
    if url := without_logins(str(origin.get("url", ""))).replace("***@", ""):
        vcs = origin.get("vcs_info")
        source = f"{vcs['vcs']}+{url}@{vcs['commit_id']}" if vcs else url
        source += f"#subdirectory={origin['subdirectory']}" if "subdirectory" in origin else ""
        requirement = str(_path(url)) if url.startswith("file:") and not vcs else f"{name} @ {source}"
        note = f"{version}, installed from {source}"
    return InferredPackage(name=name, version=version, requirement=requirement, plugin=_PLUGINS.get(name), note=note)


def _path(url: str) -> Path:
    return Path(unquote(urlsplit(url).path))
