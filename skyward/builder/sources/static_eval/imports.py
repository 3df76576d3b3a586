"""Evaluates imports: files beside the script are read too, every other module is known by its dotted name only."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from skyward.builder.sources.static_eval import known
from skyward.builder.sources.static_eval.reading import Reading
from skyward.builder.sources.static_eval.source import Source
from skyward.builder.sources.static_eval.values import ABSENT, Module, Reference, Scope, Unknown


class Imports:
    """Follows imports."""

    def __init__(self, reading: Reading, sources: dict[Path, Source]) -> None:
        self._reading = reading
        self._sources = sources  # of earlier readings of the same script
        self._modules: dict[Path, Module] = {}
        self._first: list[Path] = []  # folders that the script has put into `sys.path`, before its own and after
        self._last: list[Path] = []
        self._is_lost = False

    def look_in(self, method: str, args: list[Any]) -> None:
        """Follow a call of a method of `sys.path`, which says where the modules of later imports are."""
        is_known = not self._reading.unsure and all(isinstance(each, str | int) for each in args)
        if is_known and method == "sys.path.append" and len(args) == 1:
            self._last.append(Path(args[0]))
        elif is_known and method == "sys.path.insert" and len(args) == 2 and args[0] in (0, 1):
            (self._last if args[0] else self._first).insert(0, Path(args[1]))
        elif method not in ("sys.path.copy", "sys.path.count", "sys.path.index"):
            self.lose()

    def lose(self) -> None:
        """Note that nobody knows where the modules of later imports are."""
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
        """The file that an import names, read to its end; None if it is not beside the script."""
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
            for count in range(1, len(parts) + 1):  # packages before what is in them
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
    """The file of a module."""
    for each in (path / "__init__.py", path.with_name(f"{path.name}.py")):
        try:  # opened, so that an audit hook hears of files that are not there, too
            each.open("rb").close()
        except OSError:
            continue
        return each
    return None
