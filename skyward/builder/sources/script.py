"""Images declared by a Python script or notebook, and the places of its pools, found by reading it.

Nothing is run; `static_eval` follows the statements.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from skyward.builder.sources.declared import Declared, PluginUse, ProviderUse
from skyward.builder.sources.static_eval import Interpreter, PoolCall, Reading, Source, Unknown
from skyward.errors import ConfigError
from skyward.model.image import Image
from skyward.model.spec import Accelerator, Nodes, volumes_of

_REMEDY = "Write it with constants and skyward's own names, or declare the image in a TOML file."
# plugins that the pools of integrations add, in order: (plugin, the parameter with its version)
_ADDED = {
    "skyward.integrations.JoblibPool": (("joblib", "joblib_version"),),
    "skyward.integrations.ScikitLearnPool": (("sklearn", "sklearn_version"), ("joblib", "joblib_version")),
}
# parameters of a pool that determine which machines are rented
_MACHINES = (
    *("nodes", "accelerator", "cpu", "vcpus", "memory", "memory_gb", "architecture", "machine", "allocation"),
    *("max_hourly_cost", "budget"),
)
_BEFORE_START = (
    "A detached run has to know it before it starts: write the provider with constants, such as sky.SSH('gpu1'), or "
    "run the program without --detach."
)


class _NotStaticError(Exception):
    """A value is known only when the script runs."""


class _Found(NamedTuple):
    """The declaration on a line, or the reason why it is unknown."""

    line: tuple[bool, int]
    declared: Declared | None
    problem: str


def pools_in_script(path: str | Path) -> list[Declared]:
    """Return the images that a script would build.

    These are the images of its pools (`ComputePool(...)`, `@pool(...)`, the pools of `sky.integrations`, subclasses and
    partials of these) and those bound to names at its top level that nothing else there uses, in the order of their
    lines and without duplicates. The script is followed statement by statement, also into its own functions and the
    files beside it that it imports.

    Args:
        path: path of a script or a Jupyter notebook (`.ipynb`).

    Raises:
        ConfigError: the script cannot be read, a value is wrong, or a value is known only when the script runs; one
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
    images: list[Declared] = []
    for each in sorted(found, key=lambda each: each.line):
        if each.declared and each.declared not in images:
            images.append(each.declared)
    return images


def _found(node: ast.AST, source: Source, name: str, reading: Reading, make: Any) -> _Found:
    """Create the declaration of a line, or describe the problem with it."""
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
    """Return the images bound to names of the module that no pool and no other image is created from."""
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
    """Return the last node that binds a name; None if only imports bind it."""
    bound = None
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
            bound = node if bound is None or node.lineno > bound.lineno else bound
    return bound


def _certain(value: Any, reading: Reading, about: str = "") -> Any:
    """Return a value if all of it is known.

    Raises:
        _NotStaticError: it is known only when the script runs.
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
    volumes = volumes_of(value("volumes", None) or value("volume", None))
    declared = replace(
        _empty(image or Image()), plugins=tuple(plugins), architecture=architecture, has_volumes=bool(volumes)
    )
    if not plugins:  # otherwise unused, so these may be unknown until the script runs
        return declared
    accelerator, nodes = Accelerator.of(value("accelerator", None)), Nodes.of(value("nodes", 1))
    return replace(declared, accelerator=accelerator, nodes=nodes.desired)


class _Names(ast.NodeVisitor):
    """Names for the results of expressions, for users.

    Attributes:
        called: the name that the result is bound to, or the function that it decorates.
        inside: the function around it.
    """

    def __init__(self) -> None:
        self.called: dict[ast.AST, str] = {}
        self.inside: dict[ast.AST, str] = {}
        self._function = ""

    def visit(self, node: ast.AST) -> None:
        """Record the names around the node, then visit its children."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredPool:
    """A pool of a script.

    Attributes:
        where: file and line, for messages.
        providers: the providers of its nodes, in the order in which they are tried.
        secrets: client variables whose values it passes to workers.
        has_volumes: whether it mounts volumes.
        machines: the given parameters that determine which machines are rented.
    """

    where: str
    providers: tuple[ProviderUse, ...]
    secrets: tuple[str, ...]
    has_volumes: bool
    machines: Mapping[str, Any]

    def unknown_machines(self) -> str | None:
        """Return the name of a parameter in `machines` that is known only when the script runs, or None."""
        return next((name for name, value in self.machines.items() if _is_unknown(value)), None)


def declared_pools(path: Path) -> list[DeclaredPool]:
    """Return the pools opened by a script or by the files beside it that it imports, in the order they are found.

    Raises:
        ConfigError: the script cannot be read, or the provider of a pool is known only when the script runs.
    """

    def on_pool(call: PoolCall, reading: Reading) -> None:
        call.result = _pool(call, reading)

    found: list[DeclaredPool] = []
    for call in Interpreter(Source(path), on_pool).run().pools:
        if call.result not in found:
            found.append(call.result)
    return found


def _pool(call: PoolCall, reading: Reading) -> DeclaredPool:
    given = call.arguments
    where = f"{call.module.source.path}, {call.module.source.place(call.node.lineno)}"
    first = given.args[0] if given.args else given.kwargs.get("provider")
    if given.rest is not None or reading.patched:
        raise ConfigError(f"{where}: what this pool is made of is known only when the program runs. {_BEFORE_START}")
    secrets = given.kwargs.get("secrets") or ()
    if isinstance(secrets, Unknown):
        raise ConfigError(f"{where}: the names in secrets= are known only when the program runs. {_BEFORE_START}")
    names = [key if isinstance(key, str) else "" for key in secrets] if not isinstance(secrets, dict) else []
    volumes = given.kwargs.get("volumes") or given.kwargs.get("volume")
    return DeclaredPool(
        where=where,
        providers=tuple(_providers(first, where)),
        secrets=tuple(name for name in names if name),
        has_volumes=isinstance(volumes, Unknown) or bool(volumes_of(volumes)),
        machines={name: given.kwargs[name] for name in _MACHINES if name in given.kwargs},
    )


def _is_unknown(value: Any) -> bool:
    return isinstance(value, Unknown) or (isinstance(value, list | tuple) and any(map(_is_unknown, value)))


def _providers(value: Any, where: str) -> list[ProviderUse]:
    if value is None:
        return [ProviderUse(name="Docker", where=where)]
    if isinstance(value, list | tuple):
        return [use for each in value for use in _providers(each, where)]
    if not isinstance(value, ProviderUse):
        raise ConfigError(f"{where}: where this pool runs is known only when the program runs. {_BEFORE_START}")
    if value.name == "Fallback":
        return [use for each in value.args for use in _providers(each, where)]
    return [value]
