"""Evaluation of comprehensions, and of generators that are consumed where they are written or are simple."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from skyward.builder.sources.static_eval.calls import UNORDERED, Arguments, is_unordered
from skyward.builder.sources.static_eval.expressions import derived
from skyward.builder.sources.static_eval.reading import Reading
from skyward.builder.sources.static_eval.values import (
    ABSENT,
    Lazy,
    Method,
    Reference,
    Scope,
    Unknown,
    aliases,
    holding,
    same,
)

_USING = tuple(
    f"builtins.{name}" for name in ("dict", "frozenset", "list", "max", "min", "set", "sorted", "sum", "tuple")
)
_Written = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


class Comprehensions:
    """Evaluator of comprehensions.

    Args:
        reading: the reading it belongs to.
        made: code that replaces a generator, by the generator; shared by all readings.
    """

    def __init__(self, reading: Reading, made: dict[ast.expr, Any]) -> None:
        self._reading = reading
        self._made = made

    def items(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp, scope: Scope, given: Any = ABSENT) -> Any:
        """Return the items of a list, set or generator; `given` is the iterable of its first loop, if known."""
        value = self._reading.expressions.value
        values: list[Any] = []
        unknown = self._each(
            node, node.generators, Scope(node, scope), lambda at: values.append(value(node.elt, at)), given
        )
        return values if unknown is None else derived(unknown, holding(values))

    def dictionary(self, node: ast.DictComp, scope: Scope) -> Any:
        """Return the dictionary of a comprehension."""
        value = self._reading.expressions.value
        pairs: list[tuple[Any, Any]] = []

        def add(at: Scope) -> None:
            pairs.append((value(node.key, at), value(node.value, at)))

        unknown = self._each(node, node.generators, Scope(node, scope), add)
        if unknown is None and (unknown := self._reading.unknown_in([key for key, _ in pairs])) is None:
            return self._reading.expressions.applied(node, lambda: dict(pairs))
        return derived(unknown, holding(each for _, each in pairs))

    def used_up(self, node: ast.GeneratorExp, scope: Scope) -> Any:
        """Return a generator that is consumed where it is written."""
        values = self.items(node, scope)
        return values if isinstance(values, Unknown) else Lazy(iter, [tuple(values)], self._reading.state.count)

    def left_early(self, node: ast.GeneratorExp, scope: Scope) -> Any:
        """Return a generator that may be left before its end, which matters only if it changes something."""
        reading = self._reading
        since = reading.births
        reading.state.begin()
        found = self.used_up(node, scope)
        changes = {
            key: change
            for key, change in reading.state.end().items()
            if reading.site(change.holder)[1] <= since and not _is_own(change.holder)
        }
        if not changes:
            return found
        reading.state.join([changes, {}], agree=False)
        return Unknown("is a generator that changes something, and may be left before its end")

    def extend(self, owner: list[Any], node: ast.GeneratorExp, scope: Scope) -> None:
        """Extend a list by a generator, which sees each new item in the list at once."""
        calls, value = self._reading.calls, self._reading.expressions.value

        def add(at: Scope) -> None:
            calls.apply(Method(owner, "append"), [value(node.elt, at)], node)

        self._each(node, node.generators, Scope(node, scope), add)

    def generator(self, node: ast.GeneratorExp, scope: Scope) -> Any:
        """Return a generator that is used later.

        It is followed if its items depend on nothing that may change until then.
        """
        reading, first = self._reading, node.generators[0]
        found = reading.expressions.value(first.iter, scope)
        if isinstance(found, Lazy):
            items: Any = reading.doubt(found, None) or [*found]
        else:
            items = reading.expressions.items(found, first.iter)
        if not isinstance(items, Unknown) and not aliases(items) and _is_simple(node):
            values = self.items(node, scope, tuple(items))
            if isinstance(values, Unknown):
                return values
            make = partial(_unless_changed, tuple(values), tuple(items))
            return Lazy(make, [found], reading.state.count)
        reading.escape([*reading.inside(found), *([found] if isinstance(found, Lazy) else [])], node)
        reading.expose(reading.calls.function(self._body(node), scope, None))
        if isinstance(items, Unknown):
            return derived(items, ())
        return Unknown(
            "is a generator, and only a run can tell when it is used; a list in its place, [...], is followed"
        )

    def lazy(self, make: Callable[..., Any], arguments: Arguments, node: ast.expr) -> Any:
        """Return the iterator made by a built-in function from other iterators, which it advances as it is used."""
        reading, args = self._reading, arguments.args
        lazy = [inner for each in args if isinstance(each, Lazy) for inner in each.sequence() if not inner.is_view]
        every = [[*each] if isinstance(each, Lazy) else each for each in args]
        unknown = arguments.rest or reading.unknown_in([*every, *arguments.kwargs.values()])
        unknown = unknown or next((doubt for each in lazy if (doubt := reading.doubt(each, None))), None)
        if any(map(is_unordered, args)):
            unknown = Unknown(UNORDERED)
        elif len(set(map(id, lazy))) < len(lazy):
            unknown = Unknown("takes one iterator twice")
        if unknown is None:
            count = reading.state.count
            return reading.expressions.applied(node, lambda: Lazy(partial(make, **arguments.kwargs), args, count))
        for each in arguments.all():
            reading.use(each, node)
        reading.escape(lazy, node)
        made = holding([*arguments.kwargs.values(), *arguments.others, *reading.inside(*args)])
        return unknown.alike(unknown.about or reading.about(node), of=made)

    def use(self, called: Any) -> str:
        """Return how a call uses a generator passed to it; see `Expressions.values`."""
        if isinstance(called, Reference) and called.name in ("builtins.all", "builtins.any"):
            return "early"
        is_join = isinstance(called, Method) and called.name == "join" and isinstance(called.owner, str)
        return "end" if is_join or (isinstance(called, Reference) and called.name in _USING) else ""

    def extended(self, called: Any, node: ast.Call, scope: Scope) -> ast.GeneratorExp | None:
        """Return the generator with which a call extends a list of the script."""
        is_extend = isinstance(called, Method) and type(called.owner) is list and called.name == "extend"
        return self.written(node.args[0], scope) if is_extend and len(node.args) == 1 and not node.keywords else None

    def written(self, node: ast.expr, scope: Scope) -> ast.GeneratorExp | None:
        """Return the generator written there, also as `map(function, items)` or `filter(function, items)`."""
        if isinstance(node, ast.GeneratorExp):
            return node
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            return None
        if self._reading.lookup(node.func.id, scope)[0] is not None:
            return None
        if node not in self._made:
            self._made[node] = _generator_of(node, node.func.id)
        found: ast.GeneratorExp | None = self._made[node]
        return found

    def _body(self, node: ast.GeneratorExp) -> ast.Lambda:
        """Return the code that consumes a generator, as a function."""
        if node not in self._made:
            first = node.generators[0]
            iterated = ast.comprehension(first.target, ast.Yield(None), first.ifs, first.is_async)
            none = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
            made = ast.Lambda(none, ast.ListComp(node.elt, [iterated, *node.generators[1:]]))
            self._made[node] = ast.fix_missing_locations(ast.copy_location(made, node))
        body: ast.Lambda = self._made[node]
        return body

    def _each(
        self,
        node: _Written,
        generators: list[ast.comprehension],
        scope: Scope,
        act: Callable[[Scope], Any],
        given: Any = ABSENT,
    ) -> Unknown | None:
        """Run the loops of a comprehension; return the reason if their results are unknown."""
        if not generators:
            act(scope)
            return None
        reading, first, rest = self._reading, generators[0], generators[1:]
        found, items = reading.iterated(self._iterated(node, first, scope) if given is ABSENT else given, first.iter)
        if isinstance(items, Unknown):
            self._unsure(node, generators, scope, act)
            return items
        since = reading.state.count
        for position, item in enumerate(items, 1):
            reading.assignments.assign(first.target, item, scope)
            truth, value = reading.expressions.truth, reading.expressions.value
            answers = []
            for test in first.ifs:
                answers.append(truth(value(test, scope), test))
                if answers[-1] is False:
                    break
            unknown = next((each for each in answers if isinstance(each, Unknown)), None)
            if unknown is None and all(answers):
                unknown = self._each(node, rest, scope, act)
                if unknown:
                    return unknown
            if unknown is None and reading.is_moved(found, position, since):
                unknown = reading.unknown(first.iter, "is changed while it is iterated over")
            if unknown is not None:
                self._unsure(node, generators, scope, act)
                return unknown
        return None

    def _iterated(self, node: _Written, each: ast.comprehension, scope: Scope) -> Any:
        """Return the iterable of a comprehension's loop; the first one is evaluated outside the comprehension."""
        outer = scope.parent if each is node.generators[0] else None
        return self._reading.expressions.value(each.iter, outer or scope)

    def _unsure(
        self,
        node: _Written,
        generators: list[ast.comprehension],
        scope: Scope,
        act: Callable[[Scope], Any],
    ) -> None:
        """Follow the effects of a comprehension that runs an unknown number of times."""

        def once() -> None:
            for each in generators:
                of = self._reading.inside(self._iterated(node, each, scope))
                found = self._reading.unknown(node, "is not a constant", of=of)
                self._reading.assignments.assign(each.target, found, scope)
                for test in each.ifs:
                    self._reading.expressions.value(test, scope)
            act(scope)

        self._reading.statements.repeatedly(once)


