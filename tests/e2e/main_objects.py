"""A program whose functions use objects of `__main__` of every kind; prints those that differ on a node from here.

Run by `test_main_objects`. Its argument is the provider.
"""

# mypy: ignore-errors
# ruff: noqa: ARG002, ARG005, B019, PYI024

from __future__ import annotations

import abc
import collections
import concurrent.futures
import copy
import dataclasses
import datetime
import enum
import functools
import io
import multiprocessing
import pickle
import sys
import typing
import weakref
from collections.abc import Callable
from typing import Any

import attrs
import pydantic
import torch

import skyward as sky

# enumerations


class Planet(enum.Enum):
    EARTH = (5.97, 6.37)
    MARS = (0.64, 3.39)
    WORLD = EARTH

    def __init__(self, mass: float, radius: float) -> None:
        self.density = round(mass / radius, 3)


class Axis(bytes, enum.Enum):
    X = (0, "x axis")
    Y = (1, "y axis")

    def __new__(cls, value: int, label: str) -> typing.Self:
        made = bytes.__new__(cls, [value])
        made._value_, made.label = value, label
        return made


class Permission(enum.Flag):
    READ = 1
    WRITE = 2
    BOTH = READ | WRITE


class Day(datetime.date, enum.Enum):
    NEW_YEAR = (2020, 1, 1)


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2

    @property
    def double(self) -> int:
        return self * 2


class Word(enum.StrEnum):
    A = enum.auto()
    B = enum.auto()


class Operation(enum.Enum):
    ADD = functools.partial(lambda a, b: a + b)

    def __call__(self, *args: int) -> int:
        return self.value(*args)


# class statements with effects


class Plugin:
    known: typing.ClassVar[list[str]] = []

    def __init_subclass__(cls, *, key: str, **more: Any) -> None:
        super().__init_subclass__(**more)
        Plugin.known.append(key)


class Left(Plugin, key="left"): ...


class Lower(Left, key="lower"): ...


class Registering(type):
    made: typing.ClassVar[list[str]] = []

    def __new__(cls, name: str, bases: tuple[type, ...], space: dict[str, Any]) -> Registering:
        Registering.made.append(name)
        return super().__new__(cls, name, bases, space)

    def __setattr__(cls, name: str, value: object) -> None:
        raise TypeError(f"{name} is fixed")


class Registered(metaclass=Registering):
    x = 1


class Field:
    def __set_name__(self, owner: type, name: str) -> None:
        if hasattr(self, "name"):
            raise RuntimeError(f"{self.name} is named already")
        self.name = name

    def __get__(self, obj: object, cls: type | None = None) -> str:
        return self.name


class Table:
    column = Field()


class Base:
    version: int | None = None

    def run(self) -> int:
        return 1


class Same(Base):
    version = None
    run = Base.run


# slots, abstract classes, generics, protocols, records


class Point:
    __slots__ = ("__y", "x")

    def __init__(self, x: int, y: int) -> None:
        self.x, self.__y = x, y

    def y(self) -> int:
        return self.__y


class Colored(Point):
    __slots__ = ("color",)


class Shape(abc.ABC):
    @property
    @abc.abstractmethod
    def area(self) -> int: ...


class Square(Shape):
    area = 4


class Registrant: ...


Shape.register(Registrant)
T = typing.TypeVar("T")
P = typing.ParamSpec("P")
Ts = typing.TypeVarTuple("Ts")
UserId = typing.NewType("UserId", int)


class Stack(typing.Generic[T]): ...


class Numbers(Stack[int]): ...


class Tree(Stack["Tree"]): ...


class Calls(typing.Generic[P, T]): ...


class Many(typing.Generic[*Ts]): ...


@typing.runtime_checkable
class Goes(typing.Protocol):
    def go(self) -> int: ...


class Going:
    def go(self) -> int:
        return 1


class Options(typing.TypedDict, total=False):
    a: int


class Pair(typing.NamedTuple):
    a: int
    b: str = "x"


Triple = collections.namedtuple("Triple", "a b c")


@dataclasses.dataclass
class Inner:
    a: int = 0


@dataclasses.dataclass
class Outer:
    inner: Inner
    more: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    a: int


@attrs.define
class Car:
    wheels: int
    doors: int = 3


