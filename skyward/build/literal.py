"""What an expression in a script means, found without running it: constants, names bound once, skyward's own calls."""

from __future__ import annotations

import ast
import dataclasses
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from skyward.build.declared import PluginUse
from skyward.errors import ConfigError
from skyward.model.accelerator import Accelerator
from skyward.model.image import Image, PipIndex
from skyward.model.spec import Nodes

_CALLS: dict[str, Callable[..., Any]] = {
    "skyward.Image": Image,
    "skyward.Image.from_dockerfile": Image.from_dockerfile,
    "skyward.Image.from_registry": Image.from_registry,
    "skyward.Image.from_project": Image.from_project,
    "skyward.PipIndex": PipIndex,
    "skyward.Accelerator": Accelerator,
    "skyward.Nodes": Nodes,
    "dataclasses.replace": dataclasses.replace,
    "dict": dict,
    "list": list,
    "tuple": tuple,
}
_METHODS = {name for name in vars(Image) if name.startswith("with_")} | {"pip_install", "apt_install", "run_commands"}
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.BitOr: operator.or_,
    ast.Mult: operator.mul,
}


class NotStaticError(Exception):
    """An expression whose value only a run of the script can tell."""

    def __init__(self, node: ast.expr, reason: str) -> None:
        super().__init__(f"`{_short(node)}` (line {node.lineno}) {reason}")


@dataclass(frozen=True, slots=True)
class Reference:
    """What a dotted name leads to by way of the script's imports, such as `skyward.Image`."""

    name: str


@dataclass(slots=True)
class Scope:
    """The names that a module or function binds, each with what is bound and on which line.

    What is bound: an expression, the full name of what is imported, or None for anything else.
    """

    name: str
    parent: Scope | None = None
    bindings: dict[str, list[tuple[ast.expr | str | None, int]]] = field(default_factory=dict)

    def bind(self, name: str, value: ast.expr | str | None, line: int) -> None:
        """Note one more binding of a name."""
        self.bindings.setdefault(name, []).append((value, line))

    def find(self, name: str) -> Scope | None:
        """The scope whose name it is, seen from this one."""
        scope: Scope | None = self
        while scope is not None and name not in scope.bindings:
            scope = scope.parent
        return scope