def _is_own(holder: Any) -> bool:
    """Return whether a scope is that of a comprehension."""
    return isinstance(holder, Scope) and isinstance(holder.key, _Written)


def _is_simple(node: ast.GeneratorExp) -> bool:
    """Return whether the items of a generator depend only on the iterable of its first loop."""
    targets = {each.id for one in node.generators for each in ast.walk(one.target) if isinstance(each, ast.Name)}
    parts = [
        node.elt,
        *(test for one in node.generators for test in one.ifs),
        *(one.iter for one in node.generators[1:]),
    ]
    every = [each for part in parts for each in ast.walk(part)]
    return not any(
        isinstance(each, (ast.NamedExpr, ast.Lambda, ast.Await, ast.Yield, ast.YieldFrom)) for each in every
    ) and all(each.id in targets for each in every if isinstance(each, ast.Name))


def _generator_of(node: ast.Call, name: str) -> ast.GeneratorExp | None:
    """Return the generator equivalent to `map(function, items)` or `filter(function, items)`; None for other calls."""
    if name not in ("filter", "map") or len(node.args) != 2 or node.keywords or isinstance(node.args[1], ast.Starred):
        return None
    function, items = node.args
    is_none = name == "filter" and isinstance(function, ast.Constant) and function.value is None
    if not is_none and not isinstance(function, ast.Name | ast.Lambda):
        return None
    item: ast.expr = ast.Name(".item", ast.Load())
    result = item if is_none else ast.Call(function, [item], [])
    elt, ifs = (result, []) if name == "map" else (item, [result])
    made = ast.GeneratorExp(elt, [ast.comprehension(ast.Name(".item", ast.Store()), items, ifs, 0)])
    return ast.fix_missing_locations(ast.copy_location(made, node))


def _unless_changed(values: tuple[Any, ...], seen: tuple[Any, ...], now: Iterable[Any]) -> Iterator[Any]:
    """Return the values of a generator as long as its iterable yields the same items as before."""
    is_same = len(found := [*now]) == len(seen) and all(map(same, found, seen))
    return iter(values if is_same else (ABSENT,))
