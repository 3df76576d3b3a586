"""`Image.infer`: proposes the packages of an image from what code imports and what this interpreter has installed.

Files are read, never imported or run. Local modules are followed, and their imports count as well. The user writes the
packages into the image; nothing is added silently.
"""

from __future__ import annotations

import ast
import functools
import inspect
import json
import sys
import sysconfig
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import Distribution, distributions, packages_distributions
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote, urlsplit

from skyward.errors import ConfigError
from skyward.model.image_fields import local_path, package_name, requirement_name, without_logins
from skyward.model.source import Import, imports_in, imports_of, parsed

if TYPE_CHECKING:
    from skyward.model.image import Image

State = Literal["add", "change", "keep", "unused"]
_SIGNS: dict[State, str] = {"add": "+", "change": "~", "keep": "=", "unused": "-"}
_SHOWN = 3  # places of an import that are shown
_MAIN = ("__main__", "__mp_main__")
_EDITABLE = "installed in editable mode from "
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


# from code to modules -------------------------------------------------------------------------------------------------


def infer(code: object) -> Inferred:
    """Return the installed packages that a function, class, module or script imports.

    Args:
        code: a function (also a compute function), a class, a module, or the path of a script or notebook.

    Raises:
        ConfigError: it is none of these, or its source cannot be read.
    """
    if isinstance(code, str | Path):
        path = Path(code).expanduser().absolute()
        if path.suffix not in (".py", ".pyw", ".ipynb"):
            raise ConfigError(f"Image.infer takes the path of a Python script or notebook; found {str(code)!r}.")
        folder, package = path.parent, list[str]()
        while (folder / "__init__.py").is_file():  # in a package, relative imports start at the outermost one
            package.insert(0, folder.name)
            folder = folder.parent
        return _Inference(folder).follow(path.name, imports_in(path, ".".join(package)))
    code = _plain(code)
    if isinstance(code, ModuleType):
        return _Inference().follow(code.__name__, [Import(code.__name__, f"the module {code.__name__}")])
    if not isinstance(code, FunctionType | type):
        raise ConfigError(
            f"Image.infer takes a function, a class, a module or the path of a script; found {type(code).__name__}."
        )
    return _Inference().follow(code.__qualname__, list(_used(code, f"the module of {code.__qualname__}", set())))


def _plain(code: Any) -> Any:
    """Return the function behind a compute function, a call of one, a partial or a method."""
    while not isinstance(code, FunctionType | type | ModuleType):
        inner = code.func if isinstance(code, functools.partial) else getattr(code, "__func__", None)
        inner = inner or getattr(code, "__wrapped__", None) or getattr(code, "fn", None)
        if inner is None:
            return code
        code = inner
    return inspect.unwrap(code) if isinstance(code, FunctionType) else code


def _used(code: Any, where: str, seen: set[int]) -> Iterator[Import]:
    """Yield the modules that a function or class needs: of the main program, what it uses; else its whole module."""
    code = _plain(code)
    if isinstance(code, ModuleType):
        yield Import(code.__name__, where)
    elif not isinstance(code, FunctionType | type) or code.__module__ not in _MAIN:
        yield Import(str(getattr(code, "__module__", None) or type(code).__module__), where)
    elif id(code) not in seen:
        seen.add(id(code))
        members = [code] if isinstance(code, FunctionType) else [*map(_plain, vars(code).values()), *code.__bases__]
        for each in members:
            if isinstance(each, FunctionType):
                yield from _used_by(each, seen)
            elif isinstance(each, type):
                yield from _used(each, where, seen)


def _used_by(fn: FunctionType, seen: set[int]) -> Iterator[Import]:
    file = Path(fn.__code__.co_filename).name
    try:
        lines, first = inspect.getsourcelines(fn)
        tree = parsed(textwrap.dedent("".join(lines)), file)
    except (OSError, ConfigError):  # a lambda within an expression is not a statement of its own
        tree, first = ast.Module([], []), 1
        if fn.__name__ != "<lambda>":
            raise ConfigError(
                f"Image.infer: the source of {fn.__qualname__!r} cannot be found. Give the path of the script instead."
            ) from None
    yield from imports_of(tree, f"{file}:", first=first)
    closed = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
    for name in sorted(_names(fn.__code__)):
        value = closed[name].cell_contents if name in closed else fn.__globals__.get(name)
        if value is not None:
            yield from _used(value, f"{name} in {file}", seen)


def _names(code: CodeType) -> set[str]:
    inner = [_names(each) for each in code.co_consts if isinstance(each, CodeType)]
    return {*code.co_names, *code.co_freevars}.union(*inner)


# from modules to packages ---------------------------------------------------------------------------------------------


