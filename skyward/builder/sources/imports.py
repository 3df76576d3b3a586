"""The import statements of Python code, with their places: read from its syntax, nothing is imported or run."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

_GUARDS = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}
_BY_NAME = {"import_module", "__import__"}


@dataclass(frozen=True, slots=True)
class Import:
    """One module that a statement names.

    Attributes:
        name: with dots.
        where: file and line, for people.
        optional: whether the code goes on where it is missing, by a `try` with `except ImportError`.
        maybe: whether it may be a name in a module as well as a module: `b` of `from a import b`.
    """

    name: str
    where: str
    optional: bool = False
    maybe: bool = False


def imports_of(body: Iterable[ast.AST], package: str, place: Callable[[int], str]) -> Iterator[Import]:
    """What statements import, those inside of functions too; what only type checkers see is left out.

    Args:
        body: the statements.
        package: what relative imports start from; "" for none.
        place: words for a line.
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
    """The part of a module that a function or class in it uses, and the names that the module does not bind.

    Args:
        tree: the module.
        line: the first line of the function, that of its first decorator.
        name: of the function; "<lambda>" for one without.
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
    """All nodes, and whether an ImportError of theirs is caught."""
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
    """The last part of a name with dots; "" for what is none."""
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
    """The part of a statement that is, or has in it, the function or class that starts in a line."""
    for each in ast.walk(node):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and each.name == name:
            if min([each.lineno, *(decorator.lineno for decorator in each.decorator_list)]) == line:
                return node if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else each
        elif isinstance(each, ast.Lambda) and name == "<lambda>" and each.lineno == line:
            return node if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else each
    return None


def _loaded(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)}


def _binding(node: ast.stmt, name: str) -> ast.AST | None:
    """A statement of a module, or what of it is needed, if it binds a name there; else None."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        names = [alias for alias in node.names if (alias.asname or alias.name.partition(".")[0]) in (name, "*")]
        if not names:
            return None
        if isinstance(node, ast.Import):
            return ast.copy_location(ast.Import(names), node)
        return ast.copy_location(ast.ImportFrom(node.module, names, node.level), node)
    for each in _own(node):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and each.name == name:
            return node
        if isinstance(each, ast.Name) and each.id == name and not isinstance(each.ctx, ast.Load):
            return node
        if each is not node and isinstance(each, ast.Import | ast.ImportFrom) and _binding(each, name) is not None:
            return node
    return None


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """A statement and what is in it, without the inside of functions and classes."""
    yield node
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
        for inner in ast.iter_child_nodes(node):
            yield from _own(inner)
