"""Local modules as this program has loaded them, and whether it has loaded them again.

A module has the same content on all nodes until this program reloads it: with `importlib.reload`, by an import after it
was deleted from `sys.modules`, or by IPython's autoreload, which may change functions in place. A module that this
program has not imported is compared by its file, since an import would load the present file. If a file was edited
after this program imported it, nodes run other code than this program, which is reported.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from skyward._pool.code.bundle import namespace, read_module


@dataclass(slots=True)
class LoadedModule:
    """A local module whose file was read.

    Attributes:
        name, file: the module's name and the path of its file.
        data: the content of the file when the module was first seen in its present state.
        module: the module object; None if this program has not imported it.
        spec: its specification, which a reload replaces.
        stamp: time and size of the file.
    """

    name: str
    file: Path
    data: bytes = field(repr=False)
    module: ModuleType | None
    spec: object
    stamp: tuple[int, int] | None

    @classmethod
    def read(cls, name: str, file: Path) -> LoadedModule:
        """Read a module in its present state.

        Raises:
            SerializationError: its file cannot be read.
        """
        module, stamp = sys.modules.get(name), _stamp(file)
        return cls(name, file, read_module(name, file, ""), module, _space_of(module).get("__spec__"), stamp)

    def is_current(self) -> bool:
        """Return whether the module has not been reloaded or, if not imported, its file not changed since `read`.

        IPython's autoreload updates a module in place when its file has changed.
        """
        module = sys.modules.get(self.name)
        if module is not self.module or (module is not None and namespace(module).get("__spec__") is not self.spec):
            return False
        by_file = module is None or "IPython.extensions.autoreload" in sys.modules
        return not by_file or _stamp(self.file) == self.stamp


class LoadedModules:
    """The local modules of one pool.

    Args:
        tell: prints warnings about modules whose file is not what this program has imported.

    Attributes:
        latest: the current content of each file for nodes, by its path there.
    """

    def __init__(self, tell: Callable[[str], object]) -> None:
        self._tell = tell
        self.latest: dict[str, bytes] = {}
        self._known: dict[str, LoadedModule] = {}
        self._generation = 0

    def get(self, name: str, file: Path, path: str) -> bytes:
        """Return the content of a module, read again if it has changed; `path` is the path of its file on nodes.

        Raises:
            SerializationError: its file cannot be read.
        """
        known = self._known.get(name)
        if known is None or known.file != file or not known.is_current():
            known = self._known[name] = LoadedModule.read(name, file)
            if known.module is not None and _is_edited(_space_of(known.module), known.data):
                self._tell(
                    f"{name} ({file}) was edited after this program imported it: nodes run the file as it is now. Load "
                    "it again with importlib.reload, or restart the program."
                )
            self.latest[path] = known.data
        return known.data

    def generation(self) -> int:
        """Return a number that is another one when a module was reloaded. Called at every call: 0.4 us per module."""
        stale = [name for name, each in tuple(self._known.items()) if not each.is_current()]
        if stale:
            self._known = {name: each for name, each in self._known.items() if name not in stale}
            self._generation += 1
        return self._generation


def _space_of(module: ModuleType | None) -> dict[str, Any]:
    """Return the namespace of a module, or an empty one for None."""
    return {} if module is None else namespace(module)


def _is_edited(names: dict[str, Any], source: bytes) -> bool:
    """Return whether a function or method of an imported module differs from the one in the module's file.

    Modules whose loader transforms the code, such as pytest's, are not compared.
    """
    file = names.get("__file__")
    if type(getattr(names.get("__spec__"), "loader", None)) is not SourceFileLoader or not isinstance(file, str):
        return False
    try:
        with warnings.catch_warnings(action="ignore"):  # they were shown when it was imported
            there = set(_codes_in(compile(source, file, "exec", dont_inherit=True)))
    except (SyntaxError, ValueError):
        return True
    classes = [value for value in names.values() if isinstance(value, type)]
    values = [*names.values(), *(member for each in classes for member in vars(each).values())]
    codes = {value.__code__ for value in values if type(value) is FunctionType}
    return any(code not in there for code in codes if code.co_filename == file)


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes_in(constant)


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
