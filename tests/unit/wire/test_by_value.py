"""Classes of `__main__` arrive in another process as they are here, without their class statements being run again."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skyward.wire import payload
from tests.unit.wire.observed import observed

NODE = """
import pickle, sys
from skyward.runner.main_module import Program
from skyward.wire import payload
from tests.unit.wire.observed import observed
Program().enter({})
main = sys.modules["__main__"]
while size := sys.stdin.buffer.read(4):
    cls = payload.loads(sys.stdin.buffer.read(int.from_bytes(size)))
    answer = pickle.dumps((observed(cls), vars(main).get(cls.__name__) is cls))
    sys.stdout.buffer.write(len(answer).to_bytes(4) + answer)
    sys.stdout.buffer.flush()
"""
PRELUDE = """
import abc, enum, functools, dataclasses, typing
ran = []
T = typing.TypeVar("T")
class Plain:
    version, limit = 1, None
    def run(self): return "plain"
class Hooked:
    version = 1
    def __init_subclass__(cls, key=None, **more):
        super().__init_subclass__(**more)
        ran.append(cls.__name__)
        cls.key = key
class Slotted:
    __slots__ = ("a", "__b")
class Abstract(abc.ABC):
    @abc.abstractmethod
    def run(self): ...
class Meta(type):
    def __new__(meta, name, bases, space, **more):
        ran.append(name)
        return super().__new__(meta, name, bases, space)
    def __setattr__(cls, name, value): raise TypeError(name)
class Descriptor:
    def __set_name__(self, owner, name):
        ran.append(name)
        self.name = name
    def __get__(self, obj, cls=None): return self.name
class Generic(typing.Generic[T]): ...
"""
HEADS = [
    "class C:",
    "class C(Plain):",
    "class C(Hooked, key='k'):",
    "class C(Slotted):",
    "class C(Abstract):",
    "class C(metaclass=Meta):",
    "class C(Plain, metaclass=Meta):",
    "class C(Generic[int]):",
    "class C(Hooked, Plain):",
    "class C(dict):",
    "class C(int):",
    "class C(Exception):",
    "class C(typing.Protocol):",
    "@dataclasses.dataclass\nclass C:",
    "@dataclasses.dataclass(frozen=True)\nclass C(Hooked, key='d'):",
    "@functools.total_ordering\nclass C:",
]
MEMBERS = [
    "version = 1",
    "version = None",
    "limit = None",
    "run = Plain.run",
    "def run(self): return 'own'",
    "def run(self): return __class__.__name__",
    "def __lt__(self, other): return True",
    "def __eq__(self, other): return True",
    "@property\n    def size(self): return 4",
    "@functools.cached_property\n    def lazy(self): return 5",
    "@classmethod\n    def made(cls): return cls.__name__",
    "@staticmethod\n    def fixed(): return 6",
    "@functools.lru_cache\n    def cached(self): return 7",
    "field = Descriptor()",
    "count: int = 3",
    "maybe: 'T | None' = None",
    "'''What it is.'''",
    "class Inner:\n        x = 1",
    "class Kind(enum.Enum):\n        A = (1, 2)\n        B = A\n        def __init__(self, x, y): self.sum = x + y",
    "def __getattr__(self, name): raise AttributeError(name)",
    "def __init_subclass__(cls, **more): ran.append('own hook')",
]
ENUMS = [
    "class C(enum.Enum):\n    A = 1\n    B = 1\n    D = 'x'",
    "class C(enum.Flag):\n    A = 1\n    B = 2\n    AB = 3",
    "class C(enum.IntFlag, boundary=enum.KEEP):\n    A = 1\n    B = 8",
    "class C(str, enum.Enum):\n    A = 'a'\n    def up(self): return self.upper()",
    "class C(float, enum.Enum):\n    A = 1.5\n    @classmethod\n    def _missing_(cls, value): return cls.A",
    "class C(tuple, enum.Enum):\n    A = (1, 2)",
    "class C(Plain, enum.Enum):\n    A = []\n    B = {}",
    "class C(enum.Enum):\n    def _generate_next_value_(name, *_): return name\n    A = enum.auto()",
    "@dataclasses.dataclass\nclass D:\n    x: int\nclass C(D, enum.Enum):\n    A = 5",
]


@pytest.fixture(scope="module")
def node() -> Iterator[subprocess.Popen[bytes]]:
    """A process that answers pickles of classes with what it observes of them."""
    with subprocess.Popen([sys.executable, "-c", NODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process
        assert process.stdin
        process.stdin.close()
        assert process.wait(10) == 0


def there(node: subprocess.Popen[bytes], cls: type) -> Any:
    data, _ = payload.dumps(cls)
    assert node.stdin
    assert node.stdout
    node.stdin.write(len(data).to_bytes(4) + data)
    node.stdin.flush()
    return pickle.loads(node.stdout.read(int.from_bytes(node.stdout.read(4))))


def defined(source: str, monkeypatch: pytest.MonkeyPatch) -> type:
    """Return the class `C` of a program with this source."""
    module = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    exec(PRELUDE + source, vars(module))
    cls: type = vars(module)["C"]
    return cls


statements = st.builds(
    lambda head, members: "\n    ".join([head, *members, "pass"]),
    st.sampled_from(HEADS),
    st.lists(st.sampled_from(MEMBERS), unique=True, max_size=6),
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(source=statements | st.sampled_from(ENUMS))
def test_a_class_arrives_equal_to_itself(
    source: str, node: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bases, metaclass, slots, annotations and members are the same; no metaclass and no hook runs there."""
    with monkeypatch.context() as patched:
        try:
            cls = defined(source, patched)
        except (TypeError, ValueError):  # not every combination is a class
            return
        here = observed(cls)
        assert there(node, cls) == (here, True)
        assert there(node, cls) == (here, True)
        assert payload.loads(payload.dumps(cls)[0]) is cls
        assert observed(cls) == here


def test_an_attribute_that_changes_is_sent_again(
    node: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The class over there is updated, and stays the same class."""
    cls: Any = defined("class C:\n    x = 1", monkeypatch)
    assert there(node, cls)[0]["members"]["x"] == "1"
    cls.x = 2
    assert there(node, cls)[0]["members"]["x"] == "2"
