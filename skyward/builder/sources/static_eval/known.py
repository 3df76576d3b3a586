"""Names outside a script that are followed: Skyward's values, plugins and pools, and built-in functions.

Every other call may change its arguments, and returns an unknown value.
"""

from __future__ import annotations

import ast
import builtins
import copy
import itertools
import os.path
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

from skyward.model.image import Dockerfile, Image, PipIndex
from skyward.model.spec import Accelerator, Nodes, Volume

POOLS = (
    "skyward.ComputePool",
    "skyward.pool",
    "skyward.integrations.JoblibPool",
    "skyward.integrations.ScikitLearnPool",
)
POOL_CLASSES = tuple(name for name in POOLS if name != "skyward.pool")
PROVIDERS = ("AWS", "Compose", "Docker", "Fallback", "GCP", "Kubernetes", "Local", "SSH", "Slurm", "Swarm")
_IMAGE = "skyward.Image"
# functions that return values and change neither arguments nor state
_PURE = (
    *("abs", "all", "any", "bool", "dict", "divmod", "enumerate", "float", "frozenset", "int", "len", "list", "max"),
    *("min", "range", "repr", "reversed", "round", "set", "sorted", "str", "sum", "tuple", "zip"),
)
VALUES: dict[str, Callable[..., Any]] = {
    **{f"builtins.{name}": getattr(builtins, name) for name in _PURE},
    _IMAGE: Image,
    "skyward.Accelerator": Accelerator,
    "skyward.Nodes": Nodes,
    "skyward.PipIndex": PipIndex,
    "skyward.Volume": Volume,
    "skyward.model.image.Dockerfile": Dockerfile,
    "copy.copy": copy.copy,
    "copy.deepcopy": copy.deepcopy,
    "collections.OrderedDict": dict,
    "builtins.dict.fromkeys": dict.fromkeys,
    "itertools.chain": itertools.chain,
    "pathlib.Path": Path,
    "textwrap.dedent": textwrap.dedent,
    **{f"os.path.{name}": getattr(os.path, name) for name in ("abspath", "basename", "dirname", "join", "realpath")},
}
CONSTANTS = {
    "sys.platform": sys.platform,
    "sys.version_info": sys.version_info,
    "typing.TYPE_CHECKING": False,
    "os.sep": "/",
}
# functions of these packages do not change their arguments
_HARMLESS = (
    *(
        "skyward.",
        "argparse.",
        "dataclasses.asdict",
        "json.dump",
        "logging.",
        "os.path.",
        "pprint.",
        "time.",
        "warnings.",
    ),
    *("builtins.print", "builtins.isinstance", "builtins.id", "builtins.type", "builtins.hash", "builtins.format"),
)
# after a call of these, any name may have another meaning
EVERYTHING = (
    *("builtins.exec", "builtins.eval", "builtins.globals", "builtins.locals"),
    *("runpy.run_path", "runpy.run_module"),
)
BACK_DOORS = ("sys.modules", "sys._getframe", "gc.", "inspect.currentframe", "__main__")  # lead to all names
_CHANGING: dict[type, tuple[str, ...]] = {
    list: ("append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse"),
    dict: ("update", "setdefault", "pop", "popitem", "clear"),
    set: ("add", "update", "remove", "discard", "pop", "clear", "difference_update", "intersection_update",
          "symmetric_difference_update"),
}  # fmt: skip
_READING: dict[type, tuple[str, ...]] = {
    list: ("copy", "count", "index"),
    dict: ("copy", "get", "items", "keys", "values"),
    set: (
        "copy",
        "difference",
        "intersection",
        "isdisjoint",
        "issubset",
        "issuperset",
        "symmetric_difference",
        "union",
    ),
    tuple: ("count", "index"),
    str: tuple(name for name in vars(str) if not name.startswith("_") and name not in ("format_map", "maketrans")),
    type(Path()): (
        *("absolute", "as_posix", "joinpath", "relative_to", "resolve", "with_name", "with_stem", "with_suffix"),
    ),
}
_OF_PATHS = ("name", "parent", "parents", "parts", "stem", "suffix")
_ROOT = sys.modules["skyward"]  # an import statement would bind a name listed above
NAMES = (*(f"skyward.{name}" for name in _ROOT.__all__), *POOLS)  # names that `from ... import *` binds
_INNER = {
    f"{home}.{name}": f"skyward.{name}"
    for name, home in vars(_ROOT)["_HOMES"].items()
    if home != f"skyward.{name}" or name == "pool"
}


