"""Evaluation of calls: the script's own functions and classes are followed, Skyward's values are created."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from skyward.builder.sources.declared import PluginUse, ProviderUse
from skyward.builder.sources.static_eval import known
from skyward.builder.sources.static_eval.classes import FIELD, find_fields, is_followed, is_instance
from skyward.builder.sources.static_eval.expressions import derived
from skyward.builder.sources.static_eval.reading import Frame, PoolCall, Reading
from skyward.builder.sources.static_eval.values import (
    ABSENT,
    MADE,
    Bound,
    Class,
    Function,
    Instance,
    Method,
    Module,
    Partial,
    Reference,
    Scope,
    Super,
    Unknown,
    holding,
    same,
)
from skyward.model.image import Image

_DEEPEST = 12  # limit for nested calls
_DATACLASS = ("dataclasses.dataclass", "dataclasses.dataclass(kw_only=True)")
_METHOD_KINDS = {
    "builtins.staticmethod": "static",
    "builtins.classmethod": "class",
    "builtins.property": "property",
}
_WRAPPING = "functools.wraps(...)"  # a decorator that returns its function unchanged
# for these the result depends on the order of a set
_ORDERED = (list, tuple, str, repr, dict.fromkeys)
UNORDERED = "depends on the order of a set, which changes from run to run; sorted(...) has one"
_GIVING = (max, min, sum, dict.fromkeys)  # may return their arguments, or a container of them
_LAZY = (enumerate, itertools.chain, reversed, zip)


class Arguments:
    """The arguments of a call. `rest` is an unknown value passed as `*it` or `**it`."""

    __slots__ = ("args", "kwargs", "rest")

    def __init__(self, args: list[Any], kwargs: dict[str, Any], rest: Unknown | None = None) -> None:
        self.args, self.kwargs, self.rest = args, kwargs, rest

    def all(self) -> list[Any]:
        """Return all argument values."""
        return [*self.args, *self.kwargs.values()]

    @property
    def others(self) -> tuple[Any, ...]:
        """The values of the script that `rest` may be or contain."""
        return self.rest.of if self.rest else ()


class Calls:
    """Evaluator of calls."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._active: list[tuple[Function, int]] = []

    def function(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, scope: Scope, owner: Class | None
    ) -> Function:
        """Create the function at its definition; its defaults are evaluated now."""
        value = self._reading.expressions.value
        names = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
        given = dict(zip(names[len(names) - len(node.args.defaults) :], node.args.defaults, strict=True))
        given |= {each.arg: one for each, one in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True) if one}
        defaults = {name: value(default, scope) for name, default in given.items()}
        found = Function(node, scope, self._reading.module, defaults, owner)
        self._reading.functions[id(found)] = found
        return found

    def call_of(self, node: ast.Call, scope: Scope) -> Any:
        """Return the result of a call expression."""
        expressions, comprehensions = self._reading.expressions, self._reading.comprehensions
        called = expressions.called(node.func, scope)
        if isinstance(called, Reference) and called.name == "builtins.super" and not node.args:
            return self._super(scope)
        if called == Reference("functools.wraps") and len(node.args) == 1:
            expressions.called(node.args[0], scope)  # only its name and documentation are copied
            return Reference(_WRAPPING)
        if generator := comprehensions.extended(called, node, scope):
            comprehensions.extend(called.owner, generator, scope)
            return None
        args, rest = expressions.values(node.args, scope, use=comprehensions.use(called))
        kwargs: dict[str, Any] = {}
        for keyword in node.keywords:
            found = expressions.value(keyword.value, scope)
            if keyword.arg is not None:
                kwargs[keyword.arg] = found
            elif isinstance(found, dict) and all(isinstance(name, str) for name in found):
                kwargs |= found
            else:
                self._reading.use(found, node)
                unknown = self._reading.unknown(keyword.value, "is not a constant")
                others = (*(rest.of if rest else ()), *self._reading.inside(found))
                rest = derived(found if isinstance(found, Unknown) else unknown, others)
        return self.call(called, Arguments(args, kwargs, rest), node)

    def call(self, called: Any, arguments: Arguments, node: ast.expr) -> Any:
        """Return the result of calling a value."""
        if isinstance(called, Reference):
            return self._reference(called.name, arguments, node)
        if isinstance(called, Method):
            return self._reading.methods.call(called, arguments, node)
        if isinstance(called, Function):
            return self._follow(called, arguments, node)
        if isinstance(called, Bound):
            inner = Arguments([called.owner, *arguments.args], arguments.kwargs, arguments.rest)
            return self._follow(called.function, inner, node)
        if isinstance(called, Class):
            return self._reading.classes.instance(called, arguments, node)
        if isinstance(called, Partial):
            merged = Arguments([*called.args, *arguments.args], called.kwargs | arguments.kwargs, arguments.rest)
            return self.call(called.called, merged, node)
        return self._opaque(called, arguments, node)

    def apply(self, called: Any, args: list[Any], node: ast.expr) -> Any:
        """Return the result of calling a value with positional arguments."""
        return self.call(called, Arguments(args, {}), node)

    def follow(self, function: Function, args: list[Any], kwargs: dict[str, Any], node: ast.AST) -> Any:
        """Return the result of calling a function of the script."""
        return self._follow(function, Arguments(args, kwargs), node)

    def pool_of(self, partial: Partial) -> None:
        """Record the pool of a `functools.partial(ComputePool, ...)` that other code may call."""
        assert isinstance(partial.called, Reference)
        self.pool(partial.called.name, Arguments(partial.args, partial.kwargs), partial.node)

    def explore(self, function: Function) -> None:
        """Follow a function as if it were called with unknown arguments."""
        owner = function.owner
        args: list[Any] = []
        if owner is not None and function.kind == "function":
            args = [self._somebody(owner, function)]
        elif owner is not None and function.kind == "class":
            args = [owner]
        rest = Unknown("is a parameter", about="the argument")
        result = self._follow(function, Arguments(args, {}, rest), function.node, is_iterated=True)
        self._reading.escape(result, function.node)

    def _somebody(self, owner: Class, function: Function) -> Instance:
        """Return an instance created in an unknown way: every attribute that is assigned anywhere is unknown."""
        reading = self._reading
        instance = Instance(owner, Scope(("some", owner.node)))
        reading.born(instance, function.node)
        for name in reading.stored:
            why = f"is an attribute that is assigned when the script runs ({reading.stored[name]})"
            instance.scope.values[name] = Unknown(why)
            for each in owner.lineage:  # the previous value may still be changed
                if name in each.scope.values:
                    reading.escape(each.scope.values[name], function.node)
        return instance

    def _super(self, scope: Scope) -> Any:
        here: Scope | None = scope
        while here is not None and not (isinstance(here.key, tuple) and here.key[0] == "call"):
            here = here.parent
        function = next((each for each, _ in reversed(self._active)), None)
        if here is None or function is None or function.owner is None:
            return Unknown("is not a constant")
        args = function.node.args.args
        return Super(function.owner, here.values.get(args[0].arg) if args else None)

    def _reference(self, name: str, arguments: Arguments, node: ast.expr) -> Any:
        """Return the result of calling something outside the script, known by its full name."""
        reading = self._reading
        if name in known.POOLS:
            return self.pool(name, arguments, node)
        if name in known.EVERYTHING or (name == "builtins.vars" and not arguments.args):
            for each in arguments.all():
                reading.escape(each, node)
            reading.everything = reading.unknown(node, "may change any name of the script")
            return Unknown(MADE)
        if (found := self._of_library(name, arguments, node)) is not ABSENT:
            return found
        if name in ("builtins.setattr", "builtins.delattr", "builtins.object.__setattr__"):
            return self._set_attribute(arguments, node)
        if name == "builtins.getattr" and arguments.rest is None and _is_name(arguments.args):
            found = reading.expressions.attribute(arguments.args[0], arguments.args[1], node)
            return derived(found, (*found.of, *arguments.args[2:])) if isinstance(found, Unknown) else found
        if known.is_plugin(name) or known.is_provider(name):
            return self._part(name, arguments, node)
        if make := known.maker(name):
            return self.made(make, arguments, node, is_image=name.startswith("skyward.Image"))
        if known.is_harmless(name) or (name.startswith("builtins.") and name[9:].endswith(("Error", "Exit"))):
            return Unknown(MADE, is_harmless=True)
        return self._opaque(Reference(name), arguments, node)

    def _of_library(self, name: str, arguments: Arguments, node: ast.expr) -> Any:
        """Return the result of a standard library function on functions, classes or modules; ABSENT for any other."""
        args, kwargs = arguments.args, arguments.kwargs
        if name.startswith(("sys.path.", "site.addsitedir")):
            self._reading.imports.look_in(name, args)
        if arguments.rest is not None:
            return ABSENT
        if name in _DATACLASS and not args and is_followed(kwargs):
            return Reference(_DATACLASS[1] if kwargs.get("kw_only") else name)
        if name == "functools.partial" and args:
            return Partial(args[0], args[1:], kwargs, node)
        if name == FIELD:
            return Partial(Reference(name), args, kwargs, node)
        if name == "builtins.isinstance" and len(args) == 2:
            return is_instance(*args)
        if name == "dataclasses.replace" and args and isinstance(args[0], Image):
            self._reading.used.add(id(args[0]))
            return self.made(replace, arguments, node, is_image=True)
        return ABSENT

    def made(self, make: Callable[..., Any], arguments: Arguments, node: ast.expr, *, is_image: bool) -> Any:
        """Create one of Skyward's values, or return the result of a built-in function."""
        if make in _LAZY:
            return self._reading.comprehensions.lazy(make, arguments, node)
        every = arguments.all()
        args = [self._reading.taken(each, node) for each in arguments.args]
        kwargs = {name: self._reading.taken(each, node) for name, each in arguments.kwargs.items()}
        unknown = arguments.rest or self._reading.unknown_in([*args, *kwargs.values()])
        if unknown is None and make in _ORDERED and any(map(is_unordered, every)):
            unknown = Unknown(UNORDERED)
        if unknown is not None:
            of: list[Any] = [*arguments.kwargs.values(), *arguments.others]
            for each in every:
                self._reading.use(each, node)
            of += every if make in _GIVING else holding(self._reading.inside(*arguments.args))
            made = () if is_image else [*of, *holding(of)]
            return unknown.alike(unknown.about or self._reading.about(node), is_image=is_image, of=made)
        is_text = getattr(make, "__name__", "") in ("str", "repr", "format")
        if is_text and any(isinstance(each, Iterator) for each in args):
            return Unknown("is the text of an iterator, which changes from run to run")
        result = self._reading.expressions.applied(node, make, *args, **kwargs)
        if isinstance(result, Unknown):
            return result.alike(is_image=is_image)
        return Unknown(MADE) if isinstance(result, Iterator) else result

    def _part(self, name: str, arguments: Arguments, node: ast.expr) -> Any:
        """Create a plugin or provider."""
        reading, is_plugin = self._reading, known.is_plugin(name)
        if unknown := arguments.rest or reading.unknown_in(arguments.all()):
            if not is_plugin:
                return Unknown(MADE, is_harmless=True)
            return unknown.alike(unknown.about or reading.about(node))
        # copied now, as the script may change a list after passing it
        return (PluginUse if is_plugin else ProviderUse)(
            name=name.rpartition(".")[2],
            args=tuple(map(_copied, arguments.args)),
            kwargs={key: _copied(value) for key, value in arguments.kwargs.items()},
            where=reading.where(node),
        )

    def pool(self, name: str, arguments: Arguments, node: ast.expr) -> Any:
        self._reading.made(PoolCall(node, self._reading.module, name, arguments))
        first = next(iter(arguments.args), None)
        if name == "skyward.pool" and isinstance(first, Function):  # as a bare decorator
            return first
        pool = Unknown("is a pool", is_harmless=True)
        pool.is_pool = True
        return pool

    def decorate(self, decorator: Any, value: Any, node: ast.expr) -> Any:
        """Return the result of applying a decorator to a function or class."""
        name = decorator.name if isinstance(decorator, Reference) else ""
        if isinstance(value, Function) and name in _METHOD_KINDS:
            value.kind = _METHOD_KINDS[name]
            return value
        if isinstance(value, Class) and name in _DATACLASS:
            value.dataclass, value.is_by_name = True, name == _DATACLASS[1]
            find_fields(value)
            return value
        if name == _WRAPPING or (isinstance(decorator, Unknown) and decorator.is_pool):
            return value
        if isinstance(decorator, Unknown) and decorator.is_harmless:
            return Unknown(MADE, is_harmless=True)
        if name.startswith("skyward.") and name not in known.POOLS:
            return Unknown(MADE, is_harmless=True)
        return self.call(decorator, Arguments([value], {}), node)

    def _set_attribute(self, arguments: Arguments, node: ast.expr) -> Any:
        reading, args = self._reading, arguments.args
        if _is_name(args) and len(args) == 3 and isinstance(args[0], Instance | Class | Module):
            reading.assignments.store(args[0], args[1], args[2], node)
            return None
        if args and isinstance(args[0], Module | Reference | Unknown):
            reading.everything = reading.unknown(node, "may change any name")
        for each in args:
            reading.escape(each, node)
        return None

    def _follow(self, function: Function, arguments: Arguments, node: ast.AST, *, is_iterated: bool = False) -> Any:
        """Return the result of a function of the script by reading its body with these arguments.

        The body of a generator function is read where its result is iterated over.
        """
        reading = self._reading
        depths = [unsure for each, unsure in self._active if each.node is function.node]
        is_endless = len(depths) > 1 and reading.unsure > depths[0]
        if is_endless or (not is_iterated and _is_generator(function)):
            reading.expose(function)
            reading.escape(arguments.all(), node)
            return Unknown(MADE)
        if len(self._active) >= _DEEPEST:
            reading.everything = reading.unknown(node, "goes too deep to be followed, and may change any name")
            return Unknown(MADE)
        function.is_called = True
        scope = Scope(("call", function.node), function.scope)
        reading.born(scope, function.node)
        module, reading.module = reading.module, function.module
        frame = Frame(reading.state.depth)
        reading.frames.append(frame)
        reading.state.begin()
        self._active.append((function, reading.unsure))
        try:
            self._bind(function, arguments, scope, node)
            ended = self._body(function, scope, frame)
        finally:
            self._active.pop()
            reading.frames.pop()
            reading.module = module
            changes = reading.state.end()
        if frame.early:
            reading.state.join([changes, *frame.early])
        else:
            reading.state.apply(changes)
        results = frame.results if ended else [*frame.results, None]
        if not results:  # it ends with an exception
            return Unknown(MADE)
        if all(same(each, results[0]) for each in results):
            return results[0]
        return Unknown("is one of several values, and only a run can tell which", of=results)

    def _body(self, function: Function, scope: Scope, frame: Frame) -> bool:
        """Read a function's body, and return whether it certainly ends with a `return`."""
        reading = self._reading
        if isinstance(function.node, ast.Lambda):
            frame.results.append(reading.expressions.value(function.node.body, scope))
            return True
        return reading.statements.run(function.node.body, scope) is not None

    def _bind(self, function: Function, arguments: Arguments, scope: Scope, node: ast.AST) -> None:
        """Bind the parameters."""
        reading, spec = self._reading, function.node.args
        place = reading.place(function.node)
        names = [each.arg for each in (*spec.posonlyargs, *spec.args)]
        given = dict(zip(names, arguments.args, strict=False))
        kwargs = dict(arguments.kwargs)
        extra = arguments.args[len(names) :]
        for name in [*names, *(each.arg for each in spec.kwonlyargs)]:
            if name in kwargs:
                given[name] = kwargs.pop(name)
            elif name not in given:
                of = [*arguments.rest.of, function.defaults.get(name)] if arguments.rest else []
                missing = Unknown(f"is a parameter of `{function.name}`, made when the script runs", of=of)
                given[name] = missing if arguments.rest else function.defaults.get(name, missing)
        of = [*extra, *kwargs.values(), *arguments.others]
        unknown = Unknown(f"is a parameter of `{function.name}`, made when the script runs", of=holding(of))
        if spec.vararg:
            given[spec.vararg.arg] = unknown if arguments.rest else tuple(extra)
        if spec.kwarg:
            given[spec.kwarg.arg] = unknown if arguments.rest else kwargs
            reading.born(given[spec.kwarg.arg], function.node)
        if (extra and not spec.vararg) or (kwargs and not spec.kwarg):
            for each in (*extra, *kwargs.values()):
                reading.escape(each, node)
        for name, value in given.items():
            reading.state.bind(scope, name, value, place)

    def _opaque(self, called: Any, arguments: Arguments, node: ast.expr) -> Any:
        """Return the result of a call that is not followed and may change its arguments."""
        reading = self._reading
        if isinstance(called, Unknown) and called.is_harmless:
            return Unknown(MADE, is_harmless=True)
        reading.escape([called, *arguments.all(), arguments.rest], node)
        if isinstance(called, Reference):
            if called.name.startswith("builtins."):
                return Unknown(MADE)
            return Unknown("calls something other than skyward's own names")
        if isinstance(called, Unknown):
            return called.alike()
        return Unknown(MADE)


def is_unordered(value: Any) -> bool:
    return isinstance(value, set | frozenset) and len(value) > 1


def _is_name(args: list[Any]) -> bool:
    """Return whether the second argument is the name of an attribute."""
    return len(args) >= 2 and isinstance(args[1], str)


def _copied(value: Any) -> Any:
    """Return a copy of a value and its nested containers."""
    if isinstance(value, dict):
        return {key: _copied(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_copied, value))
    return type(value)(map(_copied, value)) if isinstance(value, list | set) else value


def _is_generator(function: Function) -> bool:
    """Return whether the body of a function, excluding nested functions, contains a `yield`."""
    todo = list(ast.iter_child_nodes(function.node))
    while todo:
        each = todo.pop()
        if isinstance(each, ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            todo += ast.iter_child_nodes(each)
    return False
