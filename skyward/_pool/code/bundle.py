"""Detection of the local modules that a function needs, without importing any, and bundling of their files.

Code in `__main__` is sent inside the pickle. Every other module that a function refers to or imports, and that is
neither in the standard library nor installed, is sent as a file and can be imported on the node by the same name.
"""

from __future__ import annotations

import ast
import dis
import functools
import hashlib
import io
import os
import pkgutil
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from skyward.errors import ConfigError, SerializationError, SkywardError
from skyward.model.image import DEFAULT_EXCLUDES
from skyward.wire import payload

MAX_BYTES = 20 * 1024 * 1024

_INSTALLED = {"site-packages", "dist-packages"}
_STDLIB = tuple({os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")})
_SKYWARD = os.path.realpath(Path(__file__).parents[2])
MAIN = ("__main__", "__mp_main__")


@dataclass(frozen=True, slots=True)
class CodeBundle:
    """Files to send to nodes: paths relative to a directory on `sys.path` there, with their content.

    Attributes:
        digest: digest of paths and contents.
        programs: paths of executable files.
    """

    files: tuple[tuple[str, bytes], ...] = field(default=(), repr=False)
    digest: str = ""
    programs: frozenset[str] = frozenset()

    @classmethod
    def of(cls, files: dict[str, bytes], programs: Iterable[str] = ()) -> CodeBundle:
        """Return the bundle of these files, sorted by path."""
        digest = hashlib.sha256()
        for path, data in sorted(files.items()):
            name = path.encode("utf-8", "surrogateescape")
            digest.update(b"%d %d %b" % (len(name), len(data), name) + data)
        return cls(tuple(sorted(files.items())), digest.hexdigest(), frozenset(programs))


# returns the content of a module's file, given module name, local file and path on nodes
ReadModule = Callable[[str, Path, str], bytes]


def read_module(_name: str, file: Path, _path: str) -> bytes:
    """Return the present content of a module's file.

    Raises:
        SerializationError: it cannot be read.
    """
    return _read(file, SerializationError)


def local_modules(obj: object, read: ReadModule = read_module) -> CodeBundle:
    """Return the files of all local modules that are needed to load and run a function (or any other object).

    Raises:
        SerializationError: a file cannot be read, or all together are larger than 20 MB.
    """
    return bundle_modules(_modules_in(obj), read)


def bundle_modules(names: Iterable[str], read: ReadModule = read_module) -> CodeBundle:
    """Return the files of the local ones of these modules, and of the local modules that they import.

    Raises:
        SerializationError: a file cannot be read, or all together are larger than 20 MB.
    """
    found: dict[str, _Module | None] = {}
    files: dict[str, bytes] = {}
    todo, seen, size = list(names), set[str](), 0
    while todo:
        name = todo.pop()
        if not name or name in seen or name in MAIN:
            continue
        seen.add(name)
        todo.append(name.rpartition(".")[0])
        module = _find(name, found)
        if module is None or module.file is None:
            continue
        path = module.path(name)
        data = read(name, module.file, path)
        files[path] = data
        size += len(data)
        if size > MAX_BYTES:
            most = sorted(files, key=lambda path: -len(files[path]))[:3]
            listed = ", ".join(f"{each} ({len(files[each]) / 1e6:.1f} MB)" for each in most)
            raise SerializationError(_too_large("The local modules that a function imports", listed, "install them"))
        if path.endswith(".py"):
            todo += _imports(data, name if module.is_package else name.rpartition(".")[0])
    return CodeBundle.of(files)


def bundle_paths(includes: Iterable[str | Path], excludes: Sequence[str] = DEFAULT_EXCLUDES) -> CodeBundle:
    """Return the files of `Image.includes`: files and directories, relative to the working directory.

    Paths below the working directory stay relative to it; others are reduced to their name. `excludes` holds patterns
    for these paths in the syntax of .dockerignore.

    Raises:
        ConfigError: a path is missing or cannot be read, or all together are larger than 20 MB.
    """
    includes = tuple(includes)
    if not includes:
        return CodeBundle.of({})
    from skyward.builder.files.included import included_files, largest, total_size  # imports the whole builder

    found = included_files(includes, excludes, Path.cwd())
    if total_size(found) > MAX_BYTES:
        raise ConfigError(_too_large("The files of Image(includes=...)", largest(found), "exclude what is not code"))
    programs = (path for path, file in found.items() if file.stat().st_mode & 0o111)
    return CodeBundle.of({path: _read(file, ConfigError) for path, file in found.items()}, programs)


class _Module(NamedTuple):
    """A module that may be local.

    Attributes:
        file: path of its code; None for a namespace package.
        folders: directories of its submodules; None if it is not a package.
    """

    file: Path | None
    folders: tuple[str, ...] | None

    @property
    def is_package(self) -> bool:
        return self.folders is not None

    def path(self, name: str) -> str:
        """Return the file's path relative to a directory on `sys.path`; the local file may be named differently."""
        assert self.file is not None
        suffix = ".py" if self.file.suffix == ".py" else "." + self.file.name.partition(".")[2]
        return name.replace(".", "/") + ("/__init__" if self.is_package else "") + suffix


class _Noting(payload.Pickler):
    """Pickler that discards its output and records the modules of the pickled objects."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), 5, lambda _buffer: False)
        self.modules: set[str] = set()

    def reducer_override(self, obj: Any) -> Any:
        reduced = super().reducer_override(obj)
        self.modules.update(modules_of(obj, by_value=reduced is not NotImplemented))
        return reduced


def modules_of(obj: Any, *, by_value: bool) -> Iterator[str]:
    """Yield the modules that an object needs, which is pickled by value or by reference."""
    kind = type(obj)
    if issubclass(kind, ModuleType):
        yield namespace(obj)["__name__"]
        return
    name = obj.__module__ if hasattr(obj, "__module__") else kind.__module__
    if isinstance(name, str):
        yield name
    if kind is FunctionType:
        yield from _code_imports(obj.__code__, obj.__globals__.get("__package__") or "")
        if by_value and name in MAIN:
            yield from imported_by_main(obj.__globals__)


def _modules_in(obj: object) -> set[str]:
    """Return the modules of everything that is pickled with an object."""
    noting = _Noting()
    try:
        noting.dump(obj)
    except Exception:  # noqa: S110 - pickling it for sending reports what cannot be pickled, by name
        pass
    return noting.modules


def imported_by_main(names: dict[str, Any]) -> Iterator[str]:
    """Yield the modules of what `__main__` imports, since arguments may be of classes the function never mentions."""
    for value in list(names.values()):
        kind = type(value)
        if issubclass(kind, ModuleType):
            yield namespace(value)["__name__"]
        else:
            yield str(value.__module__ if kind is FunctionType or issubclass(kind, type) else kind.__module__)


def _code_imports(code: CodeType, package: str) -> Iterator[str]:
    """Yield the modules named by import statements in a function's body."""
    before: list[Any] = [None, None]
    for step in dis.get_instructions(code):
        if step.opname == "IMPORT_NAME":
            level, names = before[-2:]
            yield from _named(step.argval, names or (), level or 0, package)
        before = [before[-1], step.argval]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code_imports(constant, package)


@functools.lru_cache(maxsize=512)
def _imports(source: bytes, package: str) -> tuple[str, ...]:
    """Return the modules named by a module's import statements, including those inside functions."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # importing it on a node fails with this error too
        return ()
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names += _named(node.module or "", [alias.name for alias in node.names], node.level, package)
    return tuple(names)


def _named(name: str, members: Iterable[str], level: int, package: str) -> Iterator[str]:
    """Yield the modules an import statement may refer to: the named one, and each member, possibly a submodule."""
    if level and not package:
        return
    if level:
        base = package.rsplit(".", level - 1)[0] if package.count(".") >= level - 1 else ""
        name = f"{base}.{name}".strip(".")
    yield name
    yield from (f"{name}.{member}".strip(".") for member in members if member != "*")


def _find(name: str, found: dict[str, _Module | None]) -> _Module | None:
    """Return a module by name; None if it is not local or does not exist."""
    if name not in found:
        parent = name.rpartition(".")[0]
        above = _find(parent, found) if parent else None
        module = _loaded(name) if above or not parent else None
        if module is None and (above.folders if above else not parent):
            module = _on_path(name, above.folders if above else None)
        found[name] = module if module and (module.file is None or _is_local(module.file)) else None
    return found[name]


def _loaded(name: str) -> _Module | None:
    module = sys.modules.get(name)
    if module is None or not issubclass(type(module), ModuleType):
        return None
    names = namespace(module)
    file, folders = names.get("__file__"), names.get("__path__")
    return _Module(Path(file) if file else None, None if folders is None else tuple(folders))


def _on_path(name: str, folders: Sequence[str] | None) -> _Module | None:
    """Find a module as an import would, but without importing its parent packages."""
    portions: list[str] = []
    for folder in sys.path if folders is None else folders:
        finder = pkgutil.get_importer(folder or os.getcwd())  # noqa: PTH109 - as in the import system
        spec = finder.find_spec(name) if finder is not None else None
        if spec is not None and spec.loader is not None:
            return _Module(Path(spec.origin), _folders(spec)) if spec.has_location and spec.origin else None
        portions += (spec and spec.submodule_search_locations) or ()
    if portions:
        return _Module(None, tuple(portions))
    for other in sys.meta_path if folders is None else ():  # such as finders of editable installs
        if other not in (BuiltinImporter, FrozenImporter, PathFinder):
            spec = other.find_spec(name, None)
            if spec is not None and spec.has_location and spec.origin:
                return _Module(Path(spec.origin), _folders(spec))
    return None


def _folders(spec: Any) -> tuple[str, ...] | None:
    return None if spec.submodule_search_locations is None else tuple(spec.submodule_search_locations)


def _is_local(file: Path) -> bool:
    real = os.path.realpath(file)
    inside = any(real.startswith(root + os.sep) for root in (*_STDLIB, _SKYWARD))
    return not inside and not _INSTALLED.intersection((*file.parts, *Path(real).parts)) and file.is_file()


def namespace(module: ModuleType) -> dict[str, Any]:
    """Return a module's namespace, bypassing any `__getattribute__` of its own, which may load it."""
    names: dict[str, Any] = ModuleType.__getattribute__(module, "__dict__")
    return names


def _read(file: Path, error: type[SkywardError]) -> bytes:
    try:
        return file.read_bytes()
    except OSError as problem:
        raise error(f"{file} must be sent to the nodes but cannot be read: {problem.strerror}.") from problem


def _too_large(what: str, listed: str, remedy: str) -> str:
    return (
        f"{what} are larger than {MAX_BYTES >> 20} MB; the largest are {listed}. They are sent to every node when the "
        f"pool starts: {remedy}, or put them into the image (Image(pip=[...]), Image(run=[...]), bake=True)."
    )
