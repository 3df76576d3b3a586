"""Evaluation of statements in order; if several branches are possible, each of them is followed."""

from __future__ import annotations

import ast
from collections.abc import Callable
from enum import Enum
from typing import Any

from skyward.builder.sources.static_eval import known
from skyward.builder.sources.static_eval.classes import are_equal, is_member
from skyward.builder.sources.static_eval.reading import Loop, Reading, bound_error
from skyward.builder.sources.static_eval.state import Changes
from skyward.builder.sources.static_eval.values import (
    ABSENT,
    Bound,
    Class,
    Function,
    Instance,
    Reference,
    Scope,
    Unknown,
)


class End(Enum):
    """How a block ends before its last statement."""

    RETURN = 1
    RAISE = 2
    BREAK = 3
    CONTINUE = 4


_MOST_ROUNDS = 3  # until a loop with an unknown number of iterations changes nothing more


class Statements:
    """Evaluator of statements."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    def run(self, block: list[ast.stmt], scope: Scope) -> End | None:
        """Follow a block; return how it certainly ends early, or None."""
        for statement in block:
            self._reading.step()
            follow = getattr(self, f"_{type(statement).__name__.lower()}", None)
            end: End | None = follow(statement, scope) if follow else None
            # top-level code after a `raise` is read as well: it was written to be reached
            if end is not None and not (end is End.RAISE and not self._reading.unsure):
                return end
        return None

    def perhaps(self, act: Callable[[], Any]) -> None:
        """Follow an action that may or may not happen."""
        self.either([act, lambda: None])

    def either(self, ways: list[Callable[[], Any]], *, agree: bool = True) -> End | None:
        """Follow alternatives of which one is taken; return how all of them end early, or None."""
        reading, state = self._reading, self._reading.state
        through: list[Changes] = []
        ends: list[End] = []
        for way in ways:
            state.begin()
            reading.unsure += 1
            end = way()
            reading.unsure -= 1
            if end is End.RAISE and not reading.trying:
                ends.append(end)
                state.end()
                continue
            if end is End.RETURN:
                reading.frames[-1].early.append(state.since(reading.frames[-1].depth))
            elif end in (End.BREAK, End.CONTINUE):
                loop = reading.frames[-1].loops[-1]
                loop.early.append(state.since(loop.depth))
            changes = state.end()
            if isinstance(end, End) and end is not End.RAISE:
                ends.append(end)
            else:
                through.append(changes)
        if not through:
            return next((end for end in ends if end is not End.RAISE), End.RAISE)
        state.join(through, agree=agree)
        return None

    def repeatedly(self, act: Callable[[], Any]) -> None:
        """Follow an action that happens an unknown number of times; all it changes is unknown from its start."""
        reading, state = self._reading, self._reading.state
        reading.quiet += 1
        for _ in range(_MOST_ROUNDS):
            loop = self._round(act)
            state.join([loop[0], *loop[1], {}], agree=False)
        reading.quiet -= 1
        changes, early = self._round(act)
        state.join([changes, *early, {}], agree=False)

    def _round(self, act: Callable[[], Any]) -> tuple[Changes, list[Changes]]:
        reading, state = self._reading, self._reading.state
        loop = Loop(state.depth)
        reading.frames[-1].loops.append(loop)
        state.begin()
        reading.unsure += 1
        end = act()
        if end is End.RETURN:
            reading.frames[-1].early.append(state.since(reading.frames[-1].depth))
        reading.unsure -= 1
        reading.frames[-1].loops.pop()
        return state.end(), loop.early

    def _assign(self, node: ast.Assign, scope: Scope) -> None:
        value = self._reading.expressions.value(node.value, scope)
        for target in node.targets:
            self._reading.assignments.assign(target, value, scope)

    def _annassign(self, node: ast.AnnAssign, scope: Scope) -> None:
        if node.value is not None:
            self._reading.assignments.assign(node.target, self._reading.expressions.value(node.value, scope), scope)

    def _augassign(self, node: ast.AugAssign, scope: Scope) -> None:
        self._reading.assignments.augment(node, scope)

    def _delete(self, node: ast.Delete, scope: Scope) -> None:
        self._reading.assignments.delete(node, scope)

    def _expr(self, node: ast.Expr, scope: Scope) -> None:
        self._reading.expressions.called(node.value, scope)

    def _return(self, node: ast.Return, scope: Scope) -> End:
        value = None if node.value is None else self._reading.expressions.value(node.value, scope)
        self._reading.frames[-1].results.append(value)
        return End.RETURN

    def _raise(self, node: ast.Raise, scope: Scope) -> End:
        for each in (node.exc, node.cause):
            if each is not None:
                self._reading.expressions.value(each, scope)
        return End.RAISE

    def _break(self, _node: ast.Break, _scope: Scope) -> End:
        return End.BREAK

    def _continue(self, _node: ast.Continue, _scope: Scope) -> End:
        return End.CONTINUE

    def _assert(self, node: ast.Assert, scope: Scope) -> None:
        self._reading.expressions.value(node.test, scope)

    def _if(self, node: ast.If, scope: Scope) -> End | None:
        expressions = self._reading.expressions
        answer = expressions.truth(expressions.value(node.test, scope), node.test)
        if isinstance(answer, Unknown):
            return self.either([lambda: self.run(node.body, scope), lambda: self.run(node.orelse, scope)])
        return self.run(node.body if answer else node.orelse, scope)

    def _match(self, node: ast.Match, scope: Scope) -> End | None:
        subject = self._reading.expressions.value(node.subject, scope)
        for each in node.cases:
            answer = None if each.guard else self._matches(each.pattern, subject, scope)
            if answer is None:
                break
            if answer:
                return self.run(each.body, scope)
        else:
            return None
        self._reading.escape(subject, node)

        def way(case: ast.match_case) -> End | None:
            for each in ast.walk(case.pattern):
                name = getattr(each, "rest", None) or getattr(each, "name", None)
                if isinstance(name, str):
                    self._reading.state.bind(scope, name, Unknown("is bound by a match"), self._reading.place(node))
            if case.guard is not None:
                self._reading.expressions.value(case.guard, scope)
            return self.run(case.body, scope)

        return self.either([*(lambda case=case: way(case) for case in node.cases), lambda: None])

    def _matches(self, pattern: ast.pattern, subject: Any, scope: Scope) -> bool | None:
        """Return whether a constant or enum member matches a pattern; None if that is known only at run time."""
        if not isinstance(subject, str | int | float | bytes | None) and not is_member(subject):
            return None
        if isinstance(pattern, ast.MatchAs) and pattern.pattern is None:
            if pattern.name is not None:
                self._reading.state.bind(scope, pattern.name, subject, self._reading.place(pattern))
            return True
        if isinstance(pattern, ast.MatchOr):
            answers = [self._matches(each, subject, scope) for each in pattern.patterns]
            return None if None in answers else any(answers)
        if isinstance(pattern, ast.MatchSingleton):
            return subject is pattern.value
        if not isinstance(pattern, ast.MatchValue):
            return None
        value = self._reading.expressions.value(pattern.value, scope)
        if isinstance(value, Unknown) or is_member(value) != is_member(subject):
            return None
        return are_equal(value, subject) if is_member(value) else bool(value == subject)

    def _while(self, node: ast.While, scope: Scope) -> End | None:
        expressions = self._reading.expressions
        answer = expressions.truth(expressions.value(node.test, scope), node.test)
        if answer is False:
            return self.run(node.orelse, scope)

        def once() -> End | None:
            expressions.value(node.test, scope)
            return self.run(node.body, scope)

        self.repeatedly(once)
        if node.orelse:
            self.perhaps(lambda: self.run(node.orelse, scope))
        return None

    def _for(self, node: ast.For | ast.AsyncFor, scope: Scope) -> End | None:
        expressions = self._reading.expressions
        found, items = self._reading.iterated(expressions.value(node.iter, scope), node.iter)
        if (
            not isinstance(items, Unknown)
            and not self._reading.is_long
            and (done := self._each(node, found, items, scope)) is not None
        ):
            return done[0]
        self._reading.use(found, node)
        why = items if isinstance(items, Unknown) else Unknown("is one of several values, and may not be reached")

        def once() -> End | None:
            of = self._reading.inside(found)
            self._reading.assignments.assign(node.target, self._reading.unknown(node.target, why.why, of=of), scope)
            return self.run(node.body, scope)

        self.repeatedly(once)
        if node.orelse:
            self.perhaps(lambda: self.run(node.orelse, scope))
        return None

    _asyncfor = _for

    def _each(
        self, node: ast.For | ast.AsyncFor, found: Any, items: list[Any], scope: Scope
    ) -> tuple[End | None] | None:
        """Follow a loop over known items; None, without effects, if only a run can tell when the loop is left."""
        reading, state = self._reading, self._reading.state
        loop = Loop(state.depth)
        reading.frames[-1].loops.append(loop)
        frame, pools = reading.frames[-1], len(reading.pools)
        before = len(frame.results), len(frame.early)
        state.begin()
        end: End | None = None
        is_over = False
        since = state.count
        for position, item in enumerate(items, 1):  # the loop may change the script's own list
            self._reading.assignments.assign(node.target, item, scope)
            end = self.run(node.body, scope)
            is_left = end in (End.BREAK, End.RETURN, End.RAISE)
            if not is_left and reading.is_moved(found, position, since):
                loop.early.append({})
            if loop.early or is_left:
                break
            end = None
        else:
            frame.loops.pop()  # in `else`, `break` and `continue` belong to the outer loop
            end, is_over = self.run(node.orelse, scope), True
        if not is_over:
            frame.loops.pop()
        changes = state.end()
        if loop.early:
            del reading.pools[pools:], frame.results[before[0] :], frame.early[before[1] :]
            return None
        state.apply(changes)
        return (None if end is End.BREAK and not is_over else end,)

    def _with(self, node: ast.With | ast.AsyncWith, scope: Scope) -> End | None:
        reading, expressions = self._reading, self._reading.expressions
        catches = False
        left: list[Any] = []
        for item in node.items:
            value = expressions.value(item.context_expr, scope)
            if isinstance(value, Instance) and (value.cls.is_known or value.cls.pool):
                entered = self._entered(value, item.context_expr)
                left.append((value, item.context_expr))
                catches |= _may_catch(value, node.body)
                if item.optional_vars is not None:
                    self._reading.assignments.assign(item.optional_vars, entered, scope)
                continue
            called = item.context_expr.func if isinstance(item.context_expr, ast.Call) else item.context_expr
            name = expressions.called(called, scope) if isinstance(called, ast.Name | ast.Attribute) else None
            catches |= isinstance(name, Reference) and name.name in ("contextlib.suppress", "pytest.raises")
            catches |= not (isinstance(value, Unknown) and value.is_pool) and _raises(node.body)
            reading.escape(value, item.context_expr)
            if item.optional_vars is not None:
                entered = value if isinstance(value, Unknown) else Unknown("is made when the script runs")
                self._reading.assignments.assign(item.optional_vars, entered, scope)
        end = self._tried(node.body, [[]], [], scope) if catches else self.run(node.body, scope)
        for value, expression in reversed(left):
            leave = expressions.attribute(value, "__exit__", expression)
            if isinstance(leave, Bound):
                self._reading.calls.follow(leave.function, [value, *[Unknown("is an error")] * 3], {}, expression)
        return end

    _asyncwith = _with

    def _entered(self, value: Instance, node: ast.expr) -> Any:
        """Return the value bound by `as name` for an instance of a class of the script."""
        enter = self._reading.expressions.attribute(value, "__enter__", node)
        if isinstance(enter, Bound):
            return self._reading.calls.follow(enter.function, [value], {}, node)
        return Unknown("is a pool" if value.cls.pool else "is made when the script runs", is_harmless=True)

    def _try(self, node: ast.Try, scope: Scope) -> End | None:
        handlers = [] if known.cannot_fail(node) else node.handlers
        bodies = [[bound_error(each), *each.body] if each.name else each.body for each in handlers]
        if handlers:
            end = self._tried(node.body, bodies, node.orelse, scope)
        else:
            end = self.run([*node.body, *node.orelse], scope)
        last = self.run(node.finalbody, scope)
        return last or end

    _trystar = _try

    def _tried(
        self, body: list[ast.stmt], handlers: list[list[ast.stmt]], orelse: list[ast.stmt], scope: Scope
    ) -> End | None:
        """Follow a block that an exception may leave anywhere; for its handlers, all it changes is unknown."""
        reading, state = self._reading, self._reading.state
        state.begin()
        reading.trying += 1
        reading.unsure += 1
        end = self.run(body, scope)
        if end is End.RETURN:
            reading.frames[-1].early.append(state.since(reading.frames[-1].depth))
        reading.unsure -= 1
        reading.trying -= 1
        changes = state.end()

        def well() -> End | None:
            state.apply(changes)
            return end or self.run(orelse, scope)

        def ill(handler: list[ast.stmt]) -> End | None:
            state.join([changes, {}], agree=False)
            return self.run(handler, scope)

        return self.either([well, *(lambda each=each: ill(each) for each in handlers)])

    def _global(self, node: ast.Global, scope: Scope) -> None:
        for name in node.names:
            scope.shared[name] = scope.module()

    def _nonlocal(self, node: ast.Nonlocal, scope: Scope) -> None:
        for name in node.names:
            home, _ = self._reading.lookup(name, scope.parent) if scope.parent else (None, ABSENT)
            if home is not None:
                scope.shared[name] = home

    def _import(self, node: ast.Import, scope: Scope) -> None:
        self._reading.imports.run(node, scope)

    def _importfrom(self, node: ast.ImportFrom, scope: Scope) -> None:
        self._reading.imports.run_from(node, scope)

    def _functiondef(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> None:
        reading = self._reading
        owner = scope.key if scope.is_class and isinstance(scope.key, Class) else None
        decorators = [(each, reading.expressions.called(each, scope)) for each in node.decorator_list]
        value: Any = reading.calls.function(node, scope, owner)
        for expression, decorator in reversed(decorators):
            value = reading.calls.decorate(decorator, value, expression)
        reading.state.bind(scope, node.name, value, reading.place(node))

    _asyncfunctiondef = _functiondef

    def _classdef(self, node: ast.ClassDef, scope: Scope) -> None:
        self._reading.classes.define(node, scope)


def _raises(body: list[ast.stmt]) -> bool:
    """Return whether a block contains a `raise`."""
    return any(isinstance(each, ast.Raise) for statement in body for each in ast.walk(statement))


def _may_catch(manager: Instance, body: list[ast.stmt]) -> bool:
    """Return whether the `__exit__` of a class of the script may suppress an exception."""
    leave = next(
        (each.scope.values["__exit__"] for each in manager.cls.lineage if "__exit__" in each.scope.values), None
    )
    if not isinstance(leave, Function):
        return leave is not None or _raises(body)
    returns = [each.value for each in ast.walk(leave.node) if isinstance(each, ast.Return)]
    return any(not (each is None or (isinstance(each, ast.Constant) and not each.value)) for each in returns)
