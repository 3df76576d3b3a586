"""The types that results='data' allows besides built-in values, and how each is decomposed and rebuilt.

`reduce` decomposes an object on a node; the functions in `MAKERS` rebuild it on the client. A hostile node may call
them with any arguments, so each checks what it receives, and none imports a module by name, calls a method defined by a
user, or returns a callable.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import pathlib
import pickle
import re
import site
import sys
import sysconfig
import types
import uuid
import zoneinfo
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

from skyward.wire import arrays
from skyward.wire.payload import NotDataError

Maker = Callable[..., Any]
_LATER = {list, dict, set, int, float, str, tuple}  # allowed factories of a defaultdict
_PATHS: dict[str, type[pathlib.PurePath]] = {
    kind.__name__: kind for kind in (pathlib.PurePosixPath, pathlib.PureWindowsPath, type(pathlib.Path()))
}
_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*")


def reduce(obj: Any) -> tuple[Maker, tuple[Any, ...]] | None:
    """Return how an object is sent: the function that rebuilds it, and its arguments. None if it is not data."""
    kind = type(obj)
    if kind in _REDUCERS:
        return _REDUCERS[kind](obj)
    if isinstance(obj, enum.Enum):
        return (flag if isinstance(obj, enum.Flag) else member), (*_name(kind), _constant(obj))
    if isinstance(obj, tuple) and hasattr(kind, "_fields"):
        return named_tuple, (*_name(kind), tuple(obj))
    if kind.__name__ in _PATHS and isinstance(obj, pathlib.PurePath):
        return path, (kind.__name__, str(obj))
    if dataclasses.is_dataclass(kind) and not isinstance(obj, BaseException):
        return record, (*_name(kind), _attributes(obj))
    return arrays.reduce(obj)


def _constant(obj: enum.Enum) -> Any:
    return obj.value if isinstance(obj, enum.Flag) else obj.name


def _name(kind: type) -> tuple[str, str]:
    return kind.__module__, kind.__qualname__


def _attributes(obj: Any) -> dict[str, Any]:
    """Return the fields and additional attributes of an instance, without cached properties."""
    found = {field.name: getattr(obj, field.name) for field in dataclasses.fields(obj) if hasattr(obj, field.name)}
    for name, value in getattr(obj, "__dict__", {}).items():
        if not isinstance(getattr(type(obj), name, None), functools.cached_property):
            found.setdefault(name, value)
    return found


# called by the client -----------------------------------------------------------------------------------------------


def complex_number(real: float, imaginary: float) -> complex:
    return complex(_is(real, float), _is(imaginary, float))


def steps(start: int, stop: int, step: int) -> range:
    return range(_is(start, int), _is(stop, int), _is(step, int))


def cut(start: Any, stop: Any, step: Any) -> slice:
    return slice(start, stop, step)


def ellipsis() -> Any:
    return ...


def ordered(items: dict[Any, Any]) -> OrderedDict[Any, Any]:
    return OrderedDict(_is(items, dict))


def counter(items: dict[Any, int]) -> Counter[Any]:
    made: Counter[Any] = Counter()
    dict.update(made, _is(items, dict))
    return made


def with_default(factory: str | None, items: dict[Any, Any]) -> defaultdict[Any, Any]:
    factories: dict[str | None, Any] = {None: None, **{kind.__name__: kind for kind in _LATER}}
    return defaultdict(factories[factory], _is(items, dict))


def queue(items: list[Any], limit: int | None) -> deque[Any]:
    return deque(_is(items, list), limit)


def moment(date: datetime.date, time: datetime.time) -> datetime.datetime:
    return datetime.datetime.combine(_is(date, datetime.date), _is(time, datetime.time))


def day(ordinal: int) -> datetime.date:
    return datetime.date.fromordinal(ordinal)


def clock_time(hour: int, minute: int, second: int, microsecond: int, zone: Any, fold: int) -> datetime.time:
    return datetime.time(_is(hour, int), minute, second, microsecond, tzinfo=_zone(zone), fold=fold)


def duration(days: int, seconds: int, microseconds: int) -> datetime.timedelta:
    return datetime.timedelta(days, seconds, microseconds)


def offset(seconds: datetime.timedelta, name: str | None) -> datetime.timezone:
    return datetime.timezone(seconds) if name is None else datetime.timezone(seconds, name)


def place(key: str) -> zoneinfo.ZoneInfo:
    if not _ZONE.fullmatch(_is(key, str)):
        raise NotDataError(f"a time zone named {key[:80]!r}")
    return zoneinfo.ZoneInfo(key)


def exact(text: str) -> decimal.Decimal:
    return decimal.Decimal(_is(text, str))


def fraction(numerator: int, denominator: int) -> fractions.Fraction:
    return fractions.Fraction(_is(numerator, int), _is(denominator, int))


def unique(number: int) -> uuid.UUID:
    return uuid.UUID(int=_is(number, int))


def path(kind: str, text: str) -> pathlib.PurePath:
    return _PATHS[_is(kind, str)](_is(text, str))


def view(buffer: Any, form: str, shape: tuple[int, ...]) -> memoryview:
    made = memoryview(buffer)
    return made.cast("B").cast(form, shape) if 0 not in shape else made  # type: ignore[call-overload]


def member(module: str, name: str, which: str) -> enum.Enum:
    """Return the member of an enumeration."""
    kind = _class(module, name, enum.Enum)
    found = kind._member_map_.get(_is(which, str))
    if found is None:
        raise NotDataError(f"{module}.{name}.{which[:80]}, which this program does not have")
    return found  # type: ignore[no-any-return]


def flag(module: str, name: str, value: int) -> enum.Flag:
    """Return a combination of flags."""
    kind = _class(module, name, enum.Flag)
    if "_missing_" in {each for base in kind.__mro__ if base.__module__ != "enum" for each in vars(base)}:
        raise NotDataError(f"{module}.{name}, which has a _missing_ of its own")
    return kind(_is(value, int))  # type: ignore[no-any-return]


def named_tuple(module: str, name: str, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a named tuple, created without calling its class's `__new__`."""
    kind = _class(module, name, tuple)
    if len(_is(values, tuple)) != len(getattr(kind, "_fields", (None,) * (len(values) + 1))):
        raise NotDataError(f"a {module}.{name} with {len(values)} values")
    return tuple.__new__(kind, values)


