"""What a call is: the same in every process, another one when something changes that decides what it returns."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from skyward._pool.code.identity import Arguments
from tests.conftest import ROOT

PROGRAM = """
import sys, enum, dataclasses, functools
import helper
FACTOR = 2
NAMES = {"alpha", "beta", "gamma", "delta"}

@dataclasses.dataclass
class Settings:
    rate: float = 0.1
    tags: frozenset = frozenset({"x", "y", "z"})
    def scaled(self): return self.rate * FACTOR

class Mode(enum.Enum):
    FAST = "fast"
    SLOW = "slow"

def inner(x, by=3):
    return x * by if x in {"one", "two", "three"} else FACTOR

def f(item):
    total = [inner(part) for part in (item,)]
    return helper.twice(total), NAMES, Settings().scaled(), Mode.FAST, functools.partial(inner, by=4)

if __name__ == "__main__":
    import json
    from skyward._pool.code.identity import Arguments, code_digest
    items = [1, "a", Settings(0.2), Mode.SLOW, {"k": {"v", "w"}}, helper.Thing(3), [Settings(), None]]
    arguments = Arguments()
    print(json.dumps([code_digest(f), *(arguments.digest((item,), of="f") for item in items)]))
"""
HELPER = "class Thing:\n    def __init__(self, n): self.n = n\n\ndef twice(x):\n    return x * 2\n"


def _digests(folder: Path, program: str = PROGRAM, helper: str = HELPER, seed: int = 0) -> list[str]:
    """The digests of the program's function, and of its items."""
    (folder / "helper.py").write_text(helper)
    script = folder / "program.py"
    script.write_text(program)
    env = {"PYTHONHASHSEED": str(seed), "PYTHONPATH": str(ROOT), "PATH": "/usr/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return _digests(tmp_path_factory.mktemp("unchanged"))


def test_a_call_is_the_same_in_every_process(tmp_path: Path, unchanged: list[str]) -> None:
    """Whatever the order of sets, the folder, lines, comments and what else the program has."""
    first = unchanged
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    moved = PROGRAM.replace("FACTOR = 2", "# a comment\n\nUNUSED = 7\nFACTOR = 2")

    assert _digests(tmp_path, seed=1) == first
    assert _digests(elsewhere, moved, HELPER.replace("def twice", "# twice\n\ndef twice"), seed=2) == first
    assert len(set(first)) == len(first)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("FACTOR = 2", "FACTOR = 3"),  # a global that a function it calls reads
        ("x * by", "x + by"),
        ("by=3", "by=5"),
        ('"three"}', '"four"}'),
        ('"delta"', '"epsilon"'),
        ("self.rate * FACTOR", "self.rate + FACTOR"),
        ("rate: float = 0.1", "rate: float = 0.3"),
        ('FAST = "fast"', 'FAST = "quick"'),
        ("inner, by=4", "inner, by=6"),
        ("helper.twice(total)", "helper.Thing(total)"),
    ],
)
def test_a_changed_program_is_another_one(tmp_path: Path, unchanged: list[str], before: str, after: str) -> None:
    assert before in PROGRAM

    assert _digests(tmp_path, PROGRAM.replace(before, after))[0] != unchanged[0]


def test_a_local_module_that_changed_changes_the_function_and_items_of_its_classes(
    tmp_path: Path, unchanged: list[str]
) -> None:
    function, *items = unchanged
    other, *others = _digests(tmp_path, helper=HELPER.replace("= n", "= n + 1"))

    assert function != other
    assert [a != b for a, b in zip(items, others, strict=True)] == [False] * 5 + [True, False]


class Row(NamedTuple):
    a: int
    b: list[int]


class Color(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Point:
    x: Any
    y: Any = None


def _digest(item: Any) -> str:
    return Arguments().digest((item,), of="f")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        ("1", b"1"),
        ([1], (1,)),
        ([[1], 2], [[1, 2]]),
        (["ab", "c"], ["a", "bc"]),
        (list(range(100)), [*range(99), 99.0]),
        (["a"] * 100, ["a"] * 101),
        ({1, 2}, frozenset({1, 2})),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (Point(1), Point(2)),
        (Color.RED, 1),
        (np.arange(6), np.arange(6).reshape(2, 3)),
        (np.arange(6), np.arange(6.0)),
        (np.float32(1), 1.0),
        (torch.zeros(3), torch.zeros(3, 1)),
        (torch.zeros(3), torch.zeros(3, dtype=torch.float64)),
        (torch.zeros(3), torch.tensor([0.0, 0.0, 1.0])),
        (lambda: 1, lambda: 2),
        (print, len),
        (int, float),
        (json, enum),
        (bytearray(b"x"), b"x"),
        (memoryview(b"xy"), memoryview(b"xz")),
        (functools.partial(int, base=2), functools.partial(int, base=3)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_that_differ_are_different_items(one: Any, other: Any) -> None:
    assert _digest(one) != _digest(other)


def _closure(number: int) -> Any:
    def inner() -> int:
        return number

    return inner


def _zeroed(layer: torch.nn.Module) -> None:
    for values in layer.parameters():
        values.zero_()


@pytest.mark.parametrize(
    "make",
    [
        lambda: {"a": [1, (2.5, None)], "b": {"x", "y"}},
        lambda: np.arange(10_000).reshape(100, 100)[:, ::2],
        lambda: np.array(["a", {"k": 1}], dtype=object),
        lambda: torch.arange(12).reshape(3, 4).t(),
        lambda: torch.nn.Linear(2, 2).requires_grad_(False).apply(_zeroed),
        lambda: collections.OrderedDict(a=Point(1, [Color.RED])),
        lambda: Row(1, [2]),
        lambda: types.SimpleNamespace(a=1, f=_closure(3)),
        lambda: ValueError("no"),
        lambda: np.random.default_rng(3),
        lambda: ["".join(["a", "b"]), "ab"],
    ],
    ids=range(11),
)
def test_values_that_are_alike_are_one_item(make: Any) -> None:
    assert _digest(make()) == _digest(make())
