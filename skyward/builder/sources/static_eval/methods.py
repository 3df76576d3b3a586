"""Evaluates calls of methods of values that are known: of texts, containers, images, and of what a class extends."""

from __future__ import annotations

import ast
from operator import methodcaller
from typing import Any

from skyward.builder.sources.static_eval import known
from skyward.builder.sources.static_eval.calls import UNORDERED, Arguments, is_unordered
from skyward.builder.sources.static_eval.expressions import MOST, derived
from skyward.builder.sources.static_eval.reading import Reading, short
from skyward.builder.sources.static_eval.values import (
    CONTAINERS,
    Bound,
    Function,
    Instance,
    Lazy,
    Method,
    Super,
    Unknown,
    holding,
)
from skyward.model.image import Image


class Methods:
    """Follows calls of methods."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    def call(self, called: Method, arguments: Arguments, node: ast.expr) -> Any:
        """The result of a call."""
        owner, name, reading = called.owner, called.name, self._reading
        if isinstance(owner, CONTAINERS) and not known.changes(owner, name):
            owner = reading.doubt(owner, None) or owner
        if isinstance(owner, Super):
            made = reading.calls.creations.get(id(owner.instance), node)
            cls = owner.instance.cls if isinstance(owner.instance, Instance) else owner.owner
            return reading.calls.pool(cls.pool, arguments, made)
        if isinstance(owner, Unknown):
            held = reading.inside(owner)
            if any(known.changes(each, name) for each in owner.of):
                args = arguments.all()
                given = reading.inside(*args) if name in ("extend", "update") else args
                reading.change(owner, (*given, *(arguments.rest.of if arguments.rest else ())), node)
                return derived(owner, (*held, *arguments.args[1:]))
            given = reading.inside(*arguments.all())
            return derived(owner, (*held, *arguments.all()) if name == "get" else holding((*held, *given)))
        if isinstance(owner, Image):
            reading.used.add(id(owner))
            return reading.calls.made(getattr(owner, name), arguments, node, is_image=True)
        if name in ("join", "pop") and any(map(is_unordered, (owner, *arguments.args))):
            reading.escape(owner, node)
            return Unknown(UNORDERED)
        if isinstance(owner, dict) and name in ("items", "keys", "values") and not arguments.all():
            return Lazy(methodcaller(name), [owner], reading.state.count)
        if not known.changes(owner, name):
            if name in ("get", "copy", "index", "count") and arguments.rest is None and not isinstance(owner, str):
                return _gentle(reading, node, owner, name, arguments)
            return reading.calls.made(getattr(owner, name), arguments, node, is_image=False)
        return self._change(owner, name, arguments, node)

    def _change(self, owner: Any, name: str, arguments: Arguments, node: ast.expr) -> Any:
        """Call a method that changes its container."""
        reading, place = self._reading, self._reading.place(node)
        reading.born(owner, node)
        args = arguments.args
        unknown = arguments.rest
        if unknown is None and name in ("extend", "update") and args:
            items = (
                reading.taken(args[0], node) if isinstance(owner, dict) else reading.expressions.items(args[0], node)
            )
            unknown = items if isinstance(items, Unknown) else None
            if unknown is None and hasattr(items, "__len__") and len(owner) + len(items) > MOST:
                unknown = Unknown("is too long", about=reading.about(node))
        if unknown is None and name in ("insert", "remove", "pop", "sort", "discard", "setdefault"):
            unknown = reading.unknown_in([*args[: 2 if name != "insert" else 1], *arguments.kwargs.values()])
            if any(isinstance(each, Function | Bound) for each in arguments.all()):
                unknown = Unknown("is not a constant", about=reading.about(node))
        if name in ("remove", "sort", "index") and unknown is None:
            unknown = reading.unknown_in(owner)
        reading.state.touch(owner, place, is_growing=name in ("append", "extend", "insert", "add", "setdefault"))
        if reading.doubt(owner, None):  # others have it, and now what is put into it
            reading.escape(args, node)
        if unknown is None:
            try:
                return getattr(owner, name)(*args, **arguments.kwargs)
            except (TypeError, ValueError, LookupError, AttributeError) as error:
                module = reading.module.source
                unknown = Unknown(
                    "is wrong", mistake=f"{module.path}, {place}: `{short(node)}`: {type(error).__name__}: {error}"
                )
        given = reading.inside(*arguments.all()) if name in ("extend", "update") else arguments.all()
        reading.escape([owner, *given], node, f"is changed by `{short(node)}` ({place}): {unknown}")
        return unknown


def _gentle(reading: Reading, node: ast.expr, owner: Any, name: str, arguments: Arguments) -> Any:
    """The result of a method that may give an element, or a copy, of a container that holds unknown ones too."""
    if unknown := reading.unknown_in(arguments.args[:1]):
        return derived(unknown, (*reading.inside(owner), *arguments.all()))
    return reading.expressions.applied(node, lambda: getattr(owner, name)(*arguments.args, **arguments.kwargs))
