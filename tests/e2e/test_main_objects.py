"""Objects of `__main__` are on a node what they are in the program."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import skyward as sky

PROGRAM = """
import enum, functools
import numpy as np

class Level(enum.Enum):
    LOW, HIGH = 1, 2

class Config:
    limit = 1
    def __init__(self): self.rate = 1
    def both(self): return self.limit, self.rate

class Hidden(Config):
    def __reduce__(self): return _made, (Hidden, self.rate)
    def __eq__(self, other): raise RuntimeError
    def __bool__(self): raise RuntimeError
    def __getattr__(self, name): raise AttributeError(name)

def _made(kind, rate):
    made = kind()
    made.rate = rate
    return made

def cell():
    value = 0
    def write(new):
        nonlocal value
        value = new
    return write, lambda: value

number, level, items, table, array = 0, Level.LOW, [0], {"a": [0]}, np.zeros(3)
config, hidden = Config(), Hidden()
write, read = cell()
def helper(x=0): return x + number
partial = functools.partial(helper, 1)
count, seen = 0, {}

def first(default=0): return helper(), level, items, config.both(), default
def second(): return table, array.tolist(), hidden.both(), read(), partial(), helper(2)
def third(): return first(), number, hidden.limit
def called(fn): return fn(), number
def counted():
    global count
    count += 1
    seen[count] = True
    return count, sorted(seen)
def looked(): return count, sorted(seen)
"""
CHANGES = [
    *("number = {}", "items.append({})", "items[0] = {}", "table['a'][0] = {}", "array[0] = {}", "config.rate = {}"),
    *("Config.limit = {}", "Hidden.limit = {}", "hidden.rate = {}", "write({})", "helper.__defaults__ = ({},)"),
    *("partial = functools.partial(helper, {})", "level = Level({} % 2 + 1)", "first.__defaults__ = ({},)"),
    *("Config.both = lambda self: {}", "def helper(x=0): return x * {}", "config = Hidden(); config.rate = {}"),
]


@pytest.mark.parametrize("provider", ["Local", "Docker"])
def test_objects_of_the_program(provider: str) -> None:
    """Functions that use them return the same on a node; they come back as themselves; none is changed here."""
    program = Path(__file__).with_name("main_objects.py")
    ended = subprocess.run([sys.executable, program, provider], check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout.strip(), ended.stderr) == (0, "", "")


@pytest.fixture(scope="module", params=[1, 4], ids="concurrency={}".format)
def pool(request: pytest.FixtureRequest) -> Iterator[sky.ComputePool]:
    """One process, which runs one call at a time or several."""
    with sky.ComputePool(sky.Local(), concurrency=request.param, display="quiet") as pool:
        yield pool


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The globals of a program, which is `__main__` for this test."""
    module = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    exec(PROGRAM, vars(module))
    return vars(module)


steps = st.lists(
    st.tuples(
        st.lists(st.builds(str.format, st.sampled_from(CHANGES), st.integers(0, 3)), max_size=3),
        st.sampled_from(["first", "second", "third", "called"]),
    ),
    max_size=8,
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(steps=steps)
def test_globals_that_change_between_calls(
    steps: list[tuple[list[str], str]], pool: sky.ComputePool, program: dict[str, Any]
) -> None:
    """Whatever changes in the program, a call returns what it returns there, also in the background."""
    exec(PROGRAM, program)
    here, there = [], []
    for changes, name in steps:
        exec("\n".join(changes), program)
        args = (program["first"],) if name == "called" else ()
        call = sky.compute(program[name])
        here.append(repr(call.local(*args)))
        there.append(call(*args) > pool)
    assert [repr(each.result()) for each in there] == here


def test_globals_that_calls_change(program: dict[str, Any]) -> None:
    """What a call stores in a global is there for the next, of any function, until the program assigns the global."""
    counted, looked = sky.compute(program["counted"]), sky.compute(program["looked"])
    with sky.ComputePool(sky.Local(), display="quiet") as pool:
        assert [counted() >> pool for _ in range(2)] == [(1, [1]), (2, [1, 2])]
        assert looked() >> pool == (2, [1, 2])
        assert counted() >> pool == (3, [1, 2, 3])
        program["count"] = 10
        assert looked() >> pool == (10, [1, 2, 3])
        assert counted() >> pool == (11, [1, 2, 3, 11])
