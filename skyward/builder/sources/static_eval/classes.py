"""Evaluation of classes: their definitions, attributes and instances; enumerations and dataclasses."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from skyward.builder.sources.static_eval.known import POOL_CLASSES
from skyward.builder.sources.static_eval.reading import Reading
from skyward.builder.sources.static_eval.values import (
    ABSENT,
    CONTAINERS,
    MADE,
    Bound,
    Class,
    Function,
    Instance,
    Method,
    Partial,
    Reference,
    Scope,
    Super,
    Unknown,
    same,
)

if TYPE_CHECKING:
    from skyward.builder.sources.static_eval.calls import Arguments

_FOLLOWED = ("__init__", "__enter__", "__exit__")  # methods that are followed where they are called implicitly
_KINDS = {
    f"builtins.{kind.__name__}": kind
    for kind in (bool, bytes, dict, float, frozenset, int, list, set, str, tuple, type(None))
}
FIELD = "dataclasses.field"
# parameters of `dataclass` and of `field` that do not change the behaviour of `__init__`
_OPTIONS = ("eq", "frozen", "kw_only", "order", "repr", "slots", "unsafe_hash")
_GIVEN = ("compare", "default", "default_factory", "hash", "metadata", "repr")


class Classes:
    """Evaluator of classes.

    Attributes:
        creations: the calls that created instances of pool classes, by instance id.
    """

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self.creations: dict[int, ast.expr] = {}

    def define(self, node: ast.ClassDef, scope: Scope) -> None:
        """Follow a class statement."""
        reading = self._reading
        decorators = [(each, reading.expressions.value(each, scope)) for each in node.decorator_list]
        bases = [reading.expressions.called(each, scope) for each in node.bases]
        keywords = {each.arg: reading.expressions.value(each.value, scope) for each in node.keywords}
        meta = keywords.pop("metaclass", None)
        mine = Scope(None, scope, is_class=True)
        mine.key = cls = _class_of(node, [*bases, *keywords.values()], mine)
        cls.meta = None if isinstance(meta, Reference) and meta.name == "abc.ABCMeta" else meta
        reading.born(cls, node)
        reading.born(mine, node)
        reading.statements.run(node.body, mine)
        mine.key = node
        for name, value in mine.values.items():
            implicit = name.startswith("__") and name not in _FOLLOWED  # operators and statements call these
            if isinstance(value, Function) and (implicit or not (cls.is_known or cls.pool)):
                reading.expose(value)
        if cls.is_enum:
            _make_members(cls)
        found: Any = cls
        for expression, decorator in reversed(decorators):
            found = reading.calls.decorate(decorator, found, expression)
        reading.state.bind(scope, node.name, found, reading.place(node))

    def attribute(self, owner: Instance | Class, name: str, node: ast.expr) -> Any:
        """Return the value of an attribute of a class or instance."""
        reading = self._reading
        if lost := reading.doubt(owner, None):
            return lost
        cls = owner.cls if isinstance(owner, Instance) else owner
        if not cls.is_plain:
            reading.escape(owner, node)
            return Unknown(f"is decided by code of {cls.name} when the script runs", of=[owner])
        if isinstance(owner, Instance) and name in owner.scope.values:
            return reading.doubt(owner.scope, name) or owner.scope.values[name]
        for each in cls.lineage:
            if name in each.scope.values:
                value = reading.doubt(each, None) or reading.doubt(each.scope, name) or each.scope.values[name]
                return self._bound(owner, value, node)
            if any(isinstance(base, Unknown | Reference) for base in each.bases):
                break
        return Unknown(f"is set when the script runs, or by what {cls.name} extends", of=[owner])

    def _bound(self, owner: Any, value: Any, node: ast.expr) -> Any:
        """Bind a class attribute to its owner, as attribute access does: functions receive the instance."""
        if _is_field(value):
            return value.kwargs.get("default", Unknown("is a field of a dataclass"))
        if not isinstance(value, Function) or value.kind == "static":
            return value
        cls = owner.cls if isinstance(owner, Instance) else owner
        if value.kind == "class":
            return Bound(value, cls)
        if isinstance(owner, Class):
            return value
        if value.kind == "property":
            return self._reading.calls.follow(value, [owner], {}, node)
        return Bound(value, owner)

    def attribute_above(self, owner: Super, name: str) -> Any:
        """Return the value of an attribute of `super()`."""
        cls = owner.instance.cls if isinstance(owner.instance, Instance) else owner.owner
        lineage = cls.lineage
        for each in lineage[lineage.index(owner.owner) + 1 :] if owner.owner in lineage else ():
            if name in each.scope.values:
                value = each.scope.values[name]
                return Bound(value, owner.instance) if isinstance(value, Function) else value
        if name == "__init__" and cls.pool:
            return Method(owner, "__init__")
        is_harmless = all(base is None for base in cls.bases)
        return Unknown(
            "is of what the class extends", is_harmless=is_harmless, of=[] if is_harmless else [owner.instance]
        )

    def instance(self, cls: Class, arguments: Arguments, node: ast.expr) -> Any:
        """Create an instance of a class of the script."""
        reading = self._reading
        if arguments.rest is None and _is_record(cls) and (record := self._record(cls, arguments, node)):
            return record
        instance = Instance(cls, Scope(("instance", node)))
        reading.born(instance, node)
        reading.born(instance.scope, node)
        makers = [each.scope.values[name] for each in cls.lineage for name in ("__init__", "__new__", "__post_init__")
                  if name in each.scope.values]  # fmt: skip
        if cls.pool:
            self.creations[id(instance)] = node
            if not makers:
                reading.calls.pool(cls.pool, arguments, node)
        elif cls.is_enum or not cls.is_known or cls.dataclass or any(each.dataclass for each in cls.lineage):
            reading.escape([*arguments.all(), cls], node, f"is given to {cls.name}({reading.place(node)})")
            return Unknown(MADE)
        inits = [each for each in makers if isinstance(each, Function) and each.name == "__init__"]
        if len(inits) < len(makers):
            reading.escape([*arguments.all(), instance], node)
            return Unknown(MADE)
        if inits:
            reading.calls.call(Bound(inits[0], instance), arguments, node)
        return instance

    def _record(self, cls: Class, arguments: Arguments, node: ast.expr) -> Instance | None:
        """Create an instance of a dataclass with its fields; None if the arguments do not fit them."""
        reading, args, kwargs = self._reading, arguments.args, arguments.kwargs
        fields = cls.fields or {}
        given = dict(zip(fields, args, strict=False)) | kwargs
        is_by_name = any(each.is_by_name for each in cls.lineage)
        if len(args) > (0 if is_by_name else len(fields)) or any(name not in fields for name in given):
            return None
        instance = Instance(cls, Scope(("instance", node)))
        reading.born(instance, node)
        reading.born(instance.scope, node)
        for name, default in fields.items():
            value = given[name] if name in given else self._default(default, node)
            if isinstance(value, CONTAINERS):
                reading.born(value, node)
            reading.state.bind(instance.scope, name, value, reading.place(node))
        after = reading.expressions.attribute(instance, "__post_init__", node)
        if isinstance(after, Bound):
            reading.calls.follow(after.function, [instance], {}, node)
        return instance

    def _default(self, value: Any, node: ast.expr) -> Any:
        """Return the default value of a field."""
        if value is ABSENT:
            return Unknown("is a field without a default")
        if not _is_field(value):
            return value
        if "default_factory" in value.kwargs:
            return self._reading.calls.apply(value.kwargs["default_factory"], [], node)
        return value.kwargs.get("default", Unknown("is a field without a default"))


def _class_of(node: ast.ClassDef, bases: list[Any], scope: Scope) -> Class:
    """Create a class from its bases."""
    pools = [each.pool for each in bases if isinstance(each, Class)]
    pools += [each.name for each in bases if isinstance(each, Reference) and each.name in POOL_CLASSES]
    is_enum = any(map(_is_enum, bases))
    kept = [each for each in bases if isinstance(each, Class)] if is_enum else [_base(each) for each in bases]
    cls = Class(node, kept, next(filter(None, pools), ""), scope)
    cls.is_enum, cls.is_mixed = is_enum, is_enum and not all(map(_is_pure, bases))
    return cls


def _base(value: Any) -> Any:
    """Return a base class in the form stored in `Class.bases`: None if it has no relevant attributes of its own."""
    plain = ("builtins.object", "abc.ABC", "typing.Protocol", *POOL_CLASSES)
    return None if isinstance(value, Reference) and value.name in plain else value


def is_followed(options: dict[str, Any]) -> bool:
    """Return whether a dataclass with these decorator parameters is followed."""
    return all(name in _OPTIONS for name in options)


def find_fields(cls: Class) -> None:
    """Record the fields of a class and their defaults, as the decorator finds them.

    The fields stay unknown if some are defined in branches, or if `__init__` does not take some of them as usual.
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
            is_plain = not _is_field(default) or (not default.args and all(key in _GIVEN for key in default.kwargs))
            if "InitVar" in kind or "KW_ONLY" in kind or not is_plain:
                return
            if "ClassVar" not in kind:
                fields[name] = default
    cls.fields = fields


