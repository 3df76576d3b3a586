"""The pools and images that a Python script or notebook declares, found by reading it; nothing of it is run."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from skyward.builder.sources.declared import Declared, PluginUse
from skyward.builder.sources.static_eval import Interpreter, PoolCall, Reading, Source, Unknown
from skyward.errors import ConfigError
from skyward.model.image import Image
from skyward.model.spec import Accelerator, Nodes, volumes_of

_REMEDY = "Write it with constants and skyward's own names, or declare the image in a TOML file."
# what pools of integrations add: (plugin, the parameter with its version), in their order
_ADDED = {
    "skyward.integrations.JoblibPool": (("joblib", "joblib_version"),),
    "skyward.integrations.ScikitLearnPool": (("sklearn", "sklearn_version"), ("joblib", "joblib_version")),
}


class _NotStaticError(Exception):
    """A value that only a run of the script can tell."""


class _Found(NamedTuple):
    """What a line declares, or why that is unknown."""

    line: tuple[bool, int]
    declared: Declared | None
    problem: str


def pools_in_script(path: str | Path) -> list[Declared]:
    """The images that a script would build: those of its pools (`ComputePool(...)`, `@pool(...)`, the pools of
    `sky.integrations`, subclasses and partials of these) and those bound to names at its top that nothing else there
    uses. In the order of its lines, each image of a line once.

    The script is followed statement by statement, also into its own functions and the files beside it that it imports.

    Args:
        path: of a script, or of a Jupyter notebook (`.ipynb`).

    Raises:
        ConfigError: the script cannot be read, a value is wrong, or one is known only when the script runs; one
            sentence for each, with line and expression.
    """
    path = Path(path)
    names = _Names()
    source = Source(path)
    names.visit(source.tree)

    def on_pool(call: PoolCall, reading: Reading) -> None:
        name = names.called.get(call.node) or names.inside.get(call.node) or path.stem
        call.result = _found(call.node, call.module.source, name, reading, lambda: _of_pool(call, reading))

    reading = Interpreter(source, on_pool).run()
    found = [call.result for call in reading.pools]
    found += _alone(reading, source)
    if problems := [each.problem for each in found if each.problem]:
        raise ConfigError("\n".join(dict.fromkeys(problems)))
    every = [each for each in sorted(found, key=lambda each: each.line) if each.declared]
    return [
        each for place, each in enumerate(d.declared for d in every) if each not in [d.declared for d in every[:place]]
    ]


def _found(node: ast.AST, source: Source, name: str, reading: Reading, make: Any) -> _Found:
    """What can be made of a line; what cannot, becomes a problem."""
    number = getattr(node, "lineno", 1)
    line = (source is not reading.main.source, number)
    where = f"{source.path}, {source.place(number).removeprefix(source.prefix)}"
    try:
        return _Found(line, replace(make(), name=name, where=where), "")
    except _NotStaticError as error:
        problem = f"{where}: what {name!r} is made of is known only when the script runs: {error}. {_REMEDY}"
        return _Found(line, None, problem)
    except ConfigError as error:
        text = str(error)
        return _Found(line, None, text if text.startswith(str(source.path)) else f"{where}: {text}")


def _alone(reading: Reading, source: Source) -> list[_Found]:
    """Images bound to names of the module that no pool and no other image is made with."""
    found = []
    for name in list(reading.main.scope.values):
        value = reading.expressions.read(name, reading.main.scope)
        held = reading.main.scope.values[name]
        if id(held) in reading.used or not (isinstance(held, Image) or getattr(held, "is_image", False)):
            continue
        node = _binding(source.tree, name)
        if node is not None:
            if isinstance(value, Unknown) and not value.about:
                value.about = f"`{name}`"
            make = lambda value=value: _empty(_certain(value, reading))  # noqa: E731
            found.append(_found(node, source, name, reading, make))
    return found


def _binding(tree: ast.Module, name: str) -> ast.AST | None:
    """The last statement that binds a name; None if it only comes from an import."""
    bound = None
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
            bound = node if bound is None or node.lineno > bound.lineno else bound
    return bound


def _certain(value: Any, reading: Reading, about: str = "") -> Any:
    """A value that is no secret of a run.

    Raises:
        _NotStaticError: only a run of the script can tell.
        ConfigError: it would be wrong in any run.
    """
    if (unknown := reading.unknown_in(value)) is None:
        return value
    if unknown.mistake:
        raise ConfigError(unknown.mistake)
    raise _NotStaticError(str(unknown) if unknown.about else f"{about} {unknown.why}")


def _empty(image: Image) -> Declared:
    return Declared(name="", where="", root=Path.cwd(), image=image)


def _of_pool(call: PoolCall, reading: Reading) -> Declared:
    given = call.arguments.kwargs
    reading.used.add(id(given.get("image")))
    for unknown in (call.arguments.rest, reading.patched):
        _certain(unknown, reading)

    def value(parameter: str, default: Any) -> Any:
        about = f"`{parameter}=` ({reading.place(call.node)})"
        return _certain(given[parameter], reading, about) if parameter in given else default

    plugins = list(value("plugins", ()))
    for name, version in _ADDED.get(call.name, ()):
        plugins.append(PluginUse(name=name, args=(value(version, None),), where=reading.place(call.node)))
    for plugin in plugins:
        if not isinstance(plugin, PluginUse):
            raise _NotStaticError(
                f"`plugins` ({reading.place(call.node)}) holds something other than sky.plugins.NAME(...)"
            )
    image, architecture = value("image", None), value("architecture", None)
    if not isinstance(image, Image | None):
        raise _NotStaticError(f"`image` ({reading.place(call.node)}) is no image")
    declared = replace(_empty(image or Image()), plugins=tuple(plugins), architecture=architecture)
    if volumes_of(value("volumes", None) or value("volume", None)):
        declared = replace(declared, has_volumes=True)
    if not plugins:  # nothing else reads these, which may well be known later only
        return declared
    accelerator, nodes = Accelerator.of(value("accelerator", None)), Nodes.of(value("nodes", 1))
    return replace(declared, accelerator=accelerator, nodes=nodes.desired)


class _Names(ast.NodeVisitor):
    """What people would call the result of an expression.

    Attributes:
        called: the name that it is bound to, or the function that it decorates.
        inside: the function around it.
    """

    def __init__(self) -> None:
        self.called: dict[ast.AST, str] = {}
        self.inside: dict[ast.AST, str] = {}
        self._function = ""

    def visit(self, node: ast.AST) -> None:
        """Note the node's surroundings, and go on below it."""
        if self._function:
            self.inside[node] = self._function
        outer = self._function
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for decorator in node.decorator_list:
                self.called[decorator] = node.name
            self._function = node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.targets[-1] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name):
                self.called[node.value] = target.id
        self.generic_visit(node)
        self._function = outer