def full_name(name: str) -> str:
    """Return the documented name of something in Skyward given by its dotted name."""
    if name.startswith("skyward."):
        name = _INNER.get(name, name).replace("skyward.integrations._joblib.", "skyward.integrations.")
    return name


def maker(name: str) -> Callable[..., Any] | None:
    """Return the callable that creates a value under that name; None if it is not followed."""
    if name.startswith(f"{_IMAGE}.from_"):
        found = getattr(Image, name.rpartition(".")[2], None)
        return found if callable(found) else None
    return VALUES.get(name)


def is_plugin(name: str) -> bool:
    """Return whether a name is that of a function that creates a plugin."""
    return name.startswith("skyward.plugins.") and name.count(".") == 2 and name.rpartition(".")[2].islower()


def is_provider(name: str) -> bool:
    """Return whether a name is that of a provider class."""
    return name.removeprefix("skyward.providers.").removeprefix("skyward.") in PROVIDERS and name.startswith("skyward.")


def is_harmless(name: str) -> bool:
    """Return whether a call by that name leaves its arguments unchanged."""
    return name.startswith(_HARMLESS)


def changes(owner: Any, method: str) -> bool:
    """Return whether a method changes its object."""
    return method in _CHANGING.get(type(owner), ())


def has_method(owner: Any, method: str) -> bool:
    """Return whether a value has a method that is followed."""
    if isinstance(owner, Image):
        found = vars(Image).get(method)
        return callable(found) and not method.startswith("_")
    return changes(owner, method) or method in _READING.get(type(owner), ())


def attribute(owner: Any, name: str) -> tuple[Any, ...]:
    """Return a field of a path, Python's version or one of Skyward's values in a 1-tuple; empty if there is none."""
    if isinstance(owner, Path):
        return (tuple(owner.parents) if name == "parents" else getattr(owner, name),) if name in _OF_PATHS else ()
    if owner is sys.version_info:
        return (getattr(owner, name),) if name in ("major", "minor", "micro") else ()
    slots = getattr(type(owner), "__dataclass_fields__", {})
    return (
        (getattr(owner, name),) if isinstance(owner, Image | PipIndex | Accelerator | Nodes) and name in slots else ()
    )


def cannot_fail(node: ast.Try) -> bool:
    """Return whether a block only imports Skyward, which is installed, and binds constants."""
    for each in node.body:
        if isinstance(each, ast.Import):
            if any(alias.name.partition(".")[0] != "skyward" for alias in each.names):
                return False
        elif isinstance(each, ast.ImportFrom):
            if each.level or (each.module or "").partition(".")[0] != "skyward":
                return False
        elif not isinstance(each, ast.Pass) and not (
            isinstance(each, ast.Assign)
            and isinstance(each.value, ast.Constant)
            and all(isinstance(target, ast.Name) for target in each.targets)
        ):
            return False
    return True


def length(kind: type[ast.operator], left: Any, right: Any) -> int:
    """Return the length of a sum or product of sequences; 0 for numbers."""
    lengths = [len(each) if hasattr(each, "__len__") else None for each in (left, right)]
    if kind is ast.Add:
        return sum(each or 0 for each in lengths)
    counts = [each for each in (left, right) if isinstance(each, int)]
    return max((each or 0 for each in lengths), default=0) * max(counts, default=0)