def _is_record(cls: Class) -> bool:
    """Return whether instances of a class are those of a dataclass with known fields."""
    made = ("__init__", "__new__")
    return (
        cls.fields is not None
        and not cls.pool
        and cls.is_known
        and cls.is_plain
        and not any(name in each.scope.values for each in cls.lineage for name in made)
        and all(each.fields is not None for each in cls.lineage if each.dataclass)
    )


def _is_field(value: Any) -> bool:
    """Return whether a value is the result of `dataclasses.field`."""
    return isinstance(value, Partial) and value.called == Reference(FIELD)


def _is_enum(base: Any) -> bool:
    """Return whether subclasses of a base have enum members; members of `enum.StrEnum` are treated as their texts."""
    names = ("enum.Enum", "enum.IntEnum", "enum.Flag", "enum.IntFlag", "enum.ReprEnum")
    return base.is_enum if isinstance(base, Class) else isinstance(base, Reference) and base.name in names


def _is_pure(base: Any) -> bool:
    """Return whether enum members of subclasses of a base are equal to nothing else."""
    names = ("enum.Enum", "enum.Flag")
    return not base.is_mixed if isinstance(base, Class) else isinstance(base, Reference) and base.name in names


def _make_members(cls: Class) -> None:
    """Replace the attributes of an enumeration by its members; equal values share one member."""
    members: list[Instance] = []
    is_usual = not any(name in cls.scope.values for name in ("__init__", "__new__", "name", "value"))
    for name, value in cls.scope.values.items():
        if name.startswith("_") or isinstance(value, Function):
            continue
        if not is_usual:
            value = Unknown("is made by code of the enumeration")
        member = next((each for each in members if _is_equal(each.scope.values["value"], value)), None)
        if member is None:
            member = Instance(cls, Scope(("member", cls.node, name)))
            member.scope.values.update(name=name, value=value)
            members.append(member)
        cls.scope.values[name] = member


