"""Dataclasses of a script: the fields that the decorator finds, and the instances that `__init__` makes."""

from __future__ import annotations

import ast
from typing import Any

from skyward.builder.sources.static_eval.reading import Reading
from skyward.builder.sources.static_eval.values import (
    ABSENT,
    CONTAINERS,
    Bound,
    Class,
    Instance,
    Partial,
    Reference,
    Scope,
    Unknown,
)

FIELD = "dataclasses.field"
_GIVEN = ("compare", "default", "default_factory", "hash", "metadata", "repr")  # of `field`, for the same reason
_OPTIONS = (
    "eq",
    "frozen",
    "kw_only",
    "order",
    "repr",
    "slots",
    "unsafe_hash",
)  # change nothing of what `__init__` does


def is_followed(options: dict[str, Any]) -> bool:
    """Whether a dataclass with these parameters of the decorator is followed."""
    return all(name in _OPTIONS for name in options)


def find_fields(cls: Class) -> None:
    """Note the fields of a class and what they are if nothing is given, as the decorator finds them.

    Of a class that makes fields in branches, or some of which `__init__` does not take as usual, they stay unknown.
    """
    fields: dict[str, Any] = {}
    for base in reversed(cls.lineage[1:]):
        fields |= base.fields or {}
    if any(isinstance(each, ast.If | ast.For | ast.While | ast.With | ast.Try | ast.Match) for each in cls.node.body):
        return
    for each in cls.node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            name, kind = each.target.id, ast.unparse(each.annotation)
            default = cls.scope.values.get(name, ABSENT)
            is_plain = not is_field(default) or (not default.args and all(key in _GIVEN for key in default.kwargs))
            if "InitVar" in kind or "KW_ONLY" in kind or not is_plain:
                return
            if "ClassVar" not in kind:
                fields[name] = default
    cls.fields = fields


def is_record(cls: Class) -> bool:
    """Whether the instances of a class are those of a dataclass whose fields are known."""
    made = ("__init__", "__new__")
    return (
        cls.fields is not None
        and not cls.pool
        and cls.is_known
        and cls.is_plain
        and not any(name in each.scope.values for each in cls.lineage for name in made)
        and all(each.fields is not None for each in cls.lineage if each.dataclass)
    )


def make(cls: Class, args: list[Any], kwargs: dict[str, Any], node: ast.expr, reading: Reading) -> Instance | None:
    """An instance with its fields; None where what is given fits no field."""
    fields = cls.fields or {}
    given = dict(zip(fields, args, strict=False)) | kwargs
    is_by_name = any(each.is_by_name for each in cls.lineage)
    if len(args) > (0 if is_by_name else len(fields)) or any(name not in fields for name in given):
        return None
    instance = Instance(cls, Scope(("instance", node)))
    reading.born(instance, node)
    reading.born(instance.scope, node)
    for name, default in fields.items():
        value = given[name] if name in given else _default(default, node, reading)
        if isinstance(value, CONTAINERS):
            reading.born(value, node)
        reading.state.bind(instance.scope, name, value, reading.place(node))
    after = reading.expressions.attribute(instance, "__post_init__", node)
    if isinstance(after, Bound):
        reading.calls.follow(after.function, [instance], {}, node)
    return instance


def is_field(value: Any) -> bool:
    """Whether it is what `dataclasses.field` gives."""
    return isinstance(value, Partial) and value.called == Reference(FIELD)


def _default(value: Any, node: ast.expr, reading: Reading) -> Any:
    """What a field is for which nothing is given."""
    if value is ABSENT:
        return Unknown("is a field without a default")
    if not is_field(value):
        return value
    if "default_factory" in value.kwargs:
        return reading.calls.apply(value.kwargs["default_factory"], [], node)
    return value.kwargs.get("default", Unknown("is a field without a default"))
