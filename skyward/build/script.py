"""The pools and images that a Python script declares, found by reading it; nothing of it is run or imported."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from skyward.build.declared import Declared, PluginUse
from skyward.build.literal import NotStaticError, Reader, Scope
from skyward.errors import ConfigError
from skyward.model.accelerator import Accelerator
from skyward.model.image import Image
from skyward.model.spec import Nodes

_POOLS = ("skyward.ComputePool", "skyward.pool")
_REMEDY = "Write it with constants and skyward's own names, or declare the image in a TOML file."


class _Found(NamedTuple):
    """An expression that may declare something, where it stands, and what people would call it."""

    node: ast.expr
    scope: Scope
    name: str


def pools_in_script(path: str | Path) -> list[Declared]:
    """The images that a script would build: those of its pools (`ComputePool(...)`, `@pool(...)`) and those bound to
    names at its top that nothing else there uses. In the order of its lines.

    A parameter may be a constant, a name that is bound once, an operation on these, or a call of skyward's own names.

    Raises:
        ConfigError: the script cannot be read, a value is wrong, or one is known only when the script runs; one
            sentence for each, with line and expression.
    """
    path = Path(path)
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path))
    except (OSError, SyntaxError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.") from None
    names = _Names(path.stem)
    names.visit(tree)
    reader = Reader(str(path))
    problems: list[str] = []
    pools = [found for found in names.expressions if _is_pool(found, reader)]
    declared = list(_read(pools, lambda found: _of_pool(found, reader, path), path, problems))
    images = [found for found in _bound(names) if found.name not in reader.used and _may_be_image(found, reader)]
    alone = list(_read(images, lambda found: _of_image(found, reader, path), path, problems))
    declared += [(line, image) for line, image in alone if image.name not in reader.used]
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))
    return [each for _, each in sorted(declared, key=lambda pair: pair[0])]


def _read(
    every: list[_Found], make: Callable[[_Found], Declared], path: Path, problems: list[str]
) -> Iterator[tuple[int, Declared]]:
    """What can be made of expressions, with their lines; what cannot, becomes a problem."""
    for found in every:
        line = found.node.lineno
        try:
            yield line, make(found)
        except NotStaticError as error:
            problems.append(
                f"{path}, line {line}: what {found.name!r} is made of is known only when the script runs: {error}. "
                + _REMEDY
            )
        except ConfigError as error:
            problems.append(str(error))


def _is_pool(found: _Found, reader: Reader) -> bool:
    named = found.node.func if isinstance(found.node, ast.Call) else found.node
    return reader.reference(named, found.scope) in _POOLS


def _bound(names: _Names) -> list[_Found]:
    """What is bound once to a name of the module."""
    bound = [(name, all_[0][0]) for name, all_ in names.module.bindings.items() if len(all_) == 1]
    return [_Found(node, names.module, name) for name, node in bound if isinstance(node, ast.Call)]


def _may_be_image(found: _Found, reader: Reader) -> bool:
    """Whether a call makes an image, or would if all were known: it is one of `Image`, or of a method of such."""
    node: ast.expr = found.node
    while isinstance(node, ast.Call | ast.Attribute):
        if reader.reference(node, found.scope) == "skyward.Image":
            return True
        node = node.func if isinstance(node, ast.Call) else node.value
    try:
        return isinstance(reader.value(found.node, found.scope), Image)
    except (NotStaticError, ConfigError):
        return False


def _of_image(found: _Found, reader: Reader, path: Path) -> Declared:
    image = reader.value(found.node, found.scope)
    if not isinstance(image, Image):
        raise NotStaticError(found.node, "is no image")
    return _declared(found, path, image)


def _of_pool(found: _Found, reader: Reader, path: Path) -> Declared:
    given: dict[str, ast.expr] = {}
    for keyword in found.node.keywords if isinstance(found.node, ast.Call) else ():
        if keyword.arg is not None:
            given[keyword.arg] = keyword.value
            continue
        for name in reader.value(keyword.value, found.scope):
            item = ast.Subscript(keyword.value, ast.Constant(name), ast.Load())
            given[name] = ast.fix_missing_locations(ast.copy_location(item, keyword.value))

    def value(parameter: str, default: Any) -> Any:
        return reader.value(given[parameter], found.scope) if parameter in given else default

    plugins = tuple(value("plugins", ()))
    for plugin in plugins:
        if not isinstance(plugin, PluginUse):
            raise NotStaticError(given["plugins"], "holds something other than sky.plugins.NAME(...)")
    image, architecture = value("image", None) or Image(), value("architecture", None)
    declared = replace(_declared(found, path, image), plugins=plugins, architecture=architecture)
    if not plugins:  # nothing else reads these, which may well be known later only
        return declared
    accelerator, nodes = Accelerator.of(value("accelerator", None)), Nodes.of(value("nodes", 1))
    return replace(declared, accelerator=accelerator, nodes=nodes.desired)


def _declared(found: _Found, path: Path, image: Image) -> Declared:
    where = f"{path}, line {found.node.lineno}"
    return Declared(name=found.name, where=where, root=Path.cwd(), image=image)


class _Names(ast.NodeVisitor):
    """What a script's names are bound to, per scope, and its calls and bare decorators.

    Attributes:
        module: the outermost scope.
        expressions: all calls, and all decorators that are none.
    """

    def __init__(self, script: str) -> None:
        self.module = self._scope = Scope(name=script)
        self.expressions: list[_Found] = []
        self._called: dict[ast.expr, str] = {}

    def visit_Call(self, node: ast.Call) -> None:
        self.expressions.append(_Found(node, self._scope, self._called.get(node, self._scope.name)))
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign | ast.AnnAssign) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            if isinstance(target, ast.Name) and node.value is not None:
                self._called[node.value] = target.id
                self._scope.bind(target.id, node.value, node.lineno)
            elif not isinstance(target, ast.Name):
                self.visit(target)
        if node.value is not None:
            self.visit(node.value)

    visit_AnnAssign = visit_Assign  # noqa: N815

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Load):
            self._scope.bind(node.id, None, node.lineno)

    def visit_arg(self, node: ast.arg) -> None:
        self._scope.bind(node.arg, None, node.lineno)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self._scope.bind(node.name, None, node.lineno)
        self.generic_visit(node)

    def visit_Global(self, node: ast.Global | ast.Nonlocal) -> None:
        for name in node.names:  # whatever is bound to it here, it may change
            self.module.bind(name, None, node.lineno)
            self._scope.bind(name, None, node.lineno)

    visit_Nonlocal = visit_Global  # noqa: N815

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            full = alias.name if alias.asname else alias.name.partition(".")[0]
            self._scope.bind(alias.asname or full, full, node.lineno)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            full = f"{'.' * node.level}{node.module or ''}.{alias.name}"
            self._scope.bind(alias.asname or alias.name, full, node.lineno)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._scope.bind(node.name, None, node.lineno)
        for decorator in node.decorator_list:
            self._called[decorator] = node.name
            if not isinstance(decorator, ast.Call):
                self.expressions.append(_Found(decorator, self._scope, node.name))
            self.visit(decorator)
        self._inside(node.name, [node.args, *node.body])

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._scope.bind(node.name, None, node.lineno)
        self._inside(node.name, [*node.decorator_list, *node.bases, *node.keywords, *node.body])

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._inside(self._scope.name, [node.args, node.body])

    def _comprehension(self, node: ast.AST) -> None:
        self._inside(self._scope.name, [*ast.iter_child_nodes(node)])

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension  # noqa: N815

    def _inside(self, name: str, nodes: list[Any]) -> None:
        outer, self._scope = self._scope, Scope(parent=self._scope, name=name)
        for node in nodes:
            self.visit(node)
        self._scope = outer
