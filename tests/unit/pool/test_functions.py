"""Functions are sent anew when what travels with them has changed, and only then."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from skyward._pool.code.functions import Function, Functions
from skyward.wire import payload

PROGRAM = """
import functools
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from decimal import Decimal

import numpy as np

FACTOR = 3
NAMES = ["a"]
TABLE = {"a": [1]}
SEEN = {1}
RECENT = deque([1])
PLACES = OrderedDict(a=1)
ARRAY = np.zeros(4)
RATE = Decimal("0.1")

def helper(x, step=1, *, more=0):
    return x * FACTOR + step + more

class Base:
    scale = 1
    def double(self):
        return 2 * self.scale

class Config(Base):
    __slots__ = ("rate",)
    def __init__(self):
        self.rate = 1

@dataclass
class Options:
    depth: int = 1
    inner: list = field(default_factory=list)

config = Config()
options = Options()
half = functools.partial(helper, 2)

LARGE = {"a": np.zeros(10_000)}
PLAIN = [Config()]

def make():
    count = 0
    def inner():
        return count
    def add():
        nonlocal count
        count += 1
    return inner, add

inner, add = make()

def f(x):
    return [
        helper(x), later(x) if x > 9 else 0, list(NAMES), TABLE, SEEN, RECENT, PLACES, ARRAY.sum(), RATE,
        config.double(), config.rate, options.depth, len(options.inner), half(), inner(), isinstance(x, Base),
        LARGE['a'].sum(), PLAIN[0].rate,
    ]
"""


@pytest.fixture
def program() -> dict[str, Any]:
    """The names of a program, as if it were `__main__`."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(PROGRAM, names)
    return names


def result(function: Function, *args: Any) -> Any:
    """What the function returns on a node that has nothing but what is sent."""
    return payload.loads(function.data)(*args)


CHANGES = [
    "FACTOR = 4",
    "def helper(x): return x",
    "helper.__defaults__ = (2,)",
    "helper.__kwdefaults__ = {'more': 2}",
    "helper.__code__ = (lambda x, step=1, *, more=0: 8).__code__",
    "helper.mode = 1",
    "def later(x): return x",
    "NAMES.append('b')",
    "NAMES[0] = 'c'",
    "TABLE['b'] = []",
    "TABLE['a'].append(2)",
    "SEEN.add(2)",
    "RECENT.append(2)",
    "PLACES['b'] = 2",
    "ARRAY[0] = 1",
    "ARRAY = np.ones(4)",
    "RATE = Decimal('0.2')",
    "config.rate = 2",
    "Base.scale = 5",
    "Base.double = lambda self: 9",
    "Base.double.__code__ = (lambda self: 11).__code__",
    "class Base: pass",
    "options.depth = 2",
    "options.inner.append(1)",
    "half = functools.partial(helper, 5)",
    "half.keywords['step'] = 4",
    "LARGE['a'] = np.ones(10_000)",
    "PLAIN[0].rate = 2",
    "add()",
    "del later_defined",
    "x = f; x.__defaults__ = (10,)",
]


@pytest.mark.parametrize("change", CHANGES)
def test_what_the_client_would_run_now_is_sent(program: dict[str, Any], change: str) -> None:
    """Whatever is changed under a function is seen at its next call, and seen once."""
    program["later_defined"] = 1
    if "later_defined" in change:
        exec("def f(x): return 'later_defined' in globals() and later_defined", program)
    functions, fn = Functions(), program["f"]
    first = functions.get(fn)
    assert functions.get(fn) is first

    exec(change, program)
    second = functions.get(fn)

    assert second.number != first.number
    assert second.data != first.data
    assert second.wishes() == ()
    assert functions.get(fn) is second
    if "later" not in change and "mode" not in change and "class" not in change and "f;" not in change:
        assert str(result(second, 2)) == str(fn(2))


def test_equal_content_keeps_its_number(program: dict[str, Any]) -> None:
    """A value that was assigned anew and is equal is looked at, and nothing is sent."""
    functions = Functions()
    first = functions.get(program["f"])

    exec("NAMES = ['a']", program)

    assert functions.get(program["f"]).number == first.number


OWN_WAYS = """
import collections
K = 1
def scale(x): return x * K
class Base:
    def get(self): return K
class WithState(Base):
    def __getstate__(self): return {}
class WithReduce(Base):
    def __reduce__(self): return WithReduce, ()
class Dict(dict):
    __getattr__ = dict.__getitem__
    def values(self, wrong): raise RuntimeError
class Lazy:
    def __getattr__(self, name): raise RuntimeError(name)
    def __len__(self): raise RuntimeError
    def __bool__(self): raise RuntimeError
    def __eq__(self, other): raise RuntimeError
    __hash__ = None
with_state, with_reduce, table, lazy = WithState(), WithReduce(), Dict(a=1), Lazy()
ordered = collections.OrderedDict(f=scale)
def f(): return with_state.get() + with_reduce.get() + ordered["f"](2) + dict.__len__(table) + (lazy is None)
"""


