"""The local modules that a pool sends, as this program has loaded them.

A module has one content on all nodes until it is loaded anew here: by `importlib.reload`, by an import after it was
deleted from `sys.modules`, or by IPython's autoreload, which changes functions where they are. What this program has
not imported yet is compared by its file: it would import that as it is now.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import is_, itemgetter
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from skyward._pool import display
from skyward._pool.code import edited
from skyward._pool.code.bundle import read_module

_spec = itemgetter("__spec__")
_WRAPPED = 8  # decorators around one function that are looked through


@dataclass(slots=True)
class LoadedModule:
    """A local module whose file was read.

    Attributes:
        name, file: which module it is, and where its code stands.
        data: the content of the file when the module was seen first in its present state.
        module: the module as this program has imported it; None where it has not.
    """

    name: str
    file: Path
    data: bytes = field(repr=False)
    module: ModuleType | None
    _spec: object = field(repr=False)
    _stamp: tuple[int, int] | None = field(repr=False)
    _live: list[object] = field(repr=False)
    _cell: int = 0

    @classmethod
    def read(cls, name: str, file: Path) -> LoadedModule:
        """The module as it is now.

        Raises:
            SerializationError: its file cannot be read.
        """
        module = sys.modules.get(name)
        stamp = _stamp(file) if module is None else None
        data = read_module(name, file, "")
        space = _space(module)
        return cls(name, file, data, module, space.get("__spec__"), stamp, list(_live(space)), display.cells_begun)

    def is_current(self) -> bool:
        """Whether this program has not loaded the module since it was read, nor changed its file before an import."""
        module = sys.modules.get(self.name)
        if module is not self.module:
            return False
        if module is None:
            return _stamp(self.file) == self._stamp
        space = _space(module)
        if space.get("__spec__") is not self._spec:
            return False
        if self._cell == display.cells_begun:
            return True
        self._cell = display.cells_begun
        return _same(list(_live(space)), self._live)


class LoadedModules:
    """The local modules of one pool; of those that are equal to what was sent before, the same object is the content.

    Args:
        tell: is told of modules whose file is not what this program has imported.

    Attributes:
        latest: the content of each file that nodes are to have, by its path there.
    """

    def __init__(self, tell: Callable[[str], object]) -> None:
        self._tell = tell
        self.latest: dict[str, bytes] = {}
        self._known: dict[str, LoadedModule] = {}

    def get(self, name: str, file: Path, path: str) -> LoadedModule:
        """A module, read again if it has changed; `path` is where nodes have its file.

        Raises:
            SerializationError: its file cannot be read.
        """
        known = self._known.get(name)
        if known is None or known.file != file or not known.is_current():
            known = LoadedModule.read(name, file)
            if known.module is not None and edited.is_edited(_space(known.module), known._live, known.data):
                self._tell(edited.warning(known.module))
            if self.latest.get(path) != known.data:
                self.latest[path] = known.data
            known.data = self.latest[path]
            self._known[name] = known
        return known


class ModulesWatch:
    """Tells whether any of some modules was loaded anew. Asked at every call: 0.1 us for each module."""

    __slots__ = ("_cell", "_imported", "_modules", "_names", "_others", "_spaces", "_specs")

    def __init__(self, modules: Mapping[str, LoadedModule]) -> None:
        self._imported = [each for each in modules.values() if each.module is not None]
        self._others = [each for each in modules.values() if each.module is None]
        self._names = [each.name for each in self._imported]
        self._modules = [each.module for each in self._imported]
        self._spaces = [_space(each.module) for each in self._imported]
        self._specs = [each._spec for each in self._imported]
        self._cell = display.cells_begun

    def unchanged(self) -> bool:
        """Whether all are as they were."""
        try:
            if not all(map(is_, map(sys.modules.get, self._names), self._modules)):
                return False
            if not all(map(is_, map(_spec, self._spaces), self._specs)):
                return False
        except KeyError:  # a module that is being loaded has no specification for a moment
            return False
        if self._cell != display.cells_begun:
            if not all(each.is_current() for each in self._imported):
                return False
            self._cell = display.cells_begun
        return not self._others or all(each.is_current() for each in self._others)


def _space(module: ModuleType | None) -> dict[str, Any]:
    """A module's names, past any `__getattribute__` of its own, which may load it."""
    names: dict[str, Any] = {} if module is None else ModuleType.__getattribute__(module, "__dict__")
    return names


def _live(names: Mapping[str, Any]) -> Iterator[object]:
    """What running a module anew, or changing its functions where they are, changes: its values, and their code."""
    for value in list(names.values()):
        yield value
        yield from _codes(value)
        if isinstance(value, type):
            for member in list(vars(value).values()):
                yield member
                yield from _codes(member)


def _codes(value: Any) -> Iterator[object]:
    """The code of a function, also under decorators that tell what they wrap."""
    for _ in range(_WRAPPED):
        value = getattr(value, "__func__", value) if isinstance(value, staticmethod | classmethod) else value
        if isinstance(value, FunctionType):
            yield value.__code__
            yield value.__defaults__
        try:
            value = object.__getattribute__(value, "__dict__").get("__wrapped__")
        except AttributeError:
            return
        if value is None:
            return
        yield value


def _same(some: list[object], others: list[object]) -> bool:
    return len(some) == len(others) and all(map(is_, some, others))


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
