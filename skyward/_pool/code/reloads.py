"""Local modules and packages as this program has loaded them, and whether it has loaded them again.

A module has the same content on all nodes until this program reloads it: with `importlib.reload`, by an import after it
was deleted from `sys.modules`, or by IPython's autoreload, which may change functions in place. A module that this
program has not imported, and a data file of a package, is compared by its file, since an import would load that. If a
file was edited after this program imported it, nodes run other code than this program, which is reported.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from skyward.errors import SerializationError, SkywardError
from skyward.system import time
from skyward.wire.made_modules import source_of

_MANY = 64  # files and folders that are looked at for each call, which takes 1 to 4 us for each
_PAUSE = 50  # between two looks at more of them, as a multiple of the time that a look takes


@dataclass(slots=True)
class LoadedModule:
    """A local module that was read.

    Attributes:
        name, file: the module's name and the path of its file; None if it has none.
        data: the content of the file when the module was first seen in its present state.
        module: the module object; None if this program has not imported it.
        spec: its specification, which a reload replaces.
        stamp: time and size of the file.
    """

    name: str
    file: Path | None
    data: bytes = field(repr=False)
    module: ModuleType | None
    spec: object
    stamp: tuple[int, int] | None

    @classmethod
    def read(cls, name: str, file: Path | None) -> LoadedModule:
        """Read a module in its present state.

        Raises:
            SerializationError: its file cannot be read.
        """
        module, stamp = sys.modules.get(name), _stamp(file) if file else None
        data = read_file(file, SerializationError) if file else source_of(name)
        return cls(name, file, data, module, _space_of(module).get("__spec__"), stamp)

    def is_current(self, *, by_file: bool) -> bool:
        """Return whether the module has not been reloaded or, with `by_file`, its file not changed since `read`."""
        module = sys.modules.get(self.name)
        if module is not self.module or (module is not None and namespace(module).get("__spec__") is not self.spec):
            return False
        if self.file is None:
            return source_of(self.name) == self.data
        return not (by_file and self.is_compared_by_file()) or _stamp(self.file) == self.stamp

    def is_compared_by_file(self) -> bool:
        """Return whether the present file is what an import or this program would read."""
        # autoreload updates a module in place when its file has changed
        return self.module is None or "IPython.extensions.autoreload" in sys.modules


class PackageFile(NamedTuple):
    """A file in the folder of a package, by its name relative to that; `refusal` is why it is not sent, or ""."""

    name: str
    file: Path
    refusal: str
    size: int
    is_program: bool


class LoadedModules:
    """The local modules of one pool.

    Args:
        tell: prints warnings about modules whose file is not what this program has imported, and files that are not
            sent.
        base: files below this folder have the same path on nodes, relative to it; those of other modules begin with the
            name of the module. None if all do.

    Attributes:
        latest: the current content of each file for nodes, by its path there.
    """

    def __init__(self, tell: Callable[[str], object] | None = None, base: Path | None = None) -> None:
        self._tell, self.base = tell, base
        self.latest: dict[str, bytes] = {}
        self._known: dict[str, LoadedModule] = {}
        self._data: dict[Path, tuple[object, bytes]] = {}  # stamp and content of data files
        self._packages: dict[tuple[Path, bool], tuple[list[PackageFile], dict[Path, object]]] = {}
        self._told: set[object] = set()
        self._generation = 0
        self._look_at = 0.0

    def get(self, name: str, file: Path | None, path: str) -> bytes:
        """Return the content of a module, read again if it has changed; `path` is the path of its file on nodes.

        If it has no file, this is what makes it there: `source_of`.

        Raises:
            SerializationError: its file cannot be read.
        """
        known = self._known.get(name)
        if known is None or known.file != file or not known.is_current(by_file=True):
            known = self._known[name] = LoadedModule.read(name, file)
            if self._tell and file and known.module is not None and _is_edited(_space_of(known.module), known.data):
                self.tell(
                    f"{name} ({file}) was edited after this program imported it: nodes run the file as it is now. Load "
                    "it again with importlib.reload, or restart the program."
                )
        self.latest[path] = known.data
        return known.data

    def data(self, file: Path, path: str) -> bytes:
        """Return the present content of a data file; `path` is its path on nodes.

        Raises:
            SerializationError: it cannot be read.
        """
        stamp, known = _stamp(file), self._data.get(file)
        if known is None or known[0] != stamp:
            known = self._data[file] = stamp, read_file(file, SerializationError)
        self.latest[path] = known[1]
        return known[1]

    def package(self, folder: Path, *, whole: bool) -> list[PackageFile]:
        """Return the files in a folder of a package, as found when a file or folder in it last changed.

        Unless `whole`, folders below it that contain modules are left out.

        Raises:
            ConfigError: a file or folder cannot be read.
        """
        key = folder, whole
        if key not in self._packages:
            from skyward.builder.files.included import MAX_FILES, package_files  # most functions need no package

            found, folders = package_files(folder, whole=whole)
            if len(found) == MAX_FILES:
                self.tell(
                    f"The folder of a package, {folder}, has more than {MAX_FILES:,} files, of which only as many are "
                    "searched. Keep data elsewhere, and give it to nodes by Image(includes=[...]) or a volume."
                )
            files = [PackageFile(*each, *_size_and_mode(each[1])) for each in found]
            self._packages[key] = files, {each: _stamp(each) for each in folders}
        return self._packages[key][0]

    def tell(self, line: str, about: object = None) -> None:
        """Print a warning; the first about something alone."""
        if self._tell and (about or line) not in self._told:
            self._told.add(about or line)
            self._tell(line)

    def generation(self) -> int:
        """Return a number that is another one when a module was reloaded or a file has changed.

        Called at every call: 0.4 us per imported module, and 1 to 4 us per other file, if they are many not every time.
        """
        now = time.monotonic()
        by_file = now >= self._look_at
        stale = [name for name, each in tuple(self._known.items()) if not each.is_current(by_file=by_file)]
        changed = False
        if by_file:
            stamps = [(file, stamp) for file, (stamp, _) in tuple(self._data.items())]
            stamps += [each for _, folders in tuple(self._packages.values()) for each in folders.items()]
            changed = any(_stamp(path) != stamp for path, stamp in stamps)
            count = len(stamps) + sum(each.is_compared_by_file() for each in tuple(self._known.values()))
            self._look_at = now + _PAUSE * (time.monotonic() - now) if count > _MANY else 0.0
        if stale or changed:
            self._known = {name: each for name, each in self._known.items() if name not in stale}
            self._packages = {}
            self._data = {file: each for file, each in self._data.items() if _stamp(file) == each[0]}
            self._generation += 1
        return self._generation


def read_file(file: Path, error: type[SkywardError]) -> bytes:
    """Return the content of a file.

    Raises:
        `error`: it cannot be read.
    """
    try:
        return file.read_bytes()
    except OSError as problem:
        raise error(f"{file} must be sent to the nodes but cannot be read: {problem.strerror}.") from problem


def namespace(module: ModuleType) -> dict[str, Any]:
    """Return a module's namespace, bypassing any `__getattribute__` of its own, which may load it."""
    names: dict[str, Any] = ModuleType.__getattribute__(module, "__dict__")
    return names


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


def _size_and_mode(file: Path) -> tuple[int, bool]:
    try:
        status = file.stat()
    except OSError:  # it is gone
        return 0, False
    return status.st_size, bool(status.st_mode & 0o111)


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
