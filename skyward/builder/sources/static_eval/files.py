"""Source files: a Python script or notebook, and the files beside it that it imports.

Every other module is known only by its dotted name.
"""

from __future__ import annotations

import ast
import codecs
import json
import re
from pathlib import Path
from typing import Any

from skyward.builder.sources.static_eval import known
from skyward.builder.sources.static_eval.reading import Reading
from skyward.builder.sources.static_eval.values import ABSENT, Module, Reference, Scope, Unknown
from skyward.errors import ConfigError

# magics of https://ipython.readthedocs.io/en/stable/interactive/magics.html whose cell is still Python
_AROUND_PYTHON = ("capture", "debug", "prun", "time", "timeit")
_MAGIC = re.compile(r"(?P<indent>\s*)(?:(?P<target>[\w, ]+?)\s*=\s*)?(?P<mark>[%!])(?P<rest>.*)")
_HELP = re.compile(r"\s*\?|\s*[\w.]+\?\??\s*$")


class Source:
    """The syntax tree of a file.

    Attributes:
        path: the path as given.
        tree: its statements.
        prefix: prefix of places in the file; "" for the script itself.
    """

    __slots__ = ("_cells", "path", "prefix", "tree")

    def __init__(self, path: Path, prefix: str = "") -> None:
        self.path, self.prefix = path, prefix
        self._cells: list[tuple[int, int]] = []
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
        if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise ConfigError(f"{path} is written in UTF-16, which Python does not read. Save it as UTF-8.")
        content: str | bytes = raw
        flags = ast.PyCF_ONLY_AST
        if path.suffix == ".ipynb":
            content, self._cells = _python_of(path, raw)
            flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        try:
            self.tree: ast.Module = compile(content, str(path), "exec", flags, dont_inherit=True)
        except SyntaxError as error:
            place = self.place(error.lineno or 1)
            raise ConfigError(f"{path} cannot be read: {place}: {error.msg}.") from None
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path} cannot be read: {error}.") from None

    @property
    def file(self) -> str | Unknown:
        """The absolute `__file__`; unknown for notebooks, which have none."""
        return Unknown("is bound nowhere in a notebook") if self._cells else str(self.path.absolute())

    def place(self, line: int) -> str:
        """Describe a line: "line 5", in a notebook "cell 2, line 1", in another file with its name in front."""
        if self._cells:
            cell, number = self._cells[min(line, len(self._cells)) - 1]
            return f"{self.prefix}cell {cell}, line {number}"
        return f"{self.prefix}line {line}"


def _python_of(path: Path, content: bytes) -> tuple[str, list[tuple[int, int]]]:
    """Return the Python code of a notebook's cells in order, and for each line its cell (from 1) and its line there."""
    try:
        notebook = json.loads(content)
        language = notebook.get("metadata", {}).get("kernelspec", {}).get("language", "python")
        cells = [
            (number, _text(cell)) for number, cell in enumerate(notebook["cells"], 1) if cell["cell_type"] == "code"
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} is not a Jupyter notebook (nbformat 4): {type(error).__name__}: {error}.") from None
    if language != "python":
        raise ConfigError(f"{path} is a notebook in {language}; only those in Python can be read.")
    lines, places = [], []
    for number, text in cells:
        for line, code in enumerate(_without_magics(text), 1):
            lines.append(code)
            places.append((number, line))
    return "\n".join(lines) + "\n", places or [(1, 1)]


def _text(cell: dict[str, Any]) -> str:
    source = cell["source"]
    return source if isinstance(source, str) else "".join(source)


def _without_magics(text: str) -> list[str]:
    """Return the lines of a cell with IPython and shell commands made harmless; the number of lines stays the same."""
    lines = text.splitlines()
    first = next((number for number, line in enumerate(lines) if line.strip()), 0)
    if lines and lines[first].startswith("%%"):
        words = lines[first][2:].split()
        if not words or words[0] not in _AROUND_PYTHON:
            return ["" for _ in lines]
        lines[first] = ""
    if _parses("\n".join(lines)):  # `%` and `?` may start a line within strings and expressions
        return lines
    made, continued = [], False
    for line in lines:
        found = None if continued else _MAGIC.fullmatch(line)
        if continued:
            code = ""
        elif found and found["target"]:
            code = f"{found['indent']}{found['target']} = get_ipython()"
        elif found:
            # `%run` and `%load` add names, like `exec`
            code = f"{found['indent']}{'exec(...)' if found['rest'].startswith(('run ', 'load ')) else 'pass'}"
        else:
            code = "" if _HELP.match(line) else line
        continued = bool(found or continued) and line.endswith("\\")
        made.append(code)
    return made


