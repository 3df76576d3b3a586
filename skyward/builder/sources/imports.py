"""The import statements of a script, module, function or class, and the modules they lead to.

Everything is read from source and found as an import would find it; nothing is imported or run.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import os
import pkgutil
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from skyward.builder.sources.static_eval.files import Source
from skyward.errors import ConfigError

_MAIN = ("__main__", "__mp_main__")
_SCRIPTS = (".py", ".pyw", ".ipynb")
_GUARDS = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}
_DEFINITION = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_BY_NAME = {"import_module", "__import__"}
_INSTALLED = {"site-packages", "dist-packages"}
_STDLIB = tuple({os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")})


@dataclass(frozen=True, slots=True)
class Import:
    """One module named by an import statement.

    Attributes:
        name: dotted name.
        where: file and line, for users.
        optional: whether the code catches the ImportError if it is missing.
        maybe: whether it may be a name inside a module instead of a module: `b` of `from a import b`.
    """

    name: str
    where: str
    optional: bool = False
    maybe: bool = False


@dataclass(frozen=True, slots=True)
class EntryCode:
    """Code to start from.

    Attributes:
        name: its name, for users.
        imports: its imports.
        folder: directory searched for local modules before `sys.path`; None if there is none.
    """

    name: str
    imports: tuple[Import, ...]
    folder: Path | None = None


def entry_code(code: object) -> EntryCode:
    """Read a script given by its path, a module, or a function or class.

    A function of the main program is sent by value, so only the parts of the program that it uses count. Nodes import
    any other function together with its whole module.

    Raises:
        ConfigError: it is none of these, or its source cannot be read.
    """
    if isinstance(code, str | Path):
        return _of_script(Path(code).expanduser())
    code = _plain(code)
    if isinstance(code, ModuleType):
        return EntryCode(code.__name__, (Import(code.__name__, f"the module {code.__name__}"),))
    if not isinstance(code, FunctionType | type):
        raise ConfigError(
            f"Image.infer takes a function, a class, a module or the path of a script; found {type(code).__name__}."
        )
    if code.__module__ not in _MAIN:
        return EntryCode(code.__qualname__, (Import(code.__module__, f"the module of {code.__qualname__}"),))
    return _of_main(code)


def imports_in(path: Path, package: str, shown: str) -> tuple[Import, ...]:
    """Return the imports of a file.

    Args:
        path: path of the file.
        package: package that its relative imports start from.
        shown: its name for users.

    Raises:
        ConfigError: the file cannot be read.
    """
    tree, place = _parsed(path, shown)
    return tuple(imports_of(tree.body, package, place))


def _of_script(path: Path) -> EntryCode:
    if path.suffix not in _SCRIPTS:
        raise ConfigError(f"Image.infer takes the path of a Python script or notebook; found {str(path)!r}.")
    path = path.absolute()
    folder, package = path.parent, list[str]()
    while (folder / "__init__.py").is_file():  # in a package, relative imports start at the outermost one
        package.insert(0, folder.name)
        folder = folder.parent
    return EntryCode(path.name, imports_in(path, ".".join(package), path.name), path.parent if not package else folder)


def _plain(code: object) -> object:
    """Return the function behind a compute function, a call of one, a partial or a method."""
    while True:
        if isinstance(code, functools.partial):
            code = code.func
        elif inspect.ismethod(code):
            code = code.__func__
        elif isinstance(code, FunctionType | type | ModuleType):
            return inspect.unwrap(code) if isinstance(code, FunctionType) else code
        elif (inner := getattr(code, "__wrapped__", None) or getattr(code, "fn", None)) is not None:
            code = inner
        else:
            return code


def _of_main(code: Any) -> EntryCode:
    """Read a function or class of the main program from its source; names not bound there are read as values."""
    is_function = isinstance(code, FunctionType)
    values = code.__globals__ if is_function else vars(sys.modules[code.__module__])
    file = code.__code__.co_filename if is_function else str(values.get("__file__", ""))
    text, shown = "".join(linecache.getlines(file)), Path(file).name
    try:
        tree = ast.parse(text)
    except SyntaxError:
        tree = ast.Module(body=[], type_ignores=[])
    line = code.__code__.co_firstlineno if is_function else _line_of(code, tree)
    parts, unbound = what_it_uses(tree, line, code.__name__)
    if not parts:
        raise ConfigError(
            f"Image.infer: the source of {code.__qualname__!r} cannot be found ({file or 'no file'}). Give the path of "
            "the script instead."
        )
    found = list(imports_of(parts, "", lambda number: f"{shown}:{number}"))
    for name in sorted(unbound & values.keys()):  # bound in another notebook cell or at a prompt
        found += _of_value(values[name], f"{name} in {shown}")
    return EntryCode(code.__qualname__, tuple(found), Path(file).absolute().parent if Path(file).is_file() else None)


def _line_of(code: type, tree: ast.Module) -> int:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == code.__name__:
            return _first_line(node)
    return 0


def _of_value(value: Any, where: str) -> Iterator[Import]:
    value = _plain(value)
    if isinstance(value, ModuleType):
        yield Import(value.__name__, where)
    elif isinstance(value, FunctionType | type) and value.__module__ in _MAIN:
        yield from _of_main(value).imports
    elif isinstance(module := getattr(value, "__module__", None) or type(value).__module__, str):
        yield Import(module, where)


def _parsed(path: Path, shown: str) -> tuple[ast.Module, Callable[[int], str]]:
    source = Source(path)
    if path.suffix == ".ipynb":
        return source.tree, lambda line: f"{shown}, {source.place(line)}"
    return source.tree, lambda line: f"{shown}:{line}"


def imports_of(body: Iterable[ast.AST], package: str, place: Callable[[int], str]) -> Iterator[Import]:
    """Yield the imports of statements, including those in functions, without those under TYPE_CHECKING.

    Args:
        body: the statements.
        package: package that relative imports start from; "" for none.
        place: returns the description of a line.
    """
    for node, optional in _statements(body, False):
        match node:
            case ast.Import():
                yield from (Import(alias.name, place(node.lineno), optional) for alias in node.names)
            case ast.ImportFrom():
                name = _absolute(node, package)
                if name:
                    yield Import(name, place(node.lineno), optional)
                    members = (f"{name}.{alias.name}" for alias in node.names if alias.name != "*")
                    yield from (Import(member, place(node.lineno), optional, maybe=True) for member in members)
            case ast.Call(args=[ast.Constant(value=str(name)), *_]) if _last(node.func) in _BY_NAME:
                if name and not name.startswith("."):
                    yield Import(name, place(node.lineno), optional)


def what_it_uses(tree: ast.Module, line: int, name: str) -> tuple[list[ast.AST], set[str]]:
    """Return the parts of a module that a function or class in it uses, and the names that the module does not bind.

    Args:
        tree: the module.
        line: first line of the function, including its decorators.
        name: name of the function; "<lambda>" for a lambda.
    """
    found = [part for node in tree.body if (part := _holding(node, line, name)) is not None]
    todo = {loaded for node in found for loaded in _loaded(node)}
    seen, parts = set[str](), [*found]
    unbound = set[str]()
    while todo:
        wanted = todo.pop()
        if wanted in seen:
            continue
        seen.add(wanted)
        binding = [part for node in tree.body if (part := _binding(node, wanted)) is not None]
        if not binding:
            unbound.add(wanted)
        for part in binding:
            if part not in parts:
                parts.append(part)
                todo |= _loaded(part)
    return parts, unbound


def _statements(nodes: Iterable[ast.AST], optional: bool) -> Iterator[tuple[ast.AST, bool]]:
    """Yield all nodes, each with whether an ImportError in it is caught."""
    for node in nodes:
        if isinstance(node, ast.If) and _last(node.test) == "TYPE_CHECKING":
            yield from _statements(node.orelse, optional)
        elif isinstance(node, ast.Try) and any(_catches(handler.type) for handler in node.handlers):
            yield from _statements([*node.body, *node.handlers], True)
            yield from _statements([*node.orelse, *node.finalbody], optional)
        elif isinstance(node, ast.With) and any(_suppresses(item.context_expr) for item in node.items):
            yield from _statements(node.body, True)
        else:
            yield node, optional
            yield from _statements(ast.iter_child_nodes(node), optional)


def _catches(kind: ast.expr | None) -> bool:
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(each is None or _last(each) in _GUARDS for each in kinds)


def _suppresses(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and _last(node.func) == "suppress" and any(map(_catches, node.args))


def _last(node: ast.AST) -> str:
    """Return the last part of a dotted name; "" for other nodes."""
    match node:
        case ast.Name():
            return node.id
        case ast.Attribute():
            return node.attr
    return ""


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".") if package else []
    if len(parts) < node.level:
        return ""
    return ".".join([*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])])


def _holding(node: ast.stmt, line: int, name: str) -> ast.AST | None:
    """Return the part of a statement that is or contains the function or class starting on a line."""
    for each in ast.walk(node):
        is_named = isinstance(each, _DEFINITION) and each.name == name and _first_line(each) == line
        if is_named or (isinstance(each, ast.Lambda) and name == "<lambda>" and each.lineno == line):
            return node if isinstance(node, _DEFINITION) else each
    return None


def _first_line(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _loaded(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)}


def _binding(node: ast.stmt, name: str) -> ast.AST | None:
    """Return the statement of a module that binds a name, reduced to the needed part of an import; else None."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        names = [alias for alias in node.names if (alias.asname or alias.name.partition(".")[0]) in (name, "*")]
        if not names:
            return None
        if isinstance(node, ast.Import):
            return ast.copy_location(ast.Import(names), node)
        return ast.copy_location(ast.ImportFrom(node.module, names, node.level), node)
    for each in _own(node):
        if isinstance(each, _DEFINITION) and each.name == name:
            return node
        if isinstance(each, ast.Name) and each.id == name and not isinstance(each.ctx, ast.Load):
            return node
        if each is not node and isinstance(each, ast.Import | ast.ImportFrom) and _binding(each, name) is not None:
            return node
    return None


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a statement and the nodes in it, without the bodies of functions and classes."""
    yield node
    if not isinstance(node, (*_DEFINITION, ast.Lambda)):
        for inner in ast.iter_child_nodes(node):
            yield from _own(inner)


@dataclass(frozen=True, slots=True)
class Module:
    """A module that was found.

    Attributes:
        file: its source; None for a namespace package or a module without a file.
        places: directories of its submodules; empty if it is not a package.
        is_local: whether it is the user's own: neither from the standard library nor installed.
    """

    file: Path | None
    places: tuple[str, ...]
    is_local: bool


@lru_cache(maxsize=4096)
def find_module(name: str, path: tuple[str, ...]) -> Module | None:
    """Find a module (dotted name) with the given `sys.path`; None if there is none."""
    parent, _, _ = name.rpartition(".")
    if not parent:
        spec = _spec(name, path) or _by_other_finders(name)
    else:
        above = find_module(parent, path)
        spec = _spec(name, above.places) if above else None
    if spec is None:
        return None
    places = tuple(spec.submodule_search_locations or ())
    file = Path(spec.origin) if spec.has_location and spec.origin else None
    return Module(file, places, any(map(_is_local, (*([str(file)] if file else []), *places))))


def _spec(name: str, path: Sequence[str]) -> ModuleSpec | None:
    portions: list[str] = []
    for place in path:
        finder = pkgutil.get_importer(place or os.getcwd())  # noqa: PTH109 - as the import system does
        spec = finder.find_spec(name) if finder is not None else None
        if spec is not None and spec.loader is not None:
            return spec
        portions += (spec and spec.submodule_search_locations) or ()
    if not portions:
        return None
    namespace = ModuleSpec(name, None, is_package=True)
    namespace.submodule_search_locations = portions
    return namespace


def _by_other_finders(name: str) -> ModuleSpec | None:
    """Ask the finders that do not use `sys.path`, such as those of editable installs."""
    for finder in sys.meta_path:
        if finder not in (BuiltinImporter, FrozenImporter, PathFinder):
            spec = finder.find_spec(name, None)
            if spec is not None:
                return spec
    return None


def _is_local(file: str) -> bool:
    real = os.path.realpath(file)
    inside = any(real.startswith(root + os.sep) for root in _STDLIB)
    return not inside and not _INSTALLED.intersection((*Path(file).parts, *Path(real).parts))
