"""Python source: the text of scripts, modules and notebooks, and the modules that it imports."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from skyward.errors import ConfigError

# magics of https://ipython.readthedocs.io/en/stable/interactive/magics.html whose cell is still Python
_AROUND_PYTHON = re.compile(r"%%(capture|time|timeit|prun|debug)\b.*")
_MAGIC = re.compile(r"^([ \t]*)(?:[\w, ]+=[ \t]*)?(?:[%!?]|[\w.]+\?\??[ \t]*$)(?:.*\\\n)*.*$", re.MULTILINE)
_BY_NAME = re.compile(r"\b(import_module|__import__)$")


@dataclass(frozen=True, slots=True)
class Import:
    """A module named by an import statement, or by `import_module("name")`.

    Attributes:
        name: dotted name; of `from a import b` both `a` and `a.b`, which may be no module.
        where: file or cell, and line, for users.
    """

    name: str
    where: str


def parts_of(path: Path) -> list[tuple[str, str]]:
    """Return names and Python text of the code cells of a notebook, in order; of another file, its name and text.

    Lines for IPython and the shell become `pass`.

    Raises:
        ConfigError: the file cannot be read, or is not a notebook in Python.
    """
    try:
        if path.suffix != ".ipynb":
            return [(path.name, path.read_text("utf-8-sig"))]
        notebook = json.loads(path.read_bytes())
        language = notebook.get("metadata", {}).get("kernelspec", {}).get("language", "python")
        cells = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        kind = "a Jupyter notebook" if path.suffix == ".ipynb" else "Python source in UTF-8"
        raise ConfigError(f"{path} is not {kind}: {type(error).__name__}: {error}.") from None
    if language != "python":
        raise ConfigError(f"{path} is a notebook in {language}; only those in Python can be used.")
    return [
        (f"{path.name}, cell {number}", python_of(text))
        for number, (kind, text) in enumerate(cells, 1)
        if kind == "code"
    ]


def python_of(cell: str) -> str:
    """Return the Python of a notebook's cell, with as many lines."""
    if cell.startswith("%%"):
        around = _AROUND_PYTHON.match(cell)
        cell = cell[around.end() :] if around else ""
    try:
        parsed(cell, "")
    except ConfigError:
        return _MAGIC.sub(lambda found: f"{found[1]}pass" + "\n" * found[0].count("\n"), cell)
    return cell


def parsed(text: str, name: str) -> ast.Module:
    """Return the syntax tree of a file or cell.

    Raises:
        ConfigError: it is not Python.
    """
    try:
        flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        tree: ast.Module = compile(text, name, "exec", flags, dont_inherit=True)
    except SyntaxError as error:
        raise ConfigError(f"{name} cannot be read: line {error.lineno}: {error.msg}.") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{name} cannot be read: {error}.") from None
    return tree


def imports_in(path: Path, package: str = "", shown: str = "") -> list[Import]:
    """Return the imports of a file, including those in functions, without those under TYPE_CHECKING.

    Args:
        path: path of the file.
        package: package that its relative imports start from.
        shown: its name for users; "" for that of the file.

    Raises:
        ConfigError: the file cannot be read.
    """
    between = ", line " if path.suffix == ".ipynb" else ":"
    found = []
    for name, text in parts_of(path):
        places = sorted(_imports(parsed(text, name), package), key=lambda each: each[0])
        found += [Import(module, f"{shown or name}{between}{line}") for line, module in places]
    return found


def _imports(tree: ast.Module, package: str) -> Iterator[tuple[int, str]]:
    """Yield line and name of imported modules."""
    skipped = set[ast.AST]()
    for node in ast.walk(tree):  # outer nodes first
        if node in skipped:
            continue
        match node:
            case ast.If() if ast.unparse(node.test).endswith("TYPE_CHECKING"):
                skipped.update(each for inner in node.body for each in ast.walk(inner))
            case ast.Import():
                for alias in node.names:
                    yield node.lineno, alias.name
            case ast.ImportFrom():
                if name := _absolute(node, package):
                    yield node.lineno, name
                    for alias in node.names:
                        yield node.lineno, f"{name}.{alias.name}"
            case ast.Call(args=[ast.Constant(value=str(name)), *_]) if _BY_NAME.search(ast.unparse(node.func)):
                yield node.lineno, name


def _absolute(node: ast.ImportFrom, package: str) -> str:
    """Return the module that a `from` statement names; "" if it is above the outermost package."""
    if not node.level:
        return node.module or ""
    above = package.split(".")[: package.count(".") + 2 - node.level] if package else []
    return ".".join([*above, *([node.module] if node.module else [])]) if above else ""
