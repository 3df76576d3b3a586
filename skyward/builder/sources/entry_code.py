"""The imports of a script, module, function or class itself, read from its source."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from skyward.builder.sources.imports import Import, imports_of, what_it_uses
from skyward.builder.sources.static_eval.source import Source
from skyward.errors import ConfigError

_MAIN = ("__main__", "__mp_main__")
_SCRIPTS = (".py", ".pyw", ".ipynb")


@dataclass(frozen=True, slots=True)
class EntryCode:
    """Code to start from.

    Attributes:
        name: what it is called, for people.
        imports: what it imports.
        folder: the directory that its local modules are looked for in, before those of `sys.path`; None for none.
    """

    name: str
    imports: tuple[Import, ...]
    folder: Path | None = None


def entry_code(code: object) -> EntryCode:
    """Read a script by its path, a module, or a function or class.

    A function of the main program is sent by value: of that program, only what the function uses counts. Any other is
    imported on nodes with the whole of its module.

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
    """What a file imports.

    Args:
        path: of the file.
        package: what its relative imports start from.
        shown: its name for people.

    Raises:
        ConfigError: it cannot be read.
    """
    tree, place = _parsed(path, shown)
    return tuple(imports_of(tree.body, package, place))


def _of_script(path: Path) -> EntryCode:
    if path.suffix not in _SCRIPTS:
        raise ConfigError(f"Image.infer takes the path of a Python script or notebook; found {str(path)!r}.")
    path = path.absolute()
    folder, package = path.parent, list[str]()
    while (folder / "__init__.py").is_file():  # a part of a package: its relative imports start there
        package.insert(0, folder.name)
        folder = folder.parent
    return EntryCode(path.name, imports_in(path, ".".join(package), path.name), path.parent if not package else folder)


def _plain(code: object) -> object:
    """The function that a compute function, a call of one, a partial or a method stands for."""
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
    """A function or class of the main program: by its source, and where that says nothing by the values it has."""
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
    for name in sorted(unbound & values.keys()):  # bound in another cell of a notebook, or in a prompt
        found += _of_value(values[name], f"{name} in {shown}")
    return EntryCode(code.__qualname__, tuple(found), Path(file).absolute().parent if Path(file).is_file() else None)


def _line_of(code: type, tree: ast.Module) -> int:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == code.__name__:
            return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
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
