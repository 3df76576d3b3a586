"""Evaluation of expressions."""

from __future__ import annotations

import ast
import builtins
import operator
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from skyward.builder.sources.static_eval import known
from skyward.builder.sources.static_eval.classes import are_equal, is_member
from skyward.builder.sources.static_eval.reading import Reading
from skyward.builder.sources.static_eval.values import (
    ABSENT,
    CONTAINERS,
    VIEWS,
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
    first_unknown,
    holding,
    same,
)
from skyward.errors import ConfigError
from skyward.model.image import Image

OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Mult: operator.mul,
    ast.Sub: operator.sub,
}
_SIGNS: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.Invert: operator.invert,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
_CONVERSIONS: dict[int, Callable[[Any], Any]] = {115: str, 114: repr, 97: ascii}  # of f-strings: !s, !r, !a
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, other: one in other,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.NotEq: operator.ne,
    ast.NotIn: lambda one, other: one not in other,
}
_PLAIN = (str, bytes, int, float, bool, type(None), tuple, Path, *CONTAINERS, *VIEWS)
MOST = 100_000  # maximum number of parts of a string or list
_ENVIRONMENT = ("os.environ", "os.getenv", "os.getenvb")
_FROM_ENVIRONMENT = (
    "is read from the environment when the script runs; `ComputePool(env=...)` gives nodes variables without becoming "
    "part of the image"
)