class _Inference:
    """Follows the imports of one piece of code."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        libraries = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}
        paths = [Path(str(each)).resolve() for each in (*([folder] if folder else []), *sys.path)]
        self._roots = [
            each
            for each in dict.fromkeys(paths)
            if not {"site-packages", "dist-packages"} & {*each.parts} and not libraries & {each, each.parent}
        ]
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
        names = sorted({*packages_distributions().get(top, ())})
        if self._file(top) is not None or (not names and self._is_namespace(top)):
            if self._file(found.name) is None and not found.maybe and not self._is_namespace(found.name):
                self._missing.setdefault(found.name, found)
            parts = found.name.split(".")
            for length in range(1, len(parts) + 1):
                yield from self._follow(".".join(parts[:length]))
            return
        installed = _package_of(found.name, names)
        if installed is not None and installed.note.startswith(_EDITABLE):
            self._notes[f"{top} is local: {installed.name}, {installed.note}; its files are sent with calls"] = None
        elif installed is not None:
            known = self._packages.get(installed.name, installed)
            where = known.where if found.where in known.where else (*known.where, found.where)
            self._packages[installed.name] = replace(known, where=where, optional=known.optional and found.optional)
        elif "." in found.name if names else not found.maybe:  # a namespace has only modules
            self._missing.setdefault(found.name if names else top, found)

    def _file(self, name: str) -> Path | None:
        """Return the file of a local module; None if there is none."""
        bases = [root.joinpath(*name.split(".")) for root in self._roots]
        files = (file for base in bases for file in (base / "__init__.py", base.with_name(f"{base.name}.py")))
        return next((file for file in files if file.is_file()), None)

    def _is_namespace(self, name: str) -> bool:
        return any(root.joinpath(*name.split(".")).is_dir() for root in self._roots)

    def _follow(self, name: str) -> Iterator[Import]:
        """Yield the imports of a local module."""
        file = self._file(name)
        if file is None or file in self._followed:
            return
        self._followed.add(file)
        for project, folder in _editables():
            if file.is_relative_to(folder):
                top = name.partition(".")[0]
                self._notes[f"{top} is local: {project}, {_EDITABLE}{folder}; its files are sent with calls"] = None
        shown = file.relative_to(self._folder) if self._folder and file.is_relative_to(self._folder) else file
        try:
            yield from imports_in(file, name if file.stem == "__init__" else name.rpartition(".")[0], str(shown))
        except ConfigError as error:
            self._notes[f"{name} is not followed: {error}"] = None


def _package_of(module: str, names: list[str]) -> InferredPackage | None:
    """Return which of these installed packages provides a module (dotted name); None if it is in none of them."""
    if len(names) > 1:  # one namespace, or alternatives such as opencv-python and opencv-python-headless
        parts = module.split(".")
        places = ["/".join(parts[:length]) for length in range(len(parts), 0, -1)]
        ends = [(f"{place}/__init__.", f"{place}.") for place in places]
        names = next((have for end in ends if (have := [name for name in names if _has(name, end)])), [])
    return _described(Distribution.from_name(names[0])) if names else None


@lru_cache(maxsize=256)
def _has(name: str, starts: tuple[str, ...]) -> bool:
    return any(str(file).startswith(starts) for file in Distribution.from_name(name).files or ())


def _editables() -> Iterator[tuple[str, Path]]:
    """Yield names and folders of the projects that are installed in editable mode."""
    for distribution in distributions():
        origin = _origin(distribution)
        if origin.get("dir_info", {}).get("editable"):
            yield str(distribution.metadata["Name"]), _path(origin["url"]).resolve()


def _origin(distribution: Distribution) -> dict[str, Any]:
    """Return where a package was installed from, if that was not an index; else an empty dict.

    The format is https://packaging.python.org/en/latest/specifications/direct-url/.
    """
    try:
        found = json.loads(distribution.read_text("direct_url.json") or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) and "url" in found else {}


def _described(distribution: Distribution) -> InferredPackage:
    """Describe an installed package, without the places of its imports."""
    name, version, origin = package_name(distribution.metadata["Name"]), distribution.version, _origin(distribution)
    public = version.partition("+")[0]  # indexes seldom have a local version, such as "+cpu"
    requirement, note = f"{name}=={public}", "" if public == version else f"{version} here"
    url = without_logins(str(origin.get("url", ""))).replace("***@", "")
    path = _path(url)
    if origin.get("dir_info", {}).get("editable"):
        note = f"{_EDITABLE}{path}"
    elif "vcs_info" in origin:
        vcs, below = origin["vcs_info"], origin.get("subdirectory")
        source = f"{vcs['vcs']}+{url}@{vcs['commit_id']}" + (f"#subdirectory={below}" if below else "")
        note = f"installed from {source}"
        if url.startswith(("https://", "ssh://")):
            requirement = f"{name} @ {source}"
    elif url.startswith("file:"):
        requirement, note = (str(path) if path.exists() else requirement), f"{version}, installed from {path}"
    elif url:
        requirement, note = f"{name} @ {url}", f"installed from {url}"
    return InferredPackage(name=name, version=version, requirement=requirement, plugin=_PLUGINS.get(name), note=note)


def _path(url: str) -> Path:
    return Path(unquote(urlsplit(url).path))