class Settings(pydantic.BaseModel, frozen=True):
    rate: float
    nested: Nested | None = None


class Nested(pydantic.BaseModel):
    depth: int = 1


class House:
    class Room:
        def __init__(self) -> None:
            self.doors = 1

    class Kind(enum.Enum):
        FLAT = 1


class Suite(House.Room):
    def __init__(self) -> None:
        super().__init__()
        self.doors += 1


# descriptors and functions


class Named(property):
    unit = "m"


class Method(classmethod): ...


class Lazy(functools.cached_property): ...


class Described:
    @functools.cached_property
    def cached(self) -> int:
        return 5

    @Lazy
    def lazy(self) -> int:
        return 6

    @Named
    def length(self) -> int:
        return 7

    @Method
    def name(cls) -> str:
        return cls.__name__

    @functools.cache
    def get(self) -> int:
        return 8

    @functools.singledispatchmethod
    def kind(self, value: object) -> str:
        return "object"

    @kind.register
    def _(self, value: int) -> str:
        return "int"


@functools.singledispatch
def kind(value: object) -> Any:
    return "object"


@kind.register
def _(value: int) -> str:
    return "int"


@kind.register
def _(value: list) -> list[str]:
    return [kind(each) for each in value]


@functools.cache
def fibonacci(n: int) -> int:
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


@functools.wraps(kind)
def wrapping(value: object) -> Any:
    return kind(value)


def counter() -> tuple[Callable[[], None], Callable[[], int]]:
    n = 0

    def add() -> None:
        nonlocal n
        n += 1

    return add, lambda: n


add, count = counter()
MISSING = type("_Missing", (), {"__reduce__": lambda self: "MISSING", "__repr__": lambda self: "MISSING"})()
OFFSET = 10


def annotated(user: UserId, inner: Inner, size: typing.Optional[Size]) -> House: ...  # noqa: UP045


def shifted(x: int) -> int:
    return x + OFFSET + Inner(1).a


# processes


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)


