"""Everything that can be observed of a class, in a form that is the same in another process."""

from __future__ import annotations

import enum
import sys
from types import FunctionType
from typing import Any

_FROM_PYTHON = {"__dict__", "__weakref__", "_abc_impl", "__slotnames__", "__module__", "__qualname__"}


def observed(cls: Any) -> dict[str, Any]:
    """Return names, bases, metaclass, layout and members of a class, and how often its statement had effects."""
    members = {name: value for name, value in vars(cls).items() if name not in _FROM_PYTHON}
    return {
        "name": (cls.__name__, cls.__qualname__, cls.__module__, cls.__doc__),
        "bases": [each.__name__ for each in cls.__mro__],
        "metaclass": type(cls).__qualname__,
        "layout": (cls.__basicsize__, cls.__dictoffset__, cls.__flags__ & ~(1 << 19), cls.__itemsize__),
        "abstract": sorted(getattr(cls, "__abstractmethods__", ())),
        "members": {name: _shown(value, name) for name, value in sorted(members.items())},
        "enumeration": _enumeration(cls) if issubclass(cls, enum.Enum) else None,
        "effects": sorted(vars(sys.modules["__main__"]).get("ran", ())) if "ran" in _globals(cls) else None,
    }


def _globals(cls: Any) -> dict[str, Any]:
    """Return the globals of the class's methods that append to `ran`."""
    for each in cls.__mro__:
        for value in vars(each).values():
            fn = getattr(value, "__func__", value)
            if type(fn) is FunctionType and "ran" in fn.__code__.co_names:
                return fn.__globals__
    return {}


def _enumeration(cls: Any) -> Any:
    return [
        (name, member.name, repr(member.value), sorted(vars(member)), cls(member.value) is member)
        for name, member in cls.__members__.items()
    ]


def _shown(value: Any, name: str) -> Any:
    if isinstance(value, type) and name != "__class__":
        return observed(value)
    if type(value) is FunctionType:
        return value.__name__, value.__qualname__, value.__annotations__, value.__code__.co_code, value.__defaults__
    if isinstance(value, classmethod | staticmethod):
        return type(value).__name__, _shown(value.__func__, "")
    if isinstance(value, property):
        return type(value).__name__, _shown(value.fget, ""), value.__doc__
    text = repr(value)
    return type(value).__name__ if " at 0x" in text else text
