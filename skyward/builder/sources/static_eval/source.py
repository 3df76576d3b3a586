"""The files that are read: Python scripts and notebooks, and where their lines stand for people."""

from __future__ import annotations

import ast
import codecs
import json
import re
from pathlib import Path
from typing import Any

from skyward.builder.sources.static_eval.values import Unknown
from skyward.errors import ConfigError

# of https://ipython.readthedocs.io/en/stable/interactive/magics.html: those whose cell is Python all the same
_AROUND_PYTHON = ("capture", "debug", "prun", "time", "timeit")
_MAGIC = re.compile(r"(?P<indent>\s*)(?:(?P<target>[\w, ]+?)\s*=\s*)?(?P<mark>[%!])(?P<rest>.*)")
_HELP = re.compile(r"\s*\?|\s*[\w.]+\?\??\s*$")


class Source:
    """A file's syntax tree.

    Attributes:
        path: as it was given.
        tree: its statements.
        prefix: what places in it begin with; "" for the script itself.
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
        """Its `__file__`, which is absolute; notebooks have none."""
        return Unknown("is bound nowhere in a notebook") if self._cells else str(self.path.absolute())

    def place(self, line: int) -> str:
        """Where a line stands: "line 5", in a notebook "cell 2, line 1", in another file with its name."""
        if self._cells:
            cell, number = self._cells[min(line, len(self._cells)) - 1]
            return f"{self.prefix}cell {cell}, line {number}"
        return f"{self.prefix}line {line}"


def _python_of(path: Path, content: bytes) -> tuple[str, list[tuple[int, int]]]:
    """The Python of a notebook's cells in their order, and for each line its cell (counted from 1) and line there."""
    try:
        notebook = json.loads(content)
        language = notebook.get("metadata", {}).get("kernelspec", {}).get("language", "python")
        cells = [(number, _text(cell)) for number, cell in enumerate(notebook["cells"], 1) if _is_code(cell)]
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


def _is_code(cell: dict[str, Any]) -> bool:
    return bool(cell["cell_type"] == "code")


def _text(cell: dict[str, Any]) -> str:
    source = cell["source"]
    return source if isinstance(source, str) else "".join(source)


def _without_magics(text: str) -> list[str]:
    """The lines of a cell with those for IPython and the shell made harmless; a line stays a line."""
    lines = text.splitlines()
    first = next((number for number, line in enumerate(lines) if line.strip()), 0)
    if lines and lines[first].startswith("%%"):
        words = lines[first][2:].split()
        if not words or words[0] not in _AROUND_PYTHON:
            return ["" for _ in lines]
        lines[first] = ""
    if _parses("\n".join(lines)):  # `%` and `?` may stand at a line's begin inside of texts and expressions
        return lines
    made, continued = [], False
    for line in lines:
        found = None if continued else _MAGIC.fullmatch(line)
        if continued:
            code = ""
        elif found and found["target"]:
            code = f"{found['indent']}{found['target']} = get_ipython()"
        elif found:
            # `%run` and `%load` bring names along, like `exec`
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
