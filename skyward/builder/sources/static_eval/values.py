"""Values during static evaluation: Python's own for constants and containers, and these classes for all others.

They are plain classes, because defining a dataclass takes longer than reading most scripts.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, ItemsView, Iterable, KeysView, ValuesView
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skyward.builder.sources.static_eval.files import Source

CONTAINERS = (list, dict, set)
VIEWS = (KeysView, ValuesView, ItemsView)


class Absent:
    """The content of an unbound name."""


ABSENT = Absent()
MADE = "is made when the script runs"  # the most common reason


class Unknown:
    """A value that is known only when the script runs.

    Attributes:
        why: the predicate of a sentence about it, such as "is made when the script runs".
        about: the expression it belongs to and its place; "" until it is read somewhere.
        mistake: a complete sentence, if the expression is wrong in any run.
        is_image: whether it would be an image if all were known.
        is_harmless: whether calls of it or its attributes leave their arguments unchanged.
        is_pool: whether it is a recorded pool; as a decorator it returns its function unchanged.
        of: values of the script that it may be.
        whole: the container that it certainly is, with unknown content; None for anything else.
        is_out: whether code that is not followed also has that container.
    """

    __slots__ = ("about", "is_harmless", "is_image", "is_out", "is_pool", "mistake", "of", "whole", "why")

    def __init__(
        self,
        why: str,
        *,
        about: str = "",
        mistake: str = "",
        is_image: bool = False,
        is_harmless: bool = False,
        of: Iterable[Any] = (),
    ) -> None:
        self.why, self.about, self.mistake, self.of = why, about, mistake, aliases(of)
        self.is_image, self.is_harmless = is_image, is_harmless
        self.is_pool = self.is_out = False
        self.whole: Any = None

    def __str__(self) -> str:
        return self.mistake or f"{self.about} {self.why}"

    def alike(self, about: str = "", *, is_image: bool = False, of: Iterable[Any] = ()) -> Unknown:
        """Return another unknown value with the same reason."""
        return Unknown(self.why, about=about or self.about, mistake=self.mistake, is_image=is_image, of=of)


class Reference:
    """A dotted name reached through imports, such as `skyward.Image`."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reference) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)


class Scope:
    """The names of a module, a function call, a class or an instance.

    Attributes:
        key: identifies the scope of the same code across readings of the script.
        parent: the scope in which unbound names are looked up.
        shared: names declared `global` or `nonlocal`, with the scope that has them.
        is_class: whether nested functions do not see its names.
    """

    __slots__ = ("is_class", "key", "parent", "shared", "values")

    def __init__(self, key: object, parent: Scope | None = None, *, is_class: bool = False) -> None:
        self.key, self.parent, self.is_class = key, parent, is_class
        self.values: dict[str, Any] = {}
        self.shared: dict[str, Scope] = {}

    def module(self) -> Scope:
        """Return the outermost scope."""
        return self if self.parent is None else self.parent.module()


class Module:
    """A file being read: the script itself, or a file beside it that it imports."""

    __slots__ = ("scope", "source")

    def __init__(self, source: Source) -> None:
        self.source = source
        self.scope = Scope(str(source.path))


class Function:
    """A function or lambda of the script.

    Attributes:
        node: its definition.
        scope: the scope of its definition.
        defaults: default values by parameter name.
        owner: the class of a method.
        kind: "function", or "property", "static" or "class" as set by a decorator.
        exposed: number of the change from which on unknown code may call it; None if it cannot.
        is_called: whether a call of it was followed.
    """

    __slots__ = ("defaults", "exposed", "is_called", "kind", "module", "name", "node", "owner", "scope")

    def __init__(
        self,
        node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda,
        scope: Scope,
        module: Module,
        defaults: dict[str, Any],
        owner: Class | None,
    ) -> None:
        self.node, self.scope, self.module, self.defaults, self.owner = node, scope, module, defaults, owner
        self.name = "lambda" if isinstance(node, ast.Lambda) else node.name
        self.kind = "function"
        self.exposed: int | None = None
        self.is_called = False


class Class:
    """A class of the script.

    Attributes:
        pool: full name of Skyward's pool class that it extends; else "".
        dataclass: whether it is a dataclass.
        fields: the fields of a dataclass by parameter of its `__init__`, with their defaults; None if unknown.
        is_by_name: whether `__init__` takes them only by name.
        is_enum: whether its attributes are members of an enumeration.
        is_mixed: whether the members are also texts or numbers.
        meta: its metaclass; None for the usual ones.
    """

    __slots__ = (
        "bases",
        "dataclass",
        "fields",
        "is_by_name",
        "is_enum",
        "is_mixed",
        "meta",
        "name",
        "node",
        "pool",
        "scope",
    )

    def __init__(self, node: ast.ClassDef, bases: list[Any], pool: str, scope: Scope) -> None:
        self.node, self.name, self.bases, self.pool, self.scope = node, node.name, bases, pool, scope
        self.dataclass = self.is_by_name = self.is_enum = self.is_mixed = False
        self.meta: Any = None
        self.fields: dict[str, Any] | None = None

    @property
    def lineage(self) -> list[Class]:
        """The class and its bases in the order of attribute lookup (C3)."""
        found, bases = [self], [base for base in self.bases if isinstance(base, Class)]
        orders = [*(base.lineage for base in bases), bases]
        while orders := [order for order in orders if order]:
            heads = (order[0] for order in orders if not any(order[0] in each[1:] for each in orders))
            found.append(next(heads, orders[0][0]))
            orders = [[each for each in order if each is not found[-1]] for order in orders]
        return found

    @property
    def is_plain(self) -> bool:
        """Whether its attributes are exactly what is assigned to them."""
        return not any(each.meta or any(hook in each.scope.values for hook in _HOOKS) for each in self.lineage)

    @property
    def is_known(self) -> bool:
        """Whether all of its bases are followed."""
        return all(isinstance(base, Class) and base.is_known for base in self.bases if base is not None)


