"""Detection of the local modules that a function needs, without importing any, and bundling of their files.

Code in `__main__` is sent inside the pickle. Every other module that a function refers to or imports, and that is
neither in the standard library nor installed, is sent as a file and can be imported on the node by the same name. A
package is sent with all its files, since its modules may find each other and their data at run time, and an archive on
`sys.path` as it is. Modules without a file are made again; see `made_modules.py`.
"""

from __future__ import annotations

import dis
import functools
import io
import json
import os
import pkgutil
import re
import sys
import sysconfig
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.machinery import EXTENSION_SUFFIXES, BuiltinImporter, FrozenImporter, PathFinder
from importlib.metadata import distributions
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple
from zipfile import ZipFile

from skyward._pool.code.reloads import LoadedModules, PackageFile, namespace, read_file
from skyward.errors import ConfigError, SerializationError
from skyward.model.image import DEFAULT_EXCLUDES
from skyward.wire import payload
from skyward.wire.made_modules import contents

MAX_BYTES = 20 * 1024 * 1024

_IMPORT = re.compile(
    r"(?:^|[;:])[ \t]*(?:from\b[ \t]*([.\w]+)[ \t]*import\b[ \t]*(\([^)]*\)|(?:\\\r?\n|[^\n;#])*)"
    r"|import[ \t]+((?:\\\r?\n|[^\n;#])*))"
    r"|(?:import_module|__import__)\(\s*f?[\"']([\w.]+)",
    re.MULTILINE,
)
_DOTTED = re.compile(r"\w+(\.\w+)*\.?")
_METADATA = ("importlib.metadata", "importlib_metadata", "pkg_resources")  # modules that read it
_OF_COMMANDS = ("console_scripts", "gui_scripts")  # entry points that no module looks for
_INSTALLED = {"site-packages", "dist-packages"}
_STDLIB = tuple({os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")})
_SUFFIXES = (".py", *EXTENSION_SUFFIXES)
_SKYWARD = os.path.realpath(Path(__file__).parents[2])
MAIN = ("__main__", "__mp_main__")


@dataclass(frozen=True, slots=True)
class CodeBundle:
    """Files to send to nodes: paths relative to a directory on `sys.path` there, with their content.

    Attributes:
        programs: paths of executable files.
        roots: paths of folders that are on `sys.path` as well.
    """

    files: tuple[tuple[str, bytes], ...] = field(default=(), repr=False)
    programs: frozenset[str] = frozenset()
    roots: frozenset[str] = frozenset()

    @classmethod
    def of(cls, files: dict[str, bytes], programs: Iterable[str] = (), roots: Iterable[str] = ()) -> CodeBundle:
        """Return the bundle of these files, sorted by path."""
        return cls(tuple(sorted(files.items())), frozenset(programs), frozenset(roots))

    def code(self) -> Iterator[tuple[str, bytes]]:
        """Yield the modules and archives among the files."""
        roots = tuple(f"{root}/" for root in self.roots)
        for path, data in self.files:
            if _is_module(path) or any(root.startswith(f"{path}/") for root in roots):
                yield path, data

    def __or__(self, other: CodeBundle) -> CodeBundle:
        files = dict(self.files) | dict(other.files)
        return CodeBundle.of(files, self.programs | other.programs, self.roots | other.roots)


def local_modules(obj: object, loaded: LoadedModules | None = None) -> CodeBundle:
    """Return the files of all local modules that are needed to load and run a function (or any other object).

    Raises:
        SerializationError: a file cannot be read, or all modules together are larger than 20 MB.
    """
    return bundle_modules(_modules_in(obj), loaded)


def bundle_modules(names: Iterable[str], loaded: LoadedModules | None = None) -> CodeBundle:
    """Return the files of the local ones of these modules and of what they import, with their packages.

    Raises:
        SerializationError: a file cannot be read, or all modules together are larger than 20 MB.
    """
    search = _Search(loaded or LoadedModules())
    search.follow(names)
    needed = frozenset(search.files)
    while search.packages:
        (name, whole), folders = search.packages.popitem()
        search.follow(search.add_package(name, folders, whole=whole))
    return search.bundle(needed)


class _Search:
    """The files of local modules, as far as they were found.

    Args:
        loaded: reads them.
    """

    def __init__(self, loaded: LoadedModules) -> None:
        self._loaded = loaded
        self._base = f"{loaded.base.as_posix().rstrip('/')}/" if loaded.base else ""
        self._found: dict[str, _Module | None] = {}
        self._seen: set[str] = set()
        self._added: set[tuple[str, bool]] = set()
        self._data: dict[str, PackageFile] = {}
        self._programs: set[str] = set()
        self._roots: set[str] = set()
        self._root_of: dict[str, str] = {}  # by name of a package
        self.files: dict[str, bytes] = {}
        self.packages: dict[tuple[str, bool], Iterable[str]] = {}

    def follow(self, names: Iterable[str]) -> None:
        """Add modules and what they import."""
        todo = list(names)
        while todo:
            name = todo.pop()
            if name and name not in self._seen and name not in MAIN:
                self._seen.add(name)
                todo += self._add_named(name)
                if name.startswith(_METADATA):
                    files, modules = _metadata(tuple(sys.path))
                    self.files |= files
                    todo += modules

    def _add_named(self, name: str) -> Iterator[str]:
        """Add a module, note its packages, and yield the modules that it may need."""
        parts, shared, is_inside = name.split("."), None, False
        for above in (".".join(parts[: count + 1]) for count in range(len(parts))):
            module = _find(above, self._found)
            if module is None:
                return
            if module.file and module.archive:
                root = module.file.as_posix().removesuffix(f"/{module.path(above)}")
                yield from self._add_archive(module.archive, root)
                return
            if module.has_code:
                yield from self._add(above, module.file, module.path(above))
            # a folder without __init__.py may be shared by packages: its own files are sent if a module in it is needed
            if not is_inside and module.folders and (module.has_code or above == name):
                self._note(above, module.folders, whole=True)
                is_inside = True
            elif not is_inside and module.folders is None and shared:
                self._note(*shared, whole=False)
            shared = (above, module.folders) if module.folders and not module.has_code else None

    def _note(self, name: str, folders: Iterable[str], *, whole: bool) -> None:
        if (name, whole) not in self._added:
            self._added.add((name, whole))
            self.packages[name, whole] = folders

    def add_package(self, name: str, folders: Iterable[str], *, whole: bool) -> Iterator[str]:
        """Add the files of a package, unless `whole` without packages in it; yield the modules that they may need."""
        for folder in map(Path, folders):
            if _is_installed(folder) or not folder.is_dir():
                continue
            files = self._loaded.package(folder, whole=whole)
            if not any(_is_module(each.name) for each in files):
                continue  # a folder of data that has the name of a module that is not installed
            if whole:
                yield from (each for each in tuple(sys.modules) if each.startswith(f"{name}."))  # also what git ignores
            for each in files:
                path = f"{name.replace('.', '/')}/{each.name}"
                if _is_module(each.name) and not each.refusal:
                    module = path.partition(".")[0].replace("/", ".").removesuffix(".__init__")
                    yield from self._add(module, each.file, path, is_program=each.is_program)
                else:
                    self._data[self._placed(each.file, path)] = each

    def _add(self, name: str, file: Path | None, path: str, *, is_program: bool = False) -> Iterator[str]:
        placed = self._placed(file, path) if file else path
        if placed in self.files:
            return
        data = self.files[placed] = self._loaded.get(name, file, placed)
        if is_program:
            self._programs.add(placed)
        if path.endswith(".py"):
            yield from _imports(data, _package(path))
            if file and "/" not in path:  # it may look for plug-ins in a folder beside it, by the folder's name
                beside = (each.name for each in file.parent.iterdir() if each.is_dir())
                yield from (name for name in beside if re.search(rb"[\"']%b[\"'/]" % re.escape(name.encode()), data))
        if file is None:
            with contents(sys.modules[name]) as values:
                yield from _modules_in(values)

    def _add_archive(self, archive: Path, root: str) -> Iterator[str]:
        """Add an archive, which nodes import from as well: from the same root in it."""
        path = self._placed(archive, archive.name)
        self._roots.add(path + root.removeprefix(archive.as_posix()))
        if path not in self.files:
            self.files[path] = self._loaded.data(archive, path)
            with ZipFile(archive) as members:
                for name in members.namelist():
                    if name.endswith(".py"):
                        yield from _imports(members.read(name), _package(name))

    def _placed(self, file: Path, path: str) -> str:
        """Return the path of a file on nodes: as it is here, relative to `base`, or the given one."""
        here, top = file.as_posix(), path.partition("/")[0]
        root = self._root_of.get(top)
        if root is None:
            is_below = self._base and here.startswith(self._base) and here.endswith(f"/{path}")
            root = here[len(self._base) : -len(path) - 1] if is_below else ""
            self._roots |= {root} - {""}
            if (module := self._found.get(top)) and module.has_code:
                self._root_of[top] = root  # also for folders elsewhere that were added to its `__path__`
        return f"{root}/{path}".lstrip("/")

    def bundle(self, needed: Collection[str]) -> CodeBundle:
        """Return the files that are needed, and of the others as many as are allowed: modules first, then by size.

        Raises:
            SerializationError: a file cannot be read, or those that are needed are too large together.
        """
        files = {path: self.files[path] for path in needed}
        left = MAX_BYTES - sum(map(len, files.values()))
        if left < 0:
            most = sorted(files, key=lambda path: -len(files[path]))[:3]
            listed = ", ".join(f"{each} ({len(files[each]) / 1e6:.1f} MB)" for each in most)
            raise SerializationError(_too_large("The local modules that a function imports", listed, "install them"))
        modules = [(len(data), path, "") for path, data in self.files.items() if path not in files]
        data = [(each.size, path, each.refusal) for path, each in self._data.items() if path not in self.files]
        refused: list[str] = []
        for size, path, refusal in (*sorted(modules), *sorted(data)):
            if refusal or size > left:
                refused.append(f"{path} ({refusal or f'{size / 1e6:.1f} MB'})")
                continue
            left -= size
            files[path] = self.files[path] if path in self.files else self._loaded.data(self._data[path].file, path)
            if path in self._data and self._data[path].is_program:
                self._programs.add(path)
        if refused:
            more = f" and {len(refused) - 5:,} more" if len(refused) > 5 else ""
            self._loaded.tell(
                f"Not sent with the packages of a function: {', '.join(refused[:-6:-1])}{more}. At most "
                f"{MAX_BYTES >> 20} MB are sent, modules and small files first. Nodes get these by "
                "Image(includes=[...]), with bake=True if they are large, or from a volume.",
                about=frozenset(self._added),  # the files may change with each call
            )
        return CodeBundle.of(files, self._programs, self._roots)


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
    return CodeBundle.of({path: read_file(file, ConfigError) for path, file in found.items()}, programs)


class _Module(NamedTuple):
    """A module that may be local.

    Attributes:
        file: path of its code; None for a namespace package, and for a module that was made in memory.
        folders: directories of its submodules; None if it is not a package.
        archive: the archive that its file is in; None if it is in none.
        has_code: whether it is no namespace package.
    """

    file: Path | None
    folders: tuple[str, ...] | None
    archive: Path | None = None
    has_code: bool = True

    @classmethod
    def of(cls, file: object, folders: Iterable[str] | None) -> _Module | None:
        """Return the module with these attributes, if there is such a file."""
        if not isinstance(file, str) or not file.endswith((*_SUFFIXES, ".pyc")):
            return None
        path = Path(file).absolute()
        archive = None if path.is_file() else next((each for each in path.parents if each.is_file()), None)
        return cls(path, None if folders is None else tuple(folders), archive) if archive or path.is_file() else None

    def path(self, name: str) -> str:
        """Return the file's path relative to a directory on `sys.path`; the local file may be named differently."""
        suffix = ".py" if not self.file or self.file.suffix == ".py" else "." + self.file.name.partition(".")[2]
        return name.replace(".", "/") + ("" if self.folders is None else "/__init__") + suffix


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
    by_name = not {"import_module", "__import__"}.isdisjoint(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code_imports(constant, package)
        elif by_name and isinstance(constant, str) and _DOTTED.fullmatch(constant):  # "plugins." of f"plugins.{name}"
            yield constant.strip(".")


@functools.lru_cache(maxsize=4096)
def _imports(source: bytes, package: str) -> tuple[str, ...]:
    """Return the modules named by a module's import statements, including those inside functions.

    They are found by their form, which takes a twentieth of the time that parsing takes; one in a text does no harm.
    """
    names: list[str] = []
    for base, members, modules, named in _IMPORT.findall(source.decode("utf-8", "replace")):
        listed = re.sub(r"#.*|[()\\]", " ", members or modules or named.strip(".")).split(",")
        found = [name for each in listed if (name := each.split(" as ")[0].strip()).replace(".", "").isidentifier()]
        names += _named(base.lstrip("."), found, len(base) - len(base.lstrip(".")), package) if base else found
    return tuple(names)


def _named(name: str, members: Iterable[str], level: int, package: str) -> Iterator[str]:
    """Yield the modules an import statement may refer to: each member, possibly a submodule, or the named one."""
    if level and not package:
        return
    if level:
        base = package.rsplit(".", level - 1)[0] if package.count(".") >= level - 1 else ""
        name = f"{base}.{name}".strip(".")
    yield from [f"{name}.{member}".strip(".") for member in members if member != "*"] or [name]


@functools.lru_cache(maxsize=8)
def _metadata(path: tuple[str, ...]) -> tuple[dict[str, bytes], tuple[str, ...]]:
    """Return the metadata of local projects, such as editable ones, and the modules of their entry points."""
    files: dict[str, bytes] = {}
    modules: list[str] = []
    for project in distributions(path=list(path)):
        origin = json.loads(project.read_text("direct_url.json") or "{}")
        is_local = origin.get("dir_info", {}).get("editable") or not _is_installed(Path(str(project.locate_file(""))))
        if is_local and (text := project.read_text("METADATA") or project.read_text("PKG-INFO")):
            folder = f"{project.name.replace('-', '_')}-{project.version}.dist-info"
            files[f"{folder}/METADATA"] = text.encode()
            files[f"{folder}/entry_points.txt"] = (project.read_text("entry_points.txt") or "").encode()
            modules += (each.module for each in project.entry_points if each.group not in _OF_COMMANDS)
    return files, tuple(modules)


def _find(name: str, found: dict[str, _Module | None]) -> _Module | None:
    """Return a module by name; None if it is not local or does not exist."""
    if name not in found:
        parent = name.rpartition(".")[0]
        above = _find(parent, found) if parent else None
        module = _loaded(name) if above or not parent else None
        if (module is None or (module.has_code and not module.file)) and (above.folders if above else not parent):
            module = _on_path(name, above.folders if above else None) or module
        found[name] = module if module and not (module.file and _is_installed(module.file)) else None
    return found[name]


def _loaded(name: str) -> _Module | None:
    module = sys.modules.get(name)
    if module is None or not issubclass(type(module), ModuleType):
        return None
    names = namespace(module)
    file, folders = names.get("__file__"), names.get("__path__")
    if found := _Module.of(file, folders):
        return found
    if isinstance(file, str) and _is_installed(Path(file)):  # and removed since
        return _Module(Path(file), None)
    is_made = not folders and names["__name__"] == name and name.partition(".")[0] not in sys.stdlib_module_names
    return _Module(None, None if folders is None else tuple(folders), has_code=is_made)


def _on_path(name: str, folders: Sequence[str] | None) -> _Module | None:
    """Find a module as an import would, but without importing its parent packages."""
    portions: list[str] = []
    for folder in sys.path if folders is None else folders:
        finder = pkgutil.get_importer(folder or os.getcwd())  # noqa: PTH109 - as in the import system
        spec = finder.find_spec(name) if finder is not None else None
        if spec is not None and spec.loader is not None:
            return _Module.of(spec.origin, spec.submodule_search_locations)
        portions += (spec and spec.submodule_search_locations) or ()
    if portions:
        return _Module(None, tuple(portions), has_code=False)
    for other in sys.meta_path if folders is None else ():  # such as finders of editable installs
        if other not in (BuiltinImporter, FrozenImporter, PathFinder):
            spec = other.find_spec(name, None)
            if spec is not None and (module := _Module.of(spec.origin, spec.submodule_search_locations)):
                return module
    return None


def _is_installed(file: Path) -> bool:
    real = os.path.realpath(file)
    inside = any(real.startswith(root + os.sep) for root in (*_STDLIB, _SKYWARD))
    return inside or bool(_INSTALLED.intersection((*file.parts, *Path(real).parts)))


def _package(path: str) -> str:
    """Return the package that the relative imports of a module at this path start from."""
    return path.rpartition("/")[0].replace("/", ".")


def _is_module(name: str) -> bool:
    return name.endswith(_SUFFIXES)


def _too_large(what: str, listed: str, remedy: str) -> str:
    return (
        f"{what} are larger than {MAX_BYTES >> 20} MB; the largest are {listed}. They are sent to every node when the "
        f"pool starts: {remedy}, or put them into the image (Image(pip=[...]), Image(run=[...]), bake=True)."
    )