class Data(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index + OFFSET


def in_processes(method: str) -> list[int]:
    context = multiprocessing.get_context(method)
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as executor:
        return list(executor.map(shifted, [1, 2]))


def saved() -> str:
    file = io.BytesIO()
    torch.save(Net(), file)
    file.seek(0)
    return type(torch.load(file, weights_only=False)).__name__


def loaded() -> list[Any]:
    loader = torch.utils.data.DataLoader(Data(), num_workers=1, multiprocessing_context="spawn", batch_size=2)
    return [batch.tolist() for batch in loader]


def incremented() -> int:
    before = count()
    add()
    return count() - before


EVERYWHERE: dict[str, Callable[[], Any]] = {
    "attributes of members": lambda: (Planet.MARS.density, Axis.Y.label, Axis(1) is Axis.Y, Size.LARGE.double),
    "aliases": lambda: (list(Planet.__members__), Planet.WORLD is Planet.EARTH),
    "flags": lambda: (list(Permission), Permission(3) is Permission.BOTH, ~Permission.READ, Permission(0)),
    "mixed in types": lambda: (Day.NEW_YEAR.isoformat(), Word("a") is Word.A, Size.SMALL + 1, Operation.ADD(1, 2)),
    "members by name": lambda: (pickle.loads(pickle.dumps(Size.SMALL)) is Size.SMALL, copy.deepcopy(Axis.X) is Axis.X),
    "subclass hook with keywords": lambda: (
        Plugin.known[:2],
        type("New", (Lower,), {}, key="new") and Plugin.known[-1],
    ),
    "metaclass": lambda: (Registering.made, Registered.x, type(Registered).__name__),
    "__set_name__": lambda: Table().column,
    "equal overrides": lambda: (sorted({"version", "run"} & vars(Same).keys()), Same().run()),
    "slots": lambda: (Colored(1, 2).y(), hasattr(Colored(1, 2), "__dict__"), Colored.__slots__),
    "abstract": lambda: (issubclass(Registrant, Shape), Shape.__abstractmethods__, Square().area, Square.__mro__[1:3]),
    "generic": lambda: (Numbers.__orig_bases__, Stack.__parameters__, Stack[str].__args__, Tree.__orig_bases__),
    "parameters": lambda: (Calls.__parameters__, Many.__parameters__, P.__name__, Ts.__name__, UserId(3)),
    "protocol": lambda: (isinstance(Going(), Goes), Goes._is_protocol),
    "typed dict": lambda: (Options(a=1), Options.__total__, Options.__optional_keys__),
    "named tuples": lambda: (Pair(1), Pair._field_defaults, Triple(1, 2, 3)._replace(a=4)),
    "dataclasses": lambda: (Outer(Inner()), dataclasses.fields(Outer)[0].default is dataclasses.MISSING, Frozen(1)),
    "subclass of a dataclass": lambda: dataclasses.make_dataclass("E", [("z", int, 1)], bases=(Inner,))(),
    "attrs": lambda: (Car(4), [each.default for each in attrs.fields(Car)]),
    "pydantic": lambda: (Settings(rate=1, nested=Nested(depth=3)).model_dump(), Settings.model_config),
    "nested classes": lambda: (Suite().doors, House.Room.__qualname__, House.Kind(1), House.Room.__subclasses__()),
    "descriptors": lambda: (Described().cached, Described().lazy, Described().length, Described.name()),
    "kinds of descriptors": lambda: [type(vars(Described)[each]).__name__ for each in ("lazy", "length", "name")],
    "caches": lambda: (fibonacci(30), fibonacci.cache_parameters(), Described().get()),
    "dispatch": lambda: (kind([1, "a"]), wrapping(1), Described().kind(1), Described().kind("a")),
    "shared variable": incremented,
    "weak dictionaries": lambda: [len(each) for each in (weakref.WeakValueDictionary(), WEAK)],
    "sentinel as default": lambda x=MISSING: x is MISSING,
    "hints": lambda: sorted((name, str(hint)) for name, hint in typing.get_type_hints(annotated).items()),
    "hints of a class": lambda: typing.get_type_hints(Outer),
    "pickle": lambda: pickle.loads(pickle.dumps((Inner(4), House.Room, shifted))) == (Inner(4), House.Room, shifted),
    "names": lambda: (__name__, sys.modules["__main__"].OFFSET, sys.modules["__main__"].shifted is shifted),
    "fork": lambda: in_processes("fork"),
    "spawn": lambda: in_processes("spawn"),
    "forkserver": lambda: in_processes("forkserver"),
}
WITH_TORCH: dict[str, Callable[[], Any]] = {"torch.save": saved, "DataLoader": loaded}
WEAK: weakref.WeakKeyDictionary[type, int] = weakref.WeakKeyDictionary({Inner: 1})
ARGUMENTS = (Inner(1), Permission(3), Size.SMALL, House.Room(), Settings(rate=2), Car(2), Pair(2), MISSING, Inner)


def passed(value: object) -> tuple[Any, str, bool]:
    by_name = pickle.loads(pickle.dumps(value))
    return value, type(by_name).__qualname__, by_name is value


def relabel() -> tuple[Base, Callable[[], int]]:
    global OFFSET
    Base.version, OFFSET = 3, 4
    return Base(), lambda: OFFSET


def main(provider: str) -> int:
    image, differing = sky.Image(pip=["pydantic", "attrs"]), []
    checks = EVERYWHERE | (WITH_TORCH if provider == "Local" else {})
    with sky.ComputePool(getattr(sky, provider)(), image=image, display="quiet") as pool:
        for name, fn in checks.items():
            here = repr(fn())
            try:
                there = repr(sky.compute(fn)() >> pool)
            except Exception as error:
                there = f"{type(error).__name__}: {error}"
            if here != there:
                differing.append(f"{name}:\n  here  {here}\n  there {there}")
        for value in ARGUMENTS:
            returned, name, same = sky.compute(passed)(value) >> pool
            expected = type(value).__qualname__
            if type(returned) is not type(value) or name != expected or same != passed(value)[2]:
                differing.append(f"{value!r} as an argument: {returned!r}, {name}, {same}")
            if isinstance(value, enum.Enum) and returned is not value:
                differing.append(f"{value!r} comes back as another object")
        changed, lookup = sky.compute(relabel)() >> pool
        if (Base.version, OFFSET, type(changed), lookup()) != (None, 10, Base, 4):
            differing.append(f"a result changed this program: {Base.version} {OFFSET} {type(changed)} {lookup()}")
    print(*differing, sep="\n")
    return len(differing)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