# methods that control the attributes of a class or instance
_HOOKS = ("__getattribute__", "__setattr__", "__init_subclass__", "__set_name__", "__slots__")


class Instance:
    """An instance of a class of the script."""

    __slots__ = ("cls", "scope")

    def __init__(self, cls: Class, scope: Scope) -> None:
        self.cls, self.scope = cls, scope


class Bound:
    """A function of the script bound to its first argument."""

    __slots__ = ("function", "owner")

    def __init__(self, function: Function, owner: Any) -> None:
        self.function, self.owner = function, owner


class Method:
    """A method of a known value: a string, a container or an image."""

    __slots__ = ("name", "owner")

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name = owner, name


class Super:
    """`super()` in a method."""

    __slots__ = ("instance", "owner")

    def __init__(self, owner: Class, instance: Any) -> None:
        self.owner, self.instance = owner, instance


class Partial:
    """`functools.partial(...)`."""

    __slots__ = ("args", "called", "kwargs", "node")

    def __init__(self, called: Any, args: list[Any], kwargs: dict[str, Any], node: ast.expr) -> None:
        self.called, self.args, self.kwargs, self.node = called, args, kwargs, node


class Within:
    """A new value that is known only at run time and may hold others at any depth."""

    __slots__ = ("of",)

    def __init__(self, of: Iterable[Any]) -> None:
        self.of = tuple(of)


class Lazy(list[Any]):
    """The items of an iterator or dictionary view, valid while its sources do not change.

    An iterator is passed to one loop or call. From then on its content is unknown, as for any container that code which
    is not followed has: later users may find nothing in it, or a remainder.

    Args:
        make: creates it from the current state of its sources.
        sources: the values it is made from.
        moment: number of changes at its creation.
    """

    __slots__ = ("is_view", "make", "moment", "sources")

    def __init__(self, make: Callable[..., Any], sources: list[Any], moment: int) -> None:
        self.make, self.sources, self.moment = make, sources, moment
        made = self.now()
        self.is_view = isinstance(made, VIEWS)
        super().__init__(made)

    def now(self) -> Any:
        """Create the iterator or view itself."""
        return self.make(*[each.now() if isinstance(each, Lazy) else each for each in self.sources])

    def is_same(self, position: int) -> bool:
        """Return whether creating it now would give the same items from a position on, and equally many."""
        try:
            now = [*self.now()]
        except (TypeError, ValueError, LookupError, RuntimeError):
            return False
        return len(now) == len(self) and all(map(same, now[position:], self[position:]))

    def sequence(self) -> list[Lazy]:
        """Return it and the iterators it is made from, at any depth."""
        return [self, *(inner for each in self.sources if isinstance(each, Lazy) for inner in each.sequence())]

    def containers(self) -> list[Any]:
        """Return the lists and dictionaries it is made from, at any depth."""
        every = [source for each in self.sequence() for source in each.sources]
        return [each for each in every if isinstance(each, CONTAINERS) and not isinstance(each, Lazy)]


def first_unknown(*values: Any) -> Unknown:
    """Return the first unknown value; if there is none, an unknown for their result."""
    return next((each for each in values if isinstance(each, Unknown)), Unknown("is not a constant"))


def parts(value: Any) -> list[Any]:
    """Return the values that code with access to a value can reach directly."""
    if isinstance(value, dict):
        return [*value, *value.values()]
    if isinstance(value, Lazy):
        return [*value, *value.sequence()[1:]]
    if isinstance(value, list | set | tuple):
        return [*value]
    if isinstance(value, Unknown):
        return [*value.of]
    if isinstance(value, Within):
        return [*value.of, value]
    if isinstance(value, Bound):
        return [value.function, value.owner]
    if isinstance(value, Method):
        return [value.owner]
    if isinstance(value, Instance):
        held = [scope.values for scope in (value.scope, *(each.scope for each in value.cls.lineage))]
        return [each for values in held for name, each in values.items() if name != "__init__"]
    if isinstance(value, Class):
        return [*value.scope.values.values(), *value.bases]
    if isinstance(value, Partial):
        return [value.called, *value.args, *value.kwargs.values()]
    return []


def aliases(values: Iterable[Any]) -> tuple[Any, ...]:
    """Return the given values that can change or be called, including those that unknown values may be."""
    found: dict[int, Any] = {}
    within: dict[int, Any] = {}
    todo = [each for each in values if type(each) is not str]
    while todo:
        each = todo.pop()
        if isinstance(each, Unknown):
            todo += each.of
        elif isinstance(each, Within):
            within |= {id(one): one for one in each.of}
        elif isinstance(each, _MUTABLE) or (isinstance(each, tuple) and aliases(each)):
            found[id(each)] = each
    return (*found.values(), Within(within.values())) if within else tuple(found.values())


def holding(values: Iterable[Any]) -> tuple[Any, ...]:
    """Return a new value that may hold the given ones, in the form of `Unknown.of`."""
    found = aliases(values)
    held = {id(one): one for each in found for one in (each.of if isinstance(each, Within) else (each,))}
    return (Within(held.values()),) if held else ()


_MUTABLE = (*CONTAINERS, Instance, Class, Function, Bound, Method, Partial, Module)


def same(one: Any, other: Any) -> bool:
    """Return whether two values are interchangeable: one object, or equal immutable values."""
    if one is other:
        return True
    if type(one) is not type(other) or isinstance(one, (*CONTAINERS, Unknown)):
        return False
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)