class Reader:
    """Evaluates expressions of one script.

    Attributes:
        used: names of the module that the expressions referred to.
    """

    def __init__(self, script: str) -> None:
        self._script = script
        self._active: list[str] = []
        self.used: set[str] = set()

    def value(self, node: ast.expr, scope: Scope) -> Any:
        """The value of an expression.

        Raises:
            NotStaticError: it cannot be told without running the script.
            ConfigError: a value that skyward is given is wrong; the message names the line.
        """
        found = self._read(node, scope)
        if isinstance(found, Reference) or callable(found):
            raise NotStaticError(node, "is no constant")
        return found

    def reference(self, node: ast.expr, scope: Scope) -> str:
        """The full name of what an expression refers to by way of imports; "" if it is none."""
        try:
            found = self._read(node, scope) if isinstance(node, ast.Name | ast.Attribute) else None
        except (NotStaticError, ConfigError):
            return ""
        return found.name if isinstance(found, Reference) else ""

    def _read(self, node: ast.expr, scope: Scope) -> Any:
        """The value of an expression, or what can be called by its name."""
        read = getattr(self, f"_{type(node).__name__.lower()}", None)
        if read is None:
            raise NotStaticError(node, "is no constant")
        return read(node, scope)

    def _constant(self, node: ast.Constant, _scope: Scope) -> Any:
        return node.value

    def _list(self, node: ast.List | ast.Tuple | ast.Set, scope: Scope) -> list[Any]:
        values: list[Any] = []
        for part in node.elts:
            if isinstance(part, ast.Starred):
                values += self.value(part.value, scope)
            else:
                values.append(self.value(part, scope))
        return values

    def _tuple(self, node: ast.Tuple, scope: Scope) -> tuple[Any, ...]:
        return tuple(self._list(node, scope))

    def _set(self, node: ast.Set, scope: Scope) -> set[Any]:
        return set(self._list(node, scope))

    def _dict(self, node: ast.Dict, scope: Scope) -> dict[Any, Any]:
        values: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            found = self.value(value, scope)
            values |= found if key is None else {self.value(key, scope): found}
        return values

    def _joinedstr(self, node: ast.JoinedStr, scope: Scope) -> str:
        parts = []
        for part in node.values:
            plain = isinstance(part, ast.FormattedValue) and part.conversion == -1 and part.format_spec is None
            if isinstance(part, ast.FormattedValue) and not plain:
                raise NotStaticError(node, "formats more than plain texts")
            parts.append(str(self.value(part.value if isinstance(part, ast.FormattedValue) else part, scope)))
        return "".join(parts)

    def _binop(self, node: ast.BinOp, scope: Scope) -> Any:
        apply = _OPERATORS.get(type(node.op))
        if apply is None:
            raise NotStaticError(node, "is no constant")
        left, right = self.value(node.left, scope), self.value(node.right, scope)
        return self._applied(node, apply, left, right)

    def _subscript(self, node: ast.Subscript, scope: Scope) -> Any:
        container, key = self.value(node.value, scope), self.value(node.slice, scope)
        return self._applied(node, operator.getitem, container, key)

    def _name(self, node: ast.Name, scope: Scope) -> Any:
        home = scope.find(node.id)
        if home is None:
            if node.id in _CALLS:
                return Reference(node.id)
            raise NotStaticError(node, "is bound nowhere in this script")
        if home.parent is None:
            self.used.add(node.id)
        bound = home.bindings[node.id]
        value, line = bound[0]
        if len(bound) > 1 and not all(isinstance(each, str) and each == value for each, _ in bound):
            raise NotStaticError(node, f"is bound more than once (lines {', '.join(str(line) for _, line in bound)})")
        if isinstance(value, str):
            return Reference(value)
        if value is None or node.id in self._active:
            raise NotStaticError(node, f"is made when the script runs (line {line})")
        self._active.append(node.id)
        try:
            return self._read(value, home)
        finally:
            self._active.pop()

    def _attribute(self, node: ast.Attribute, scope: Scope) -> Any:
        owner = self._read(node.value, scope)
        if isinstance(owner, Reference):
            return Reference(f"{owner.name}.{node.attr}")
        if isinstance(owner, Image) and node.attr in _METHODS:
            return getattr(owner, node.attr)
        raise NotStaticError(node, "is no name of skyward's")

    def _call(self, node: ast.Call, scope: Scope) -> Any:
        called = self._read(node.func, scope)
        name = called.name if isinstance(called, Reference) else ""
        is_plugin = name.startswith("skyward.plugins.") and name.count(".") == 2
        made = _CALLS.get(name) if name else called
        if not is_plugin and (made is None or not callable(made)):
            raise NotStaticError(node, "calls something other than skyward's own names")
        args = self._list(ast.List(elts=node.args), scope)
        kwargs: dict[str, Any] = {}
        for keyword in node.keywords:
            found = self.value(keyword.value, scope)
            kwargs |= found if keyword.arg is None else {keyword.arg: found}
        if is_plugin:
            where = f"{self._script}, line {node.lineno}"
            return PluginUse(name=name.rpartition(".")[2], args=tuple(args), kwargs=kwargs, where=where)
        assert made is not None
        return self._applied(node, made, *args, **kwargs)

    def _applied(self, node: ast.expr, apply: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return apply(*args, **kwargs)
        except (ConfigError, TypeError, ValueError, LookupError) as error:
            kind = "" if isinstance(error, ConfigError) else f"{type(error).__name__}: "
            reason = kind + str(error).removeprefix("Image: ")
            raise ConfigError(f"{self._script}, line {node.lineno}: `{_short(node)}`: {reason}") from None


def _short(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 60 else f"{text[:57]}..."