def record(module: str, name: str, values: dict[str, Any]) -> Any:
    """Return an instance of a dataclass of this program, setting its attributes without calling any of its methods."""
    kind = _class(module, name, object)
    fields = getattr(kind, "__dataclass_fields__", None)
    if not isinstance(fields, dict):
        raise NotDataError(f"a {module}.{name}, which is not a dataclass here")
    if not _is_own(module):
        raise NotDataError(f"a {module}.{name}, a dataclass that this program does not define itself")
    if hasattr(kind, "__del__"):
        raise NotDataError(f"a {module}.{name}, whose class has a __del__")
    made = object.__new__(kind)
    slots = {each: where for base in reversed(kind.__mro__) for each, where in vars(base).items()}
    for key, value in _is(values, dict).items():
        known = slots.get(_is(key, str))
        if isinstance(known, types.MemberDescriptorType):
            known.__set__(made, value)
        elif key in fields or (known is None and key.isidentifier() and not key.startswith("__")):
            made.__dict__[key] = value
        else:
            raise NotDataError(f"a {module}.{name} with an attribute {key[:80]!r}, which its class has otherwise")
    return made


def _class(module: str, name: str, base: type) -> Any:
    """Return a class that this program has loaded; nothing is imported, and no attribute's code runs."""
    _is(module, str), _is(name, str)
    loaded = sys.modules.get(module)
    if not isinstance(loaded, types.ModuleType):
        raise NotDataError(f"a {module[:80]}.{name[:80]}, whose module this program has not imported")
    found: Any = loaded
    for part in name.split("."):
        found = found.__dict__.get(part)
        if not isinstance(found, type):
            raise NotDataError(f"a {module[:80]}.{name[:80]}, which is not a class of this program")
    if not issubclass(found, base):
        raise NotDataError(f"a {module}.{name} as if it were a {base.__name__}")
    return found


