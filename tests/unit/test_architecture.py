"""The packages of skyward: imports go one way, nothing prints.

The table is the design: a module imports from its own package and from lower levels. Imports inside functions
count for the direction, those that only type checkers see for nothing.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import skyward

ROOT = Path(str(skyward.__file__)).parent
LEVELS: tuple[tuple[str, ...], ...] = (
    ("errors", "_version", "system"),
    ("model",),
    ("image", "wire", "runtime", "records"),
    ("engine", "runner"),
    ("builder",),
    ("ssh",),
    ("nodes",),
    ("delivery",),
    ("providers", "plugins"),
    ("_compute", "_pool"),
    ("integrations", "runs"),
    ("cli", "testing"),
    ("", "__main__"),  # the root itself, and what starts the command line
)
LEVEL = {package: level for level, packages in enumerate(LEVELS) for package in packages}
IN_CONTAINERS = ("errors", "system", "model", "wire", "runtime", "records", "runner", "_compute", "_version", "")
ON_CLIENTS = {  # the first does without where there is none; nodes have no runs
    ("skyward.model.image_fields", "packaging.requirements"),
    ("skyward.records.run", "platformdirs"),
}
SIMULATED = (
    "_pool",
    "runner",
    "wire",
    "ssh",
    "nodes",
    "delivery",
    "providers",
)  # packages whose time, threads and sockets a simulation replaces
BEHIND_SYSTEM = {"time", "threading", "socket", "select", "selectors", "queue", "concurrent", "_thread", "sched"}


class Import(NamedTuple):
    """An import statement: the module it stands in, the module it names, and whether it runs when that is imported."""

    importer: str
    imported: str
    at_top: bool
    line: int


def modules() -> dict[str, Path]:
    """All modules of the package by name."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = ("skyward", *path.relative_to(ROOT).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def package(module: str) -> str:
    """The package a module of ours belongs to; "" for the root."""
    return (module + "..").split(".")[1]


def parents(module: str) -> Iterator[str]:
    """The packages that a module is in, the innermost first."""
    while module := module.rpartition(".")[0]:
        yield module


def for_type_checkers(node: ast.AST) -> bool:
    """Whether this is `if TYPE_CHECKING:`."""
    return isinstance(node, ast.If) and ast.unparse(node.test).rpartition(".")[2] == "TYPE_CHECKING"


def statements(nodes: list[ast.stmt], at_top: bool = True) -> Iterator[tuple[ast.stmt, bool]]:
    """Every statement that can run, and whether it runs when its module is imported."""
    for node in nodes:
        yield node, at_top
        inner = at_top and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        blocks = [getattr(node, name, []) for name in ("body", "orelse", "finalbody")]
        blocks += [part.body for name in ("handlers", "cases") for part in getattr(node, name, [])]
        for block in blocks[1:] if for_type_checkers(node) else blocks:
            yield from statements(block, inner)


def imports(module: str) -> list[Import]:
    """The import statements of a module; `from package import module` names the module."""
    found = []
    for node, at_top in statements(ast.parse(MODULES[module].read_text()).body):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: imports of ours are absolute"
            targets = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [target if target in MODULES else str(node.module) for target in targets]
        found += [Import(module, name, at_top, node.lineno) for name in dict.fromkeys(names)]
    return found


IMPORTS = [found for module in MODULES for found in imports(module)]
OURS = [found for found in IMPORTS if found.imported.partition(".")[0] == "skyward"]


def test_every_package_has_a_level() -> None:
    """A new package must be entered in the table."""
    assert {package(module) for module in MODULES} <= set(LEVEL)


def test_imports_go_downwards() -> None:
    """A module imports from its own package and from lower levels; packages on one level do not know each other."""
    wrong = [
        f"{i.importer}:{i.line} imports {i.imported}"
        for i in OURS
        if package(i.importer) != package(i.imported) and LEVEL[package(i.importer)] <= LEVEL[package(i.imported)]
    ]

    assert wrong == []


def test_no_cycles_when_modules_are_imported() -> None:
    """No two modules need each other in order to be imported; importing a module imports the packages it is in."""
    graph: dict[str, set[str]] = {module: set() for module in MODULES}
    for found in OURS:
        if found.at_top:
            loading = {found.importer, *parents(found.importer)}
            graph[found.importer] |= {found.imported} | (set(parents(found.imported)) - loading)

    order = list(TopologicalSorter(graph).static_order())  # raises CycleError, which names the cycle

    assert set(order) == set(MODULES)


def test_containers_need_cloudpickle_only() -> None:
    """What runs in containers imports the standard library, cloudpickle, and the others of its kind."""
    wrong = []
    for found in IMPORTS:
        top = found.imported.partition(".")[0]
        foreign = top not in sys.stdlib_module_names and top not in ("cloudpickle", "skyward", "__future__")
        beyond = top == "skyward" and package(found.imported) not in IN_CONTAINERS
        if package(found.importer) in IN_CONTAINERS and (foreign or beyond) and found[:2] not in ON_CLIENTS:
            wrong.append(f"{found.importer}:{found.line} imports {found.imported}")

    assert wrong == []


def test_time_threads_and_sockets_come_from_one_place() -> None:
    """What a simulation runs imports time, threads, locks, queues and sockets from `skyward.system` alone."""
    around = [
        f"{i.importer}:{i.line} imports {i.imported}"
        for i in IMPORTS
        if package(i.importer) in SIMULATED and i.imported.partition(".")[0] in BEHIND_SYSTEM
    ]

    assert around == []


def test_only_the_command_line_prints_to_standard_output() -> None:
    """Nothing but the command line writes to standard output, which belongs to the user's program."""
    prints = [
        f"{module}:{node.lineno}"
        for module, path in MODULES.items()
        if package(module) != "cli"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "print"
        and not any(keyword.arg == "file" for keyword in node.keywords)
    ]

    assert prints == []


def test_every_module_says_what_it_owns() -> None:
    """Every module with code in it has a docstring."""
    silent = [
        name
        for name, path in MODULES.items()
        if path.read_text() and not ast.get_docstring(ast.parse(path.read_text()))
    ]

    assert silent == []