def _is_equal(one: Any, other: Any) -> bool:
    """Return whether two member values belong to the same member."""
    is_number = isinstance(one, int | float) and isinstance(other, int | float)
    return bool(one == other) if is_number else same(one, other)


def is_member(value: Any) -> bool:
    """Return whether a value is a member of an enumeration."""
    return isinstance(value, Instance) and value.cls.is_enum and "__eq__" not in value.cls.scope.values


def are_equal(one: Instance, other: Instance) -> bool | None:
    """Return whether two members are equal and identical; None for texts or numbers of two enumerations."""
    is_mixed = one.cls is not other.cls and (one.cls.is_mixed or other.cls.is_mixed)
    return None if is_mixed else one is other


def is_instance(value: Any, of: Any) -> bool | Unknown:
    """Return the result of `isinstance`."""
    classes = of if isinstance(of, tuple) else (of,)
    # a metaclass may define its own instance check
    is_usual = all(isinstance(each, Class) and not any(base.meta for base in each.lineage) for each in classes)
    if isinstance(value, Instance) and value.cls.is_known and is_usual:
        return any(each in value.cls.lineage for each in classes)
    kinds = [_KINDS.get(each.name) if isinstance(each, Reference) else None for each in classes]
    if type(value) not in _KINDS.values() or None in kinds:
        return Unknown(MADE, is_harmless=True)
    return isinstance(value, tuple(kind for kind in kinds if kind))