@functools.lru_cache
def _is_own(module: str) -> bool:
    """Return whether a module belongs neither to Python nor to an installed package.

    Skyward's own values count as this program's.
    """
    if module == "__main__" or module.startswith("skyward.model."):
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    if not file:
        return False
    paths = sysconfig.get_paths()
    places = {paths[each] for each in ("stdlib", "platstdlib", "purelib", "platlib")} | {site.getusersitepackages()}
    return not any(pathlib.Path(file).resolve().is_relative_to(pathlib.Path(each).resolve()) for each in places)


def _zone(zone: Any) -> datetime.tzinfo | None:
    if zone is not None and type(zone) not in (datetime.timezone, zoneinfo.ZoneInfo):
        raise NotDataError(f"a time zone of type {type(zone).__name__}")
    return zone  # type: ignore[no-any-return]


def _is(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise NotDataError(f"a {type(value).__name__} where a {kind.__name__} belongs")
    return value


def _factory(obj: defaultdict[Any, Any]) -> str | None:
    factory = obj.default_factory
    if factory is None:
        return None
    if factory not in _LATER:
        raise NotDataError(f"a defaultdict that makes {factory!r}")
    return factory.__name__


def _key(zone: zoneinfo.ZoneInfo) -> str:
    if zone.key is None:
        raise NotDataError("a time zone without a name")
    return zone.key


_REDUCERS: dict[type, Callable[[Any], tuple[Maker, tuple[Any, ...]]]] = {
    complex: lambda obj: (complex_number, (obj.real, obj.imag)),
    range: lambda obj: (steps, (obj.start, obj.stop, obj.step)),
    slice: lambda obj: (cut, (obj.start, obj.stop, obj.step)),
    type(...): lambda _: (ellipsis, ()),
    OrderedDict: lambda obj: (ordered, (dict(obj),)),
    Counter: lambda obj: (counter, (dict(obj),)),
    defaultdict: lambda obj: (with_default, (_factory(obj), dict(obj))),
    deque: lambda obj: (queue, (list(obj), obj.maxlen)),
    datetime.datetime: lambda obj: (moment, (obj.date(), obj.timetz())),
    datetime.date: lambda obj: (day, (obj.toordinal(),)),
    datetime.time: lambda obj: (
        clock_time,
        (obj.hour, obj.minute, obj.second, obj.microsecond, obj.tzinfo, obj.fold),
    ),
    datetime.timedelta: lambda obj: (duration, (obj.days, obj.seconds, obj.microseconds)),
    datetime.timezone: lambda obj: (offset, (*obj.__getinitargs__(), None)[:2]),
    zoneinfo.ZoneInfo: lambda obj: (place, (_key(obj),)),
    decimal.Decimal: lambda obj: (exact, (str(obj),)),
    fractions.Fraction: lambda obj: (fraction, (obj.numerator, obj.denominator)),
    uuid.UUID: lambda obj: (unique, (obj.int,)),
    memoryview: lambda obj: (view, (pickle.PickleBuffer(obj), obj.format, obj.shape)),
}
_ALL: tuple[Maker, ...] = (
    *(complex_number, steps, cut, ellipsis, ordered, counter, with_default, queue, moment, day, clock_time),
    *(duration, offset, place, exact, fraction, unique, path, view, member, flag, named_tuple, record),
    *arrays.MAKERS,
)
MAKERS = {f"{make.__module__}.{make.__qualname__}": make for make in _ALL}
MAKERS["builtins.complex"] = complex_number  # the name that the plain pickler, used for small values, writes
