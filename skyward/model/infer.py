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
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.metadata import Distribution, packages_distributions
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from skyward.errors import ConfigError
from skyward.model.image_fields import package_name, without_logins
from skyward.model.source import imports_in

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
        plugin: the plugin that sets it up on nodes, such as "torch"; None if there is none.
    """

    name: str
    version: str
    requirement: str
    where: tuple[str, ...]
    plugin: str | None

    def __str__(self) -> str:
        words = [f"imported in {', '.join(self.where[:3])}" + (", ..." if len(self.where) > 3 else "")]
        words += [f"sky.plugins.{self.plugin}() installs it and sets it up"] if self.plugin else []
        words += [f"{self.version} here"] if not self.requirement.endswith(f"=={self.version}") else []
        return f"{self.requirement}  # {'; '.join(words)}"


@dataclass(frozen=True, slots=True)
class Inferred:
    """The imports of some code, resolved in this interpreter. They are in no image until they are written into one.

    Attributes:
        code: name of the file that was read.
        packages: the imported packages by name, without their dependencies.
        missing: modules that are not installed, and the place of their first import.
    """

    code: str
    packages: tuple[InferredPackage, ...]
    missing: tuple[tuple[str, str], ...] = ()

    @property
    def pip(self) -> tuple[str, ...]:
        """The packages as requirements for `Image(pip=...)`."""
        return tuple(package.requirement for package in self.packages)

    @property
    def plugins(self) -> tuple[str, ...]:
        """Names of the plugins that set up imported packages, for `sky.plugins`."""
        return tuple(sorted({package.plugin for package in self.packages if package.plugin}))

    def __str__(self) -> str:
        lines = [str(package) for package in self.packages]
        lines += [f"# {name} is imported in {where}, and is not installed here" for name, where in self.missing]
        return "\n".join(lines) or f"# {self.code} imports nothing but the standard library and skyward."


def infer(code: object) -> Inferred:
    """Return the installed packages that a file imports; for a function or class, the file that defines it.

    Args:
        code: a function (also a compute function), a class, a module, or the path of a script or notebook.

    Raises:
        ConfigError: it is none of these, or the source of it or of a local module cannot be read.
    """
    path = (Path(code) if isinstance(code, str | Path) else _file_of(code)).expanduser().absolute()
    if path.suffix not in (".py", ".pyw", ".ipynb"):
        raise ConfigError(f"Image.infer takes the path of a Python script or notebook; found {str(code)!r}.")
    root = path.parent
    while (root / "__init__.py").is_file():  # in a package, relative imports start at the outermost one
        root = root.parent
    search, installed = [str(root), *sys.path], packages_distributions()
    packages, missing, followed = dict[str, InferredPackage](), dict[str, str](), {path}
    todo = imports_in(path, ".".join(path.parent.relative_to(root).parts))
    for found in todo:  # it grows by the imports of local modules
        top = found.name.partition(".")[0]
        if top in sys.stdlib_module_names or top in ("skyward", "__main__"):
            continue
        files = list(_files_of(found.name, search))
        if local := [file for file in files if not {"site-packages", "dist-packages"} & {*file.parts}]:
            for number, file in enumerate(local, 1):
                if file not in followed and file.suffix == ".py":
                    followed.add(file)
                    above = found.name.split(".")[: number if file.stem == "__init__" else number - 1]
                    shown = file.relative_to(root) if file.is_relative_to(root) else file
                    todo += imports_in(file, ".".join(above), str(shown))
        elif distribution := _distribution(installed.get(top, []), files):
            known = packages.get(package_name(distribution.metadata["Name"]))
            if package := _described(distribution, dict.fromkeys((*(known.where if known else ()), found.where))):
                packages[package.name] = package
        elif not files:
            missing.setdefault(top, found.where)
    return Inferred(path.name, tuple(packages[name] for name in sorted(packages)), tuple(sorted(missing.items())))


def _file_of(code: Any) -> Path:
    """Return the file that defines a function (also a compute function or a partial of it), a class or a module."""
    plain = inspect.unwrap(code.func if isinstance(code, functools.partial) else code)
    module = plain if inspect.ismodule(plain) else sys.modules.get(str(getattr(plain, "__module__", None)))
    file = getattr(module, "__file__", None)
    if file is None:
        raise ConfigError(
            "Image.infer takes the path of a script or notebook, or a function, a class or a module that a file "
            f"defines; found {type(code).__name__}."
        )
    return Path(file)


def _files_of(name: str, search: Iterable[str]) -> Iterator[Path]:
    """Yield the files of the packages around a module and of itself, without importing them."""
    for part in name.split("."):
        spec = PathFinder.find_spec(part, list(search))
        if spec is None:
            return
        if spec.origin:
            yield Path(spec.origin)
        search = spec.submodule_search_locations or ()


def _distribution(names: list[str], files: list[Path]) -> Distribution | None:
    """Return the package of a module; of several with one namespace, that with its file."""
    found = [Distribution.from_name(name) for name in dict.fromkeys(names)]
    if len(found) > 1:
        found = [each for each in found if files and files[-1] in {each.locate_file(file) for file in each.files or ()}]
    return found[0] if found else None


def _described(distribution: Distribution, where: Iterable[str]) -> InferredPackage | None:
    """Describe an installed package; None if it is editable, and so local code, which is sent with calls.

    https://packaging.python.org/en/latest/specifications/direct-url/ says where it came from, if not from an index.
    """
    origin: dict[str, Any] = json.loads(distribution.read_text("direct_url.json") or "{}")
    if origin.get("dir_info", {}).get("editable"):
        return None
    name, version = package_name(distribution.metadata["Name"]), distribution.version
    requirement = f"{name}=={version.partition('+')[0]}"  # indexes seldom have a local version, such as "+cpu"
    if url := without_logins(str(origin.get("url", ""))).replace("***@", ""):
        vcs = origin.get("vcs_info")
        requirement = f"{name} @ {vcs['vcs']}+{url}@{vcs['commit_id']}" if vcs else f"{name} @ {url}"
        if "subdirectory" in origin:
            requirement += f"#subdirectory={origin['subdirectory']}"
        if url.startswith("file:") and not vcs:
            requirement = unquote(urlsplit(url).path)
    return InferredPackage(
        name=name, version=version, requirement=requirement, where=tuple(where), plugin=_PLUGINS.get(name)
    )
