"""The public names: complete, lazy, and never shadowed by a submodule of the same name."""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
from itertools import permutations
from pathlib import Path
from types import ModuleType

import pytest

import skyward as sky


def run(code: str) -> str:
    """What a fresh interpreter prints for `code`, every warning being an error."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", sky.__all__)
def test_every_public_name_exists(name: str) -> None:
    """Each name in `__all__` can be had, from the root, as what it is called."""
    value = getattr(sky, name)

    assert name in dir(sky)
    if not isinstance(value, str | ModuleType) and name != "sky":
        assert getattr(value, "__name__", name) == name


def test_public_names_are_sorted_and_unique() -> None:
    """`__all__` is a sorted list without repetition."""
    assert sky.__all__ == sorted(set(sky.__all__))


def test_type_checkers_see_the_same_names() -> None:
    """The imports that only type checkers see name what the table names, from the same modules."""
    tree = ast.parse(Path(str(sky.__file__)).read_text())
    seen = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("skyward"):
            for alias in node.names:
                assert alias.asname == alias.name, "a re-export is written `from x import name as name`"
                module = f"skyward.{alias.name}" if node.module == "skyward" else node.module
                seen[alias.name] = module

    assert seen == sky._HOMES


def test_an_unknown_name_is_an_attribute_error() -> None:
    """A name that does not exist is refused as Python does it."""
    with pytest.raises(AttributeError, match="module 'skyward' has no attribute 'no_such_name'"):
        getattr(sky, "no_such_name")  # noqa: B009 - a type checker refuses the plain form
    assert not hasattr(sky, "no_such_name")


IMPORTS = [
    "import skyward.pool.decorator",
    "import skyward.compute",
    "from skyward.pool import decorator",
    "import skyward; skyward.pool; skyward.compute",
    "import skyward.pool.code",
]


@pytest.mark.parametrize("first", range(len(IMPORTS)))
def test_functions_are_never_shadowed_by_modules(first: int) -> None:
    """Whatever is imported first, `sky.pool` and `sky.compute` are the public callables."""
    orders = [order for order in permutations(range(len(IMPORTS))) if order[0] == first][::6]
    check = (
        "import skyward as sky\n"
        "from skyward import pool, compute\n"
        "import sys\n"
        "assert pool is sky.pool is sys.modules['skyward.pool.decorator'].pool, sky.pool\n"
        "assert compute is sky.compute is sys.modules['skyward.compute'].compute, sky.compute\n"
        "@sky.compute\ndef f(): return 1\n"
        "sky.pool(nodes=1)\n"
        "for name in list(sys.modules):\n    if name.startswith('skyward'): del sys.modules[name]\n"
    )

    run("\n".join("\n".join(IMPORTS[i] for i in order) + "\n" + check for order in orders))


def test_submodules_can_still_be_imported_by_name() -> None:
    """`import a.b.c` and `from a.b import c` reach the modules behind the shadowed names."""
    import importlib

    from skyward.pool import decorator

    assert importlib.import_module("skyward.pool.decorator") is decorator
    assert isinstance(importlib.import_module("skyward.pool"), ModuleType)
    assert sky.pool is decorator.pool


@pytest.mark.parametrize("name", ["compute", "gather", "pool", "sky", "PendingCompute", "shard"])
def test_public_objects_are_pickled_by_reference(name: str) -> None:
    """What lives in a module whose name is shadowed can be pickled, and is the same object afterwards."""
    value = getattr(sky, name)

    assert pickle.loads(pickle.dumps(value)) is value


def test_star_import_gives_the_public_names() -> None:
    """`from skyward import *` binds what `__all__` names."""
    assert run("from skyward import *\nimport skyward\nprint(all(n in globals() for n in skyward.__all__))") == "True\n"
