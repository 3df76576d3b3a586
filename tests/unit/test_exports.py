"""The public names: complete, lazy, and never shadowed by a submodule of the same name."""

from __future__ import annotations

import ast
import pickle
from pathlib import Path
from types import ModuleType

import pytest

import skyward as sky


@pytest.mark.parametrize("name", sky.__all__)
def test_every_public_name_exists(name: str) -> None:
    """Each name in `__all__` can be had, from the root, as what it is called."""
    value = getattr(sky, name)

    assert name in dir(sky)
    if not isinstance(value, str | ModuleType) and name != "sky":
        assert getattr(value, "__name__", name) == name


def test_type_checkers_see_the_same_names() -> None:
    """The stub that type checkers and editors read names what the table names, from the same modules."""
    tree = ast.parse(Path(str(sky.__file__)).with_suffix(".pyi").read_text())
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


def test_no_module_bears_a_public_name() -> None:
    """A submodule named like a public function would replace it when it is imported, or be hidden by it."""
    public = {name for name in sky.__all__ if not isinstance(getattr(sky, name), ModuleType)}
    root = Path(str(sky.__file__)).parent

    assert not public & {path.stem for path in root.iterdir()}


@pytest.mark.parametrize("name", ["compute", "gather", "pool", "sky", "PendingCompute", "shard"])
def test_public_objects_are_pickled_by_reference(name: str) -> None:
    """Public objects can be pickled, and are the same objects afterwards."""
    value = getattr(sky, name)

    assert pickle.loads(pickle.dumps(value)) is value


def test_a_pool_has_no_public_name_that_is_not_for_users() -> None:
    """The reference on the site lists them all, and lists what the pool's own code calls nowhere."""
    calls = {"map"}
    sizes = {"concurrency", "current_nodes", "instance_count", "total_slots", "workers_per_instance"}
    assert {name for name in dir(sky.ComputePool) if not name.startswith("_")} == calls | sizes | {
        "close", "dask", "is_active", "open", "stages", "stats",
    }  # fmt: skip