def _parses(text: str) -> bool:
    try:
        compile(text, "cell", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


class Imports:
    """Evaluator of imports, which reads the files they name."""

    def __init__(self, reading: Reading, sources: dict[Path, Source]) -> None:
        self._reading = reading
        self._sources = sources  # shared with earlier readings of the same script
        self._modules: dict[Path, Module] = {}
        self._first: list[Path] = []  # folders that the script has put into `sys.path` before and after its own
        self._last: list[Path] = []
        self._is_lost = False

    def look_in(self, method: str, args: list[Any]) -> None:
        """Follow a call of a method of `sys.path`, which changes where later imports are searched."""
        is_known = not self._reading.unsure and all(isinstance(each, str | int) for each in args)
        if is_known and method == "sys.path.append" and len(args) == 1:
            self._last.append(Path(args[0]))
        elif is_known and method == "sys.path.insert" and len(args) == 2 and args[0] in (0, 1):
            (self._last if args[0] else self._first).insert(0, Path(args[1]))
        elif method not in ("sys.path.copy", "sys.path.count", "sys.path.index"):
            self.lose()

    def lose(self) -> None:
        """Record that the places of later imports are unknown."""
        self._is_lost = True

    def run(self, node: ast.Import, scope: Scope) -> None:
        """Follow `import a.b as c`."""
        for alias in node.names:
            module = self._loaded(alias.name, 0)
            top = alias.name.partition(".")[0]
            value: Any = Reference(top)
            if alias.asname:
                value = module or Reference(alias.name)
            elif top in self._reading.loaded:
                value = self._reading.loaded[top]
            self._bind(alias.asname or top, value, node, scope)

    def run_from(self, node: ast.ImportFrom, scope: Scope) -> None:
        """Follow `from a import b as c`."""
        home = self._loaded(node.module or "", node.level)
        for alias in node.names:
            if alias.name == "*":
                self._all(home, node, scope)
                continue
            inner = self._loaded(f"{node.module}.{alias.name}" if node.module else alias.name, node.level)
            value: Any = self._reading.expressions.reference(f"{node.module or ''}.{alias.name}")
            if home is not None and alias.name in home.scope.values:
                value = self._reading.doubt(home.scope, alias.name) or home.scope.values[alias.name]
            elif inner is not None:
                value = inner
            elif home is not None:
                value = Unknown(f"is not bound at the top of {home.source.path.name}")
            elif node.level:
                value = Unknown("is of a package that is not beside the script")
            self._bind(alias.asname or alias.name, value, node, scope)

    def _bind(self, name: str, value: Any, node: ast.stmt, scope: Scope) -> None:
        self._reading.state.bind(scope, name, value, self._reading.place(node))

    def _all(self, home: Module | None, node: ast.ImportFrom, scope: Scope) -> None:
        """Follow `from a import *`."""
        if home is not None:
            names = home.scope.values.get("__all__", [name for name in home.scope.values if not name.startswith("_")])
            if unknown := self._reading.unknown_in(names):
                names = [*scope.values, *home.scope.values]
            for name in names:
                value = unknown or self._reading.doubt(home.scope, name) or home.scope.values.get(name, ABSENT)
                if value is not ABSENT:
                    self._bind(name, value, node, scope)
        elif node.module in ("skyward", "skyward.integrations"):
            for full in known.NAMES:
                if full.rpartition(".")[0] == node.module:
                    self._bind(full.rpartition(".")[2], self._reading.expressions.reference(full), node, scope)
        else:
            why = f"may be replaced by `from {node.module} import *` ({self._reading.place(node)})"
            for name, value in list(scope.values.items()):
                if not isinstance(value, Reference):
                    self._bind(name, Unknown(why), node, scope)

    def _loaded(self, name: str, level: int) -> Module | None:
        """Read the file that an import names and return its module; None if it is not beside the script."""
        here = self._reading.module.source.path.parent
        for _ in range(level - 1):
            here = here.parent
        parts = [part for part in name.split(".") if part]
        if not level and (not parts or parts[0] == "skyward"):
            return None
        if not level and name in self._reading.loaded:
            return self._reading.loaded[name]
        folders = [here]
        if not level:
            folders = [*self._first, self._reading.main.source.path.parent, *self._last, Path.cwd()]
            folders = [] if self._is_lost else folders
        for folder in folders:
            found = None
            for count in range(1, len(parts) + 1):  # packages before their submodules
                path = _file(folder.joinpath(*parts[:count]))
                found = None if path is None else self._read(path)
                if found is not None and not level:
                    self._reading.loaded[".".join(parts[:count])] = found
                    if count > 1 and (outer := self._reading.loaded.get(".".join(parts[: count - 1]))):
                        outer.scope.values.setdefault(parts[count - 1], found)
            if found is not None:
                return found
        return None

    def _read(self, path: Path) -> Module:
        path = path.resolve()
        reading = self._reading
        if path == reading.main.source.path.resolve():
            return reading.main
        if path in self._modules:
            return self._modules[path]
        source = self._sources.get(path) or Source(path, prefix=f"{path.name}, ")
        self._sources[path] = source
        module = self._modules[path] = Module(source)
        outer, reading.module = reading.module, module
        reading.quiet += 1
        reading.note_stores(source)
        try:
            reading.statements.run(source.tree.body, module.scope)
        finally:
            reading.quiet -= 1
            reading.module = outer
        return module


def _file(path: Path) -> Path | None:
    """Return the file of a module."""
    for each in (path / "__init__.py", path.with_name(f"{path.name}.py")):
        try:  # opened so that an audit hook also sees files that do not exist
            each.open("rb").close()
        except OSError:
            continue
        return each
    return None
