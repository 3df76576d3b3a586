"""Finds what in a value cannot be pickled, to name it in an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any

_MAX_TRIES = 300  # objects that are pickled again on the way down
_MAX_DEPTH = 12


def path_of(value: object, pickle: Callable[[object], object]) -> str:
    """Where in a value the innermost part is that cannot be pickled: "['model'].lock"; empty where it is all of it.

    Follows items of built-in containers and attributes. `pickle` raises for what cannot be pickled.
    """
    tries = iter(range(_MAX_TRIES))
    path = ""
    for _ in range(_MAX_DEPTH):
        for step, part in _parts(value):
            if next(tries, None) is None:
                return path
            if not _works(pickle, part):
                path, value = path + step, part
                break
        else:
            return path
    return path


def _works(pickle: Callable[[object], object], value: object) -> bool:
    try:
        pickle(value)
    except Exception:  # reducers are other people's code and may raise anything; that it does is the answer
        return False
    return True


def _refuses(value: object) -> bool:
    """Whether its class says by itself that it cannot be pickled, so that nothing in it need be looked for."""
    return type(value).__reduce__ is not object.__reduce__ and not _works(lambda it: it.__reduce__(), value)


def _parts(value: object) -> Iterator[tuple[str, Any]]:
    if _refuses(value):
        return
    if isinstance(value, Mapping):
        yield from ((f"[{key!r:.60}]", part) for key, part in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"[{index}]", part) for index, part in enumerate(value))
    elif isinstance(value, type):
        return
    elif isinstance(value, FunctionType):
        names = set(_names(value.__code__))
        yield from ((f".{name}", part) for name, part in value.__globals__.items() if name in names)
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            if cell.cell_contents is not value:
                yield f".{name}", cell.cell_contents
    elif isinstance(state := getattr(value, "__dict__", None), dict):
        yield from ((f".{name}", part) for name, part in state.items())


def _names(code: CodeType) -> Iterator[str]:
    """The global names that a function uses, and those of the functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