class Expressions:
    """Evaluator of expressions."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    def value(self, node: ast.expr, scope: Scope) -> Any:
        """Return the value of an expression; an `Unknown` if it is known only at run time."""
        return self._shown(self.called(node, scope), node)

    def called(self, node: ast.expr, scope: Scope) -> Any:
        """Return the value of an expression that is only called, which does not expose a function to other code."""
        reading = self._reading
        reading.step()
        read = getattr(self, f"_{type(node).__name__.lower()}", None)
        found = read(node, scope) if read else self._opaque(node, scope)
        if isinstance(found, CONTAINERS):
            reading.born(found, node)
            if isinstance(found, Lazy) and reading.state.lost(found):  # a loop over it may find it changed
                reading.state.touch(found, reading.place(node))
            found = reading.doubt(found, None) or found
        if isinstance(found, Unknown) and not found.about:
            whole, is_out = found.whole, found.is_out
            found = derived(found, found.of)
            found.about, found.whole, found.is_out = reading.about(node), whole, is_out
        return found

    def _shown(self, value: Any, node: ast.expr) -> Any:
        """Return a value that other code receives; from now on that code may call it if it is a function."""
        if isinstance(value, Function):
            self._reading.expose(value)
        elif isinstance(value, Bound):
            self._reading.escape(value, node)
        return value

    def values(self, nodes: Iterable[ast.expr], scope: Scope, *, use: str = "") -> tuple[list[Any], Unknown | None]:
        """Return the values of elements or arguments with starred ones expanded, and the first unknown starred one.

        Args:
            nodes: their expressions.
            scope: the scope they are in.
            use: whether the called function consumes a generator to its "end" or may leave it "early"; "" if unknown.
        """
        values: list[Any] = []
        unknown: Unknown | None = None
        others: list[Any] = []
        for node in nodes:
            inner = node.value if isinstance(node, ast.Starred) else node
            is_used = use == "end" or isinstance(node, ast.Starred)
            generator = self._reading.comprehensions.written(inner, scope) if is_used or use else None
            if generator is None:
                found = self.value(inner, scope)
            elif is_used:
                found = self._reading.comprehensions.used_up(generator, scope)
            else:
                found = self._reading.comprehensions.left_early(generator, scope)
            items = self.items(found, node.value) if isinstance(node, ast.Starred) else [found]
            if isinstance(items, Unknown):
                unknown = unknown or items
                others += self._reading.inside(found)
            else:
                values += items
        return values, None if unknown is None else derived(unknown, others)

    def items(self, value: Any, node: ast.expr) -> list[Any] | Unknown:
        """Return the items of an iterable value."""
        if isinstance(value, Lazy) and (unknown := self._reading.spend(value, node)):
            return unknown
        if isinstance(value, list | tuple | str | range | dict):
            return [*value] if len(value) <= MOST else self._reading.unknown(node, "has too many items")
        if isinstance(value, set | frozenset) and len(value) <= 1:
            return [*value]
        if isinstance(value, set | frozenset):
            return self._reading.unknown(node, "is a set, whose order changes from run to run; sorted(...) has one")
        if isinstance(value, Unknown):
            return value
        self._reading.escape(value, node)
        return self._reading.unknown(node, "is not a list of constants")

    def read(self, name: str, scope: Scope) -> Any:
        """Return the value of a name."""
        home, value = self._reading.lookup(name, scope)
        if home is not None:
            return self._reading.doubt(home, name) or value
        if name == "__name__":
            module = self._reading.module
            return "__main__" if module is self._reading.main else module.source.path.stem
        if name == "__file__":
            return self._reading.module.source.file
        if hasattr(builtins, name):
            return Reference(f"builtins.{name}")
        return Unknown("is bound nowhere in this script")

    def attribute(self, owner: Any, name: str, node: ast.expr) -> Any:
        """Return the value of an attribute."""
        if isinstance(owner, Unknown):
            if owner.of and all(isinstance(each, CONTAINERS) and known.has_method(each, name) for each in owner.of):
                return Method(owner, name)
            return derived(owner, owner.of)
        if isinstance(owner, Reference):
            return self.reference(f"{owner.name}.{name}")
        if isinstance(owner, Module):
            return self._of_module(owner, name)
        if isinstance(owner, Instance | Class):
            return self._reading.classes.attribute(owner, name, node)
        if isinstance(owner, Super):
            return self._reading.classes.attribute_above(owner, name)
        if known.has_method(owner, name):
            return Method(owner, name)
        if field := known.attribute(owner, name):
            self._reading.used.add(id(owner))
            return field[0]
        self._reading.escape(owner, node)
        return Unknown("is not a name of skyward's", of=[owner])

    def reference(self, name: str) -> Any:
        """Return what a dotted name stands for: a file beside the script, a constant, or a `Reference` to the name."""
        if name in self._reading.loaded:
            return self._reading.loaded[name]
        name = known.full_name(name)
        if name.startswith(_ENVIRONMENT):
            return Unknown(_FROM_ENVIRONMENT)
        if name.startswith(known.BACK_DOORS):
            self._reading.everything = Unknown("leads to any name of the script", about=f"`{name}`")
        return known.CONSTANTS.get(name, Reference(name))

    def applied(self, node: ast.AST, apply: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return the result of an operation on values, which is unknown if one of them is."""
        if unknown := self._reading.unknown_in((args, kwargs)):
            return derived(unknown, holding(self._reading.inside(*args, *kwargs.values())))
        try:
            return apply(*args, **kwargs)
        except (ConfigError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
            return self._reading.wrong(node, error)

    def operated(self, node: ast.AST, kind: type[ast.operator], left: Any, right: Any) -> Any:
        """Return the result of a binary operator."""
        apply = OPERATORS.get(kind)
        left, right = self._operand(left, node), self._operand(right, node)
        if apply is None or not self._are_plain(node, left, right):
            return derived(first_unknown(left, right), holding(self._reading.inside(left, right)))
        if kind in (ast.Mult, ast.Add) and known.length(kind, left, right) > MOST:
            return Unknown("is too long")
        return self.applied(node, apply, left, right)

    def _operand(self, value: Any, node: ast.AST) -> Any:
        """Return a value as an operand."""
        found = self._reading.taken(value, node)
        if isinstance(value, Lazy) and not value.is_view and not isinstance(found, Unknown):
            return Unknown("is an iterator; a list, list(...), is followed")
        return found

    def _are_plain(self, node: ast.AST, *values: Any) -> bool:
        """Return whether operators on these values run no user code; otherwise reachable values may change."""
        for each in values:
            if not isinstance(each, _PLAIN):
                self._reading.use(each, node)
        return all(isinstance(each, _PLAIN) for each in values)

    def _constant(self, node: ast.Constant, _scope: Scope) -> Any:
        return node.value

    def _list(self, node: ast.List | ast.Tuple | ast.Set, scope: Scope) -> list[Any] | Unknown:
        values, unknown = self.values(node.elts, scope)
        return values if unknown is None else derived(unknown, holding((*values, *unknown.of)))

    def _tuple(self, node: ast.Tuple, scope: Scope) -> tuple[Any, ...] | Unknown:
        found = self._list(node, scope)
        return found if isinstance(found, Unknown) else tuple(found)

    def _set(self, node: ast.Set, scope: Scope) -> Any:
        found = self._list(node, scope)
        return found if isinstance(found, Unknown) else self.applied(node, set, found)

    def _dict(self, node: ast.Dict, scope: Scope) -> Any:
        values: dict[Any, Any] = {}
        others: list[Any] = []
        unknown = None
        for key, value in zip(node.keys, node.values, strict=True):
            name = None if key is None else self.value(key, scope)
            found = self.value(value, scope)
            if key is not None:
                unknown = unknown or (name if isinstance(name, Unknown) else None)
                others.append(found)
                found = {name: found} if isinstance(name, _PLAIN) and not isinstance(name, CONTAINERS) else Unknown("")
            if isinstance(found, dict):
                values |= found
            else:
                others += self._reading.inside(found)
                known_why = isinstance(found, Unknown) and found.why
                unknown = unknown or (found if known_why else Unknown("is not a constant"))
        return values if unknown is None else derived(unknown, holding((*values.values(), *others)))

    def _joinedstr(self, node: ast.JoinedStr, scope: Scope) -> Any:
        parts = [self.value(part, scope) for part in node.values]
        return self.applied(node, "".join, parts)

    def _formattedvalue(self, node: ast.FormattedValue, scope: Scope) -> Any:
        value = self._operand(self.value(node.value, scope), node)
        spec = "" if node.format_spec is None else self.value(node.format_spec, scope)
        if not self._are_plain(node, value, spec):
            return first_unknown(value)
        convert = _CONVERSIONS.get(node.conversion, lambda each: each)
        return self.applied(node, lambda one, other: format(convert(one), other), value, spec)

    def _binop(self, node: ast.BinOp, scope: Scope) -> Any:
        return self.operated(node, type(node.op), self.value(node.left, scope), self.value(node.right, scope))

    def _unaryop(self, node: ast.UnaryOp, scope: Scope) -> Any:
        value = self.value(node.operand, scope)
        if isinstance(node.op, ast.Not):
            answer = self.truth(value, node)
            return answer if isinstance(answer, Unknown) else not answer
        if not self._are_plain(node, value):
            return first_unknown(value)
        return self.applied(node, _SIGNS[type(node.op)], value)

    def truth(self, value: Any, node: ast.AST) -> bool | Unknown:
        """Return whether a value is true."""
        if isinstance(value, Unknown):
            self._reading.use(value, node)
            return value
        if isinstance(value, Instance | Reference):
            self._reading.escape(value, node)
            return Unknown("is not a constant", about=self._reading.about(node))
        if isinstance(value, Lazy) and not value.is_view:
            return True
        return bool(value)

    def _boolop(self, node: ast.BoolOp, scope: Scope) -> Any:
        is_and = isinstance(node.op, ast.And)
        value: Any = None
        for position, part in enumerate(node.values):
            value = self.value(part, scope)
            answer = self.truth(value, part)
            if isinstance(answer, Unknown):
                found = [value]
                rest = node.values[position + 1 :]  # may be evaluated or not
                self._reading.statements.perhaps(partial(self._evaluated, rest, scope, found))
                return derived(answer, found)
            if answer is not is_and:
                return value
        return value

    def _evaluated(self, nodes: list[ast.expr], scope: Scope, found: list[Any]) -> None:
        """Follow operands of which each may be the last, and append their values to `found`."""
        if nodes:
            found.append(self.value(nodes[0], scope))
            self._reading.statements.perhaps(lambda: self._evaluated(nodes[1:], scope, found))

    def _compare(self, node: ast.Compare, scope: Scope) -> Any:
        left = self._operand(self.value(node.left, scope), node)
        for sign, part in zip(node.ops, node.comparators, strict=True):
            right = self._operand(self.value(part, scope), node)
            if is_member(left) and is_member(right) and isinstance(sign, ast.Eq | ast.NotEq | ast.Is | ast.IsNot):
                is_equal = are_equal(left, right)
                if is_equal is None:
                    return Unknown("is not a constant")
                if is_equal is not isinstance(sign, ast.Eq | ast.Is):
                    return False
                left = right
                continue
            is_identity = isinstance(sign, ast.Is | ast.IsNot) and (left is None or right is None)
            is_known = not isinstance(left, Unknown) and not isinstance(right, Unknown)
            if not is_known or (not is_identity and not self._are_plain(node, left, right)):
                return first_unknown(left, right)
            if isinstance(sign, ast.Is | ast.IsNot) and type(left) is type(right) and not _is_sole(left):
                return Unknown("is about whether two equal values are one, which differs between versions of Python")
            answer = self.applied(node, _COMPARISONS[type(sign)], left, right)
            if answer is not True:
                return answer
            left = right
        return True

    def _ifexp(self, node: ast.IfExp, scope: Scope) -> Any:
        answer = self.truth(self.value(node.test, scope), node.test)
        if not isinstance(answer, Unknown):
            return self.value(node.body if answer else node.orelse, scope)
        values: list[Any] = []
        self._reading.statements.either(
            [lambda: values.append(self.value(node.body, scope)), lambda: values.append(self.value(node.orelse, scope))]
        )
        if same(*values):
            return values[0]
        is_image = any(isinstance(each, Image) or getattr(each, "is_image", False) for each in values)
        return self._reading.unknown(node, f"depends on what a run finds: {answer}", is_image=is_image, of=values)

    def _namedexpr(self, node: ast.NamedExpr, scope: Scope) -> Any:
        value = self.value(node.value, scope)
        while isinstance(scope.key, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) and scope.parent:
            scope = scope.parent
        self._reading.state.bind(scope, node.target.id, value, self._reading.place(node))
        return value

    def _subscript(self, node: ast.Subscript, scope: Scope) -> Any:
        owner, key = self._operand(self.value(node.value, scope), node), self.value(node.slice, scope)
        if not isinstance(owner, _PLAIN) or isinstance(key, Unknown):
            for each in (owner, key):
                self._reading.use(each, node)
            inner = self._reading.inside(owner)
            return derived(first_unknown(owner, key), [*([] if isinstance(key, slice) else inner), *holding(inner)])
        held: Any = owner  # its other items may be unknown
        return self.applied(node, lambda each: held[each], key)

    def _slice(self, node: ast.Slice, scope: Scope) -> Any:
        parts = [None if each is None else self.value(each, scope) for each in (node.lower, node.upper, node.step)]
        return next((each for each in parts if isinstance(each, Unknown)), slice(*parts))

    def _name(self, node: ast.Name, scope: Scope) -> Any:
        return self.read(node.id, scope)

    def _attribute(self, node: ast.Attribute, scope: Scope) -> Any:
        return self.attribute(self.called(node.value, scope), node.attr, node)

    def _of_module(self, owner: Module, name: str) -> Any:
        value = owner.scope.values.get(name, ABSENT)
        if value is ABSENT:
            return Unknown(f"is not bound at the top of {owner.source.path.name}", of=[owner])
        return self._reading.doubt(owner.scope, name) or value

    def _lambda(self, node: ast.Lambda, scope: Scope) -> Function:
        return self._reading.calls.function(node, scope, None)

    def _call(self, node: ast.Call, scope: Scope) -> Any:
        return self._reading.calls.call_of(node, scope)

    def _await(self, node: ast.Await, scope: Scope) -> Any:
        return self.value(node.value, scope)

    def _listcomp(self, node: ast.ListComp, scope: Scope) -> Any:
        return self._reading.comprehensions.items(node, scope)

    def _setcomp(self, node: ast.SetComp, scope: Scope) -> Any:
        found = self._reading.comprehensions.items(node, scope)
        return found if isinstance(found, Unknown) else self.applied(node, set, found)

    def _generatorexp(self, node: ast.GeneratorExp, scope: Scope) -> Any:
        return self._reading.comprehensions.generator(node, scope)

    def _dictcomp(self, node: ast.DictComp, scope: Scope) -> Any:
        return self._reading.comprehensions.dictionary(node, scope)

    def _opaque(self, node: ast.expr, scope: Scope) -> Unknown:
        """Return the result of an expression that is not followed (`yield`, templates); its parts escape."""
        for part in ast.iter_child_nodes(node):
            if isinstance(part, ast.expr):
                self._reading.escape(self.value(part, scope), node)
        return Unknown("is not a constant")


def _is_sole(value: Any) -> bool:
    """Return whether a value is identical to no other equal one, or is a singleton."""
    return isinstance(value, bool | list | dict | set | None)


def derived(unknown: Unknown, of: Iterable[Any]) -> Unknown:
    """Return an unknown value with the reason of another, which may be one of the values `of` or a part of one.

    For a new container that may hold values, pass `holding(values)`.
    """
    found = unknown.alike(is_image=unknown.is_image, of=of)
    found.is_harmless, found.is_pool = unknown.is_harmless and not found.of, unknown.is_pool and not found.of
    return found
