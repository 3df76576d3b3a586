"""`Image.infer`: the packages that this interpreter has for what code imports, as a proposal for an image.

The code is read, never imported or run. Local modules are followed; what they import counts as well. The user writes
down what the image shall have: nothing is taken silently.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from skyward.builder.sources.entry_code import EntryCode, entry_code, imports_in
from skyward.builder.sources.imports import Import
from skyward.builder.sources.inferred import Inferred, InferredPackage
from skyward.builder.sources.installed import Installed, editable_project, package_of
from skyward.builder.sources.modules import Module, find_module
from skyward.errors import ConfigError

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
    """The packages that this interpreter has for what a function, class, module or script imports.

    Args:
        code: a function (compute functions, too), a class, a module, or the path of a script or notebook.

    Raises:
        ConfigError: it is none of these, or its source cannot be read.
    """
    return _Inference(entry_code(code)).result()


@dataclass(slots=True)
class _Use:
    """Where a package is imported; `optional` if the code goes on without it everywhere."""

    installed: Installed
    where: list[str]
    optional: bool


class _Inference:
    """Follows the imports of one piece of code."""

    def __init__(self, entry: EntryCode) -> None:
        self._entry = entry
        self._path = tuple([str(entry.folder)] if entry.folder else []) + tuple(sys.path)
        self._uses: dict[str, _Use] = {}
        self._missing: dict[str, Import] = {}
        self._notes: dict[str, None] = {}
        self._followed = set[str]()

    def result(self) -> Inferred:
        """What was found."""
        todo = list(self._entry.imports)
        while todo:
            todo += self._resolve(todo.pop(0))
        packages = [self._package(self._uses[name]) for name in sorted(self._uses)]
        missing = tuple((name, each.where, each.optional) for name, each in sorted(self._missing.items()))
        return Inferred(self._entry.name, tuple(packages), missing, tuple(self._notes))

    def _resolve(self, found: Import) -> Iterator[Import]:
        """Take note of a module's package; gives what a local one imports in turn."""
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
            return  # a namespace belongs to no package by itself
        above = find_module(found.name.rpartition(".")[0], self._path) if found.maybe else None
        if above is not None and above.file is None and module is None:
            self._missing.setdefault(found.name, found)  # a namespace has no names but modules
            return
        installed = package_of(found.name)
        if installed is not None:
            use = self._uses.setdefault(installed.name, _Use(installed, [], optional=True))
            use.where += [found.where] if found.where not in use.where else []
            use.optional &= found.optional
        elif top_module is not None:
            self._notes[f"{top}, imported in {found.where}, is here, but no installed package is known to have it"] = (
                None
            )
        elif not found.maybe:
            self._missing.setdefault(top, found)

    def _follow(self, name: str, module: Module) -> Iterator[Import]:
        """What a local module and the packages that it is in import."""
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            each = ".".join(parts[:length])
            found = module if each == name else find_module(each, self._path)
            if each in self._followed or found is None or found.file is None:
                continue
            self._followed.add(each)
            if project := editable_project(str(found.file.resolve())):
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

    def _package(self, use: _Use) -> InferredPackage:
        installed = use.installed
        return InferredPackage(
            name=installed.name,
            version=installed.version,
            requirement=installed.requirement,
            where=tuple(use.where),
            optional=use.optional,
            plugin=_PLUGINS.get(installed.name),
            note=installed.note,
        )
