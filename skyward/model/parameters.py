"""Parameter names: unknown ones are refused, with suggestions of similar ones.

Standard library only: the values of user modules import this inside containers too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from skyward.errors import ConfigError

C = TypeVar("C", bound=Callable[..., Any])
_TAKES_MANY, _TAKES_ANY = 0x04, 0x08  # inspect.CO_VARARGS, CO_VARKEYWORDS; that module takes 10 ms to load


def suggesting(where: str) -> Callable[[C], C]:
    """Return a decorator for a function, or for a class's constructor, that raises ConfigError for unknown parameters.

    Args:
        where: the callee's name in errors, such as "sky.Image".
    """

    def decorate(callee: C) -> C:
        if isinstance(callee, type):
            callee.__init__ = checked(callee.__init__, where)  # type: ignore[misc]
            return callee
        made: C = checked(callee, where)
        return made

    return decorate


def checked(fn: Callable[..., Any], where: str) -> Any:
    """Return the function with a check for unknown parameters; unchanged if it takes any or has no code object."""
    code = getattr(fn, "__code__", None)
    if code is None or code.co_flags & _TAKES_ANY:
        return fn
    names = code.co_varnames[code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount]
    known = {name: None for name in names if name != "self"}
    by_position = code.co_argcount if not code.co_flags & _TAKES_MANY else float("inf")

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not kwargs.keys() <= known.keys():
            refuse_unknown(where, kwargs, list(known))
        if len(args) > by_position and known:
            raise ConfigError(
                f"{where} takes its parameters by name; found {args[code.co_argcount]!r} without one. They are: "
                f"{', '.join(known)}."
            )
        return fn(*args, **kwargs)

    return call


def refuse_unknown(where: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Raise for the first unknown name.

    Raises:
        ConfigError: it names the most similar parameter, or all parameters.
    """
    for name in given:
        if name not in known:
            raise ConfigError(f"{where} has no parameter {name!r}{_meant(name, known)}")


def _meant(name: str, known: Sequence[str]) -> str:
    from difflib import get_close_matches  # takes 5 ms, needed only for errors

    close = get_close_matches(name.lower(), known, n=1)
    within = [each for each in known if len(name) > 2 and (each.startswith(name) or name.startswith(each))]
    if meant := (close or within)[:1]:
        return f"; did you mean {meant[0]}=?"
    return f". It takes: {', '.join(known)}." if known else ". It takes none."