def test_what_pickles_in_its_own_way_is_compared() -> None:
    """Also the code behind it; methods of the objects are not called."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(OWN_WAYS, names)
    functions = Functions()
    first = functions.get(names["f"])
    assert functions.get(names["f"]) is first

    names["K"] = 10

    assert names["f"]() == 41
    assert result(functions.get(names["f"])) == 41


def test_calls_of_one_operator_compare_a_function_once(program: dict[str, Any]) -> None:
    """However many they are."""
    functions = Functions()
    function_of = functions.once()
    first = function_of(program["f"])
    program["NAMES"].append("b")
    assert function_of(program["f"]) is first
    assert functions.once()(program["f"]) is not first


# modules -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory whose modules are local; what is imported from it is forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if name.endswith("_of_mine"):
            del sys.modules[name]


def written(folder: Path, name: str, text: str) -> None:
    """Write a module; Python takes no bytecode of an earlier one for it."""
    path = folder / f"{name}.py"
    before = path.stat().st_mtime if path.exists() else 1_000_000
    path.write_text(text)
    os.utime(path, (before + 10, before + 10))


def reload(name: str) -> ModuleType:
    return importlib.reload(sys.modules[name])


def import_anew(name: str) -> ModuleType:
    del sys.modules[name]
    return importlib.import_module(name)


@pytest.mark.parametrize("load", [reload, import_anew])
def test_a_module_is_sent_again_when_it_is_loaded_again(local: Path, load: Callable[[str], ModuleType]) -> None:
    """An edit alone changes nothing, as in the program itself; those that import it are concerned too."""
    written(local, "below_of_mine", "VALUE = 1\n")
    written(local, "above_of_mine", "import below_of_mine\ndef f(): return below_of_mine.VALUE\n")
    above = importlib.import_module("above_of_mine")
    functions = Functions()
    first = functions.get(above.f)

    written(local, "below_of_mine", "VALUE = 22\n")
    assert functions.get(above.f) is first
    assert dict(first.files())["below_of_mine.py"] == b"VALUE = 1\n"

    load("below_of_mine")
    second = functions.get(above.f)
    assert second.number != first.number
    assert dict(second.files())["below_of_mine.py"] == b"VALUE = 22\n"
    assert functions.get(above.f) is second


def test_a_module_that_the_program_has_not_imported_is_compared_by_its_file(local: Path) -> None:
    """The program would import it as it is now."""
    written(local, "late_of_mine", "VALUE = 1\n")
    names: dict[str, Any] = {"__name__": "__main__"}
    exec("def f():\n    import late_of_mine\n    return late_of_mine.VALUE", names)
    functions = Functions()
    first = functions.get(names["f"])

    written(local, "late_of_mine", "VALUE = 22\n")
    second = functions.get(names["f"])

    assert first.number != second.number
    assert dict(second.files())["late_of_mine.py"] == b"VALUE = 22\n"


def test_the_files_of_a_package_are_compared(local: Path) -> None:
    """Data that changes and files that appear are sent with the next call, without loading a module again."""
    (local / "pkg_of_mine").mkdir()
    (local / "pkg_of_mine/__init__.py").write_text("def f(): pass")
    (local / "pkg_of_mine/words.txt").write_text("a")
    functions, fn = Functions(), importlib.import_module("pkg_of_mine").f
    first = functions.get(fn)
    assert functions.get(fn) is first

    for name, text in (("words.txt", "bc"), ("new.txt", ""), ("deep/new.py", "")):
        path = local / "pkg_of_mine" / name
        path.parent.mkdir(exist_ok=True)
        assert functions.get(fn) == first
        path.write_text(text)
        second = functions.get(fn)
        assert second.number != first.number
        assert dict(second.files())[f"pkg_of_mine/{name}"] == text.encode()
        first = second


def test_a_module_that_was_edited_before_it_is_sent_is_named(local: Path) -> None:
    """Nodes run its file, this program what it has imported; once it is loaded again, there is nothing to say."""
    written(local, "edited_of_mine", "def f(): return 1\n")
    module = importlib.import_module("edited_of_mine")
    told: list[str] = []
    Functions(tell=told.append).get(module.f)
    assert told == []

    written(local, "edited_of_mine", "def f(): return 2\n")
    Functions(tell=told.append).get(module.f)
    assert [line.partition(" (")[0] for line in told] == ["edited_of_mine"]
    assert "was edited after this program imported it: nodes run the file as it is now" in told[0]

    told.clear()
    Functions(tell=told.append).get(reload("edited_of_mine").f)
    assert told == []
