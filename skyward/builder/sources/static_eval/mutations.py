"""Evaluation of changes: assignments and `del` of names, attributes and items, and calls of methods."""

from __future__ import annotations

import ast
from operator import methodcaller
from typing import Any

from skyward.builder.sources.static_eval import known
from skyward.builder.sources.static_eval.calls import UNORDERED, Arguments, is_unordered
from skyward.builder.sources.static_eval.expressions import MOST, derived
from skyward.builder.sources.static_eval.reading import Reading, loaded, short
from skyward.builder.sources.static_eval.values import (
    CONTAINERS,
    Bound,
    Class,
    Function,
    Instance,
    Lazy,
    Method,
    Module,
    Reference,
    Scope,
    Super,
    Unknown,
    holding,
)
from skyward.model.image import Image

_PATHS = Reference("sys.path")


class Assignments:
    """Evaluator of assignments."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    def assign(self, target: ast.expr, value: Any, scope: Scope) -> None:
        """Assign a value to a target."""
        reading, expressions = self._reading, self._reading.expressions
        if isinstance(target, ast.Name):
            reading.state.bind(scope, target.id, value, reading.place(target))
        elif isinstance(target, ast.Starred):
            self.assign(target.value, value, scope)
        elif isinstance(target, ast.Tuple | ast.List):
            self._unpack(target, value, scope)
        elif isinstance(target, ast.Attribute):
            self.store(expressions.value(target.value, scope), target.attr, value, target)
        elif isinstance(target, ast.Subscript):
            self._store_item(target, value, scope)

    def store(self, owner: Any, name: str, value: Any, node: ast.expr) -> None:
        """Assign a value to an attribute."""
        reading = self._reading
        place = reading.place(node)
        if isinstance(owner, Instance | Class) and not _is_stored(owner, name):
            reading.escape([owner, value], node)
            return
        if isinstance(owner, Instance | Class | Module):
            # other code has it, and now its attributes
            if not isinstance(owner, Module) and reading.doubt(owner, None):
                reading.escape(value, node)
            reading.state.bind(owner.scope, name, value, place)
            return
        if owner == Reference("sys") and name == "path":
            reading.imports.lose()
        if isinstance(owner, Reference) and owner.name.startswith("skyward"):
            reading.patched = reading.unknown(node, "replaces a name of skyward's own")
        reading.escape([owner, value], node)

    def _store_item(self, target: ast.Subscript, value: Any, scope: Scope) -> None:
        reading = self._reading
        owner = reading.expressions.value(target.value, scope)
        key = reading.expressions.value(target.slice, scope)
        if owner == _PATHS:
            reading.imports.lose()
        if isinstance(owner, Unknown):
            reading.change(
                owner, [key, *(reading.inside(value) if isinstance(target.slice, ast.Slice) else [value])], target
            )
            return
        if not isinstance(owner, CONTAINERS) or isinstance(key, Unknown | Instance):
            reading.escape([owner, value, key], target)
            return
        if isinstance(value, Lazy) and isinstance(key, slice):
            items = reading.expressions.items(value, target)
            value = Unknown(items.why) if isinstance(items, Unknown) else items
        reading.state.touch(owner, reading.place(target))
        try:
            owner[key] = value  # type: ignore[index]
        except (TypeError, LookupError, ValueError):
            reading.escape([owner, value], target)

    def _unpack(self, target: ast.Tuple | ast.List, value: Any, scope: Scope) -> None:
        items = self._reading.expressions.items(value, target)
        stars = [place for place, each in enumerate(target.elts) if isinstance(each, ast.Starred)]
        count = len(target.elts)
        if not isinstance(items, Unknown) and not (len(items) >= count - 1 if stars else len(items) == count):
            items = Unknown("does not unpack")
        if isinstance(items, Unknown):
            self._reading.use(value, target)
            unknown = derived(items, self._reading.inside(value))
            for each in target.elts:
                is_rest = isinstance(each, ast.Starred)
                self.assign(each, derived(unknown, holding(unknown.of)) if is_rest else unknown, scope)
            return
        if stars:
            after = count - stars[0] - 1
            middle = items[stars[0] : len(items) - after]
            self._reading.born(middle, target)
            items = [*items[: stars[0]], middle, *items[len(items) - after :]]
        for each, item in zip(target.elts, items, strict=True):
            self.assign(each, item, scope)

    def augment(self, node: ast.AugAssign, scope: Scope) -> None:
        """Follow `target += value` and similar statements."""
        reading, expressions = self._reading, self._reading.expressions
        read = ast.copy_location(loaded(node.target), node.target)
        held = expressions.value(read, scope)
        if held == _PATHS:
            reading.imports.lose()
        if (
            type(held) is list
            and isinstance(node.op, ast.Add)
            and (generator := reading.comprehensions.written(node.value, scope))
        ):
            reading.comprehensions.extend(held, generator, scope)
            self.assign(node.target, held, scope)
            return
        given = expressions.value(node.value, scope)
        in_place = {ast.Add: (list,), ast.BitOr: (dict, set), ast.BitAnd: (set,), ast.Sub: (set,), ast.BitXor: (set,)}
        if isinstance(held, in_place.get(type(node.op), ())):
            self._change_by(held, given, node)
            self.assign(node.target, held, scope)
            return
        if isinstance(held, Unknown):
            reading.change(held, reading.inside(given), node)
        elif isinstance(held, CONTAINERS):
            reading.escape(held, node)
        made = expressions.operated(node, type(node.op), held, given)
        if isinstance(held, Unknown) and isinstance(made, Unknown):  # most likely the same object, changed in place
            made = derived(made, (*held.of, *made.of))
        self.assign(node.target, made, scope)

    def _change_by(self, held: Any, given: Any, node: ast.AugAssign) -> None:
        """Change a container by an augmented assignment."""
        reading, expressions = self._reading, self._reading.expressions
        reading.state.touch(held, reading.place(node), is_growing=isinstance(held, list))
        items = given if isinstance(held, dict | set) else expressions.items(given, node.value)
        if isinstance(items, Unknown) or not isinstance(items, (*CONTAINERS, tuple, frozenset)):
            reading.escape([held, *reading.inside(given)], node)
        elif isinstance(held, list) and len(held) + len(items) > MOST:
            reading.escape(held, node)
        elif isinstance(held, list):
            held += list(items)
        elif isinstance(held, dict):
            held.update(items)
        else:
            made = expressions.operated(node, type(node.op), held, items)
            held.clear()
            held.update(made if isinstance(made, set) else ())

    def delete(self, node: ast.Delete, scope: Scope) -> None:
        """Follow `del`."""
        reading = self._reading
        for target in node.targets:
            if isinstance(target, ast.Name):
                gone = Unknown(f"is deleted on {reading.place(node)}")
                reading.state.bind(scope, target.id, gone, reading.place(node))
            elif isinstance(target, ast.Attribute):
                reading.escape(reading.expressions.value(target.value, scope), node)
            elif isinstance(target, ast.Subscript):
                self._delete_item(target, node, scope)

    def _delete_item(self, target: ast.Subscript, node: ast.Delete, scope: Scope) -> None:
        reading = self._reading
        owner = reading.expressions.value(target.value, scope)
        key = reading.expressions.value(target.slice, scope)
        if isinstance(owner, Unknown):
            reading.change(owner, (), node)
            return
        if not isinstance(owner, CONTAINERS) or isinstance(key, Unknown | Instance):
            reading.escape(owner, node)
            return
        reading.state.touch(owner, reading.place(node))
        try:
            del owner[key]  # type: ignore[union-attr]
        except (TypeError, LookupError):
            reading.escape(owner, node)


def _is_stored(owner: Instance | Class, name: str) -> bool:
    """Return whether assigning an attribute only binds it, without calling code of a class or a property."""
    cls = owner.cls if isinstance(owner, Instance) else owner
    if not cls.is_plain or name.startswith("__"):
        return False
    held = [each.scope.values[name] for each in cls.lineage if name in each.scope.values]
    is_property = bool(held) and isinstance(held[0], Function) and held[0].kind == "property"
    return isinstance(owner, Class) or not (is_property or any(isinstance(each, Unknown | Instance) for each in held))


class Methods:
    """Evaluator of method calls on known values (strings, containers, images) and on the bases of a class."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    def call(self, called: Method, arguments: Arguments, node: ast.expr) -> Any:
        """Return the result of a method call."""
        owner, name, reading = called.owner, called.name, self._reading
        if isinstance(owner, CONTAINERS) and not known.changes(owner, name):
            owner = reading.doubt(owner, None) or owner
        if isinstance(owner, Super):
            made = reading.classes.creations.get(id(owner.instance), node)
            cls = owner.instance.cls if isinstance(owner.instance, Instance) else owner.owner
            return reading.calls.pool(cls.pool, arguments, made)
        if isinstance(owner, Unknown):
            held = reading.inside(owner)
            if any(known.changes(each, name) for each in owner.of):
                args = arguments.all()
                given = reading.inside(*args) if name in ("extend", "update") else args
                reading.change(owner, (*given, *arguments.others), node)
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
        if reading.doubt(owner, None):  # other code has it, and now its new items
            reading.escape(args, node)
        if unknown is None:
            try:
                return getattr(owner, name)(*args, **arguments.kwargs)
            except (TypeError, ValueError, LookupError, AttributeError) as error:
                unknown = reading.wrong(node, error)
        given = reading.inside(*arguments.all()) if name in ("extend", "update") else arguments.all()
        reading.escape([owner, *given], node, f"is changed by `{short(node)}` ({place}): {unknown}")
        return unknown


def _gentle(reading: Reading, node: ast.expr, owner: Any, name: str, arguments: Arguments) -> Any:
    """Return the result of a method that returns an element or copy of a container, which may hold unknown values."""
    if unknown := reading.unknown_in(arguments.args[:1]):
        return derived(unknown, (*reading.inside(owner), *arguments.all()))
    return reading.expressions.applied(node, lambda: getattr(owner, name)(*arguments.args, **arguments.kwargs))
