"""State of one reading: the current file, the bindings, and the values that code which is not followed may have."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from skyward.builder.sources.static_eval.known import POOLS
from skyward.builder.sources.static_eval.state import Changes, State
from skyward.builder.sources.static_eval.values import (
    ABSENT,
    CONTAINERS,
    Bound,
    Class,
    Function,
    Instance,
    Lazy,
    Module,
    Partial,
    Reference,
    Scope,
    Unknown,
    Within,
    aliases,
    parts,
)
from skyward.errors import ConfigError
from skyward.model.image import Image

if TYPE_CHECKING:
    from skyward.builder.sources.static_eval.calls import Arguments, Calls
    from skyward.builder.sources.static_eval.classes import Classes
    from skyward.builder.sources.static_eval.comprehensions import Comprehensions
    from skyward.builder.sources.static_eval.expressions import Expressions
    from skyward.builder.sources.static_eval.files import Imports, Source
    from skyward.builder.sources.static_eval.mutations import Assignments, Methods
    from skyward.builder.sources.static_eval.statements import Statements

STEPS = 100_000  # expressions and statements, about two seconds; longer scripts are refused


class TooLongError(Exception):
    """A script takes too many steps to be followed."""


class Volatile:
    """Something that code which is not followed may change at any time.

    Attributes:
        place: the place of that code.
        sites: the creation sites of the containers and instances that it may put there.
    """

    __slots__ = ("place", "sites")

    def __init__(self, place: str, sites: set[object]) -> None:
        self.place, self.sites = place, sites


class PoolCall:
    """A call that creates a pool.

    Attributes:
        node: the call, or the bare decorator.
        module: the file that contains it.
        name: full name of Skyward's pool class or function.
        arguments: its arguments.
        result: set by the `on_pool` callback.
    """

    __slots__ = ("arguments", "module", "name", "node", "result")

    def __init__(self, node: ast.expr, module: Module, name: str, arguments: Arguments) -> None:
        self.node, self.module, self.name, self.arguments = node, module, name, arguments
        self.result: Any = None


class Frame:
    """A call or module being followed: its possible results, and its changes at early returns."""

    __slots__ = ("depth", "early", "loops", "results")

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.results: list[Any] = []
        self.early: list[Changes] = []
        self.loops: list[Loop] = []


class Loop:
    """A loop being followed; `early` holds the changes at points where a run may leave or continue it."""

    __slots__ = ("depth", "early")

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.early: list[Changes] = []


class Reading:
    """One reading of a script.

    Attributes:
        module: the file whose code is being read.
        volatile: names and containers that code which is not followed may change at any time.
        stored: attributes that are assigned anywhere, each with one place.
        everything: why no name except imported ones can be trusted; None while they can.
        patched: why not even Skyward's own names can be trusted; None while they can.
        births: number of containers, scopes and instances created.
        pools: the calls that create pools, in the order they were found.
        functions: all functions found.
        used: ids of the images used by a pool or another image.
    """

    expressions: Expressions
    calls: Calls
    classes: Classes
    comprehensions: Comprehensions
    statements: Statements
    imports: Imports
    assignments: Assignments
    methods: Methods

    def __init__(
        self,
        main: Module,
        volatile: dict[tuple[object, str], Volatile],
        on_pool: Callable[[PoolCall, Reading], None],
    ) -> None:
        self._on_pool = on_pool
        self.main = self.module = main
        self.volatile = volatile
        self.state = State()
        self.loaded: dict[str, Module] = {}
        self.stored: dict[str, str] = {}
        self.everything: Unknown | None = None
        self.patched: Unknown | None = None
        self.pools: list[PoolCall] = []
        self.functions: dict[int, Function] = {}
        self.used: set[int] = set()
        self.frames = [Frame(0)]
        self.window: tuple[int, int] | None = None
        self.unsure = 0  # number of surrounding branches that may or may not run
        self.trying = 0  # number of surrounding blocks that catch exceptions
        self.quiet = 0  # while above 0, pools are not recorded: in imported files and repeated readings
        self._sites: dict[int, tuple[ast.AST, int]] = {}
        self._kept: list[Any] = []
        self._steps = 0
        self.births = 0

    def step(self) -> None:
        """Count one statement or expression.

        Raises:
            TooLongError: the limit is exceeded.
        """
        self._steps += 1
        if self._steps > STEPS:
            raise TooLongError

    @property
    def is_long(self) -> bool:
        """Whether so many steps were taken that loops are no longer followed iteration by iteration."""
        return self._steps > STEPS // 2

    def note_stores(self, source: Source) -> None:
        """Record which attributes a file assigns, on any object."""
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
                self.stored.setdefault(node.attr, source.place(node.lineno))

    def made(self, call: PoolCall) -> None:
        """Record a call that creates a pool."""
        if not self.quiet:
            self.pools.append(call)
            self._on_pool(call, self)

    def place(self, node: ast.AST) -> str:
        """Return the place of a node of the current file."""
        return self.module.source.place(getattr(node, "lineno", 1))

    def about(self, node: ast.AST) -> str:
        """Return the text of an expression and its place."""
        return f"`{short(node)}` ({self.place(node)})"

    def where(self, node: ast.AST) -> str:
        """Return file and place of a node, for messages."""
        return f"{self.module.source.path}, {self.place(node)}"

    def wrong(self, node: ast.AST, error: Exception) -> Unknown:
        """Return the unknown value of an expression that fails in any run."""
        kind = "" if isinstance(error, ConfigError) else f"{type(error).__name__}: "
        reason = kind + str(error).removeprefix("Image: ")
        return Unknown("is wrong", mistake=f"{self.where(node)}: `{short(node)}`: {reason}")

    def unknown(self, node: ast.AST, why: str, **more: Any) -> Unknown:
        """Return an unknown value with the expression it belongs to."""
        return Unknown(why, about=self.about(node), **more)

    def born(self, holder: Any, node: ast.AST) -> None:
        """Record where a container, scope or instance is created."""
        if id(holder) not in self._sites:
            self.births += 1
            self._sites[id(holder)] = (node, self.births)
            self._kept.append(holder)

    def site(self, holder: Any) -> tuple[object, int]:
        """Return where a holder was created (for a scope: its key), and its position in the order of creation."""
        node, moment = self._sites.get(id(holder), (None, 0))
        return (holder.key if isinstance(holder, Scope) else node), moment

    def doubt(self, holder: Any, name: str | None) -> Unknown | None:
        """Return why the content of a name or container is uncertain; None if it is certain."""
        held = holder.values.get(name or "") if isinstance(holder, Scope) else None
        if self.everything is not None and not isinstance(held, Reference):
            return self.everything
        if volatile := self.volatile.get((self.site(holder)[0], name or "")):
            why, is_out = f"is changed on {volatile.place}, by code that may run at any time", True
        elif name is None and (lost := self.state.lost(holder)):
            why, is_out = lost.why, lost.is_out
        elif isinstance(holder, Lazy) and (stale := self._stale(holder)):
            why, is_out = stale, False
        elif self.window and (place := self.state.changed_between(holder, name, *self.window)):
            why, is_out = f"is changed on {place}, after the function that uses it could be called", False
        else:
            return None
        found = Unknown(why, of=[holder] if name is None else self.held(holder, name))
        found.whole, found.is_out = holder if name is None else None, is_out
        return found

    def _stale(self, lazy: Lazy) -> str:
        """Return why an iterator or view would now yield something else; "" if it would not."""
        for source in lazy.containers():
            if doubt := self.doubt(source, None):
                return doubt.why
            if (place := self.state.changed_between(source, None, lazy.moment, self.state.count)) and not lazy.is_same(
                0
            ):
                return f"is made of something that is changed on {place}, before it is used"
        return next((doubt.why for each in lazy.sequence()[1:] if (doubt := self.doubt(each, None))), "")

    def spend(self, lazy: Lazy, node: ast.AST) -> Unknown | None:
        """Record the use of an iterator or view; return the reason if its items are uncertain."""
        if doubt := self.doubt(lazy, None):
            return doubt
        for each in lazy.sequence():
            if not each.is_view:
                why = f"is an iterator that is used on {self.place(node)} already"
                self.state.lose(each, why, self.place(node), is_out=False)
        return None

    def taken(self, value: Any, node: ast.AST) -> Any:
        """Convert a value for built-in code: iterators and views are created if all of their items are known."""
        if not isinstance(value, Lazy):
            return value
        return self.spend(value, node) or self.unknown_in([*value]) or value.now()

    def iterated(self, value: Any, node: ast.expr) -> tuple[Any, list[Any] | Unknown]:
        """Return the iterable of a loop, and its items; for a list, the list itself, as the loop may append to it."""
        if isinstance(value, dict):
            value = Lazy(dict.keys, [value], self.state.count)
        items = self.expressions.items(value, node)
        return value, value if isinstance(items, list) and type(value) is list else items

    def is_moved(self, value: Any, position: int, since: int) -> bool:
        """Return whether the next item of a loop over a value is known only at run time.

        Args:
            value: the value returned by `iterated`.
            position: position of the next item.
            since: number of changes when the loop began.
        """
        if not isinstance(value, Lazy):
            return isinstance(value, CONTAINERS) and self.doubt(value, None) is not None

        def is_changed(each: Any) -> bool:
            return bool(self.state.changed_between(each, None, since, self.state.count))

        containers = value.containers()
        return (
            any(is_changed(each) for each in value.sequence() if not each.is_view)
            or any(self.doubt(each, None) for each in containers)
            or (any(map(is_changed, containers)) and not value.is_same(position))
        )

    def held(self, holder: Any, name: str | None) -> tuple[Any, ...]:
        """Return the mutable values that a name may be bound to or a container may hold, certain or not."""
        volatile = self.volatile.get((self.site(holder)[0], name or ""))
        made = self._made_at(volatile.sites) if volatile else ()
        return aliases((*self.state.held_since(holder, name, 0), *made))

    def _made_at(self, sites: set[object]) -> list[Any]:
        """Return the containers and instances created at the given sites."""
        return [each for each in self._kept if self.site(each)[0] in sites] if sites else []

    def sites_before(self, values: Iterable[Any], moment: int) -> set[object]:
        """Return the creation sites of the values, and of values they hold, that existed at a moment."""
        found, todo, seen = set[object](), [*values], set[int]()
        while todo:
            each = todo.pop()
            if id(each) in seen:
                continue
            seen.add(id(each))
            site, made = self.site(each)
            if site is not None and made <= moment and not isinstance(each, Scope):
                found.add(site)
            else:
                todo += parts(each)
        return found

    def inside(self, *values: Any) -> tuple[Any, ...]:
        """Return the mutable values held by values or by what they may be."""
        found: list[Any] = []
        for each in aliases(values):
            is_doubted = isinstance(each, CONTAINERS) and self.doubt(each, None)
            found += self.held(each, None) if is_doubted else parts(each)
        return aliases(found)

    def expose(self, function: Function) -> None:
        """Record that code which is not followed may call a function from now on."""
        if function.exposed is None:
            function.exposed = self.state.count

    def use(self, value: Any, node: ast.AST) -> None:
        """Record that an operator or loop uses a value, which runs code if its class belongs to the script."""
        todo = [value]
        while todo:
            each = todo.pop()
            if isinstance(each, tuple | Unknown | Within):
                todo += each.of if isinstance(each, Within) else parts(each)
            elif not isinstance(each, CONTAINERS):
                self.escape(each, node)

    def change(self, value: Unknown, given: Iterable[Any], node: ast.AST) -> None:
        """Record that a statement changes an unknown value and puts values into it."""
        todo = [*value.of]
        is_within = value.whole is not None and not value.is_out
        if not is_within:
            self.escape([*given], node)
        while todo:
            each = todo.pop()
            if isinstance(each, tuple | Within):
                todo += each.of if isinstance(each, Within) else aliases(each)
            elif isinstance(each, CONTAINERS):
                why = f"may be changed by `{short(node)}` ({self.place(node)})"
                self.state.lose(each, why, self.place(node), given if is_within else (), is_out=False)
            else:
                self.escape(each, node)

    def escape(self, value: Any, node: ast.AST, why: str = "") -> None:
        """Record that code which is not followed has a value, and may change or call all it can reach."""
        if value is None or isinstance(value, str | int | float | Reference | Image):
            return
        why = why or f"may be changed by `{short(node)}` ({self.place(node)})"
        todo, seen = [value], set()
        while todo:
            each = todo.pop()
            if id(each) in seen:
                continue
            seen.add(id(each))
            if isinstance(each, (*CONTAINERS, Instance, Class)):
                if self.doubt(each, None):
                    todo += self.held(each, None)
                self.state.lose(each, why, self.place(node))
            if isinstance(each, Instance):
                self.state.lose(each.cls, why, self.place(node))
            elif isinstance(each, Function):
                self.expose(each)
            elif isinstance(each, Module):
                self.everything = self.unknown(node, "may change any name")
            elif isinstance(each, Partial) and isinstance(each.called, Reference) and each.called.name in POOLS:
                self.calls.pool_of(each)
            todo += parts(each)

    def unknown_in(self, value: Any) -> Unknown | None:
        """Return an unknown value that a value is or holds; None if all of it is certain."""
        todo, seen = [value], set()
        while todo:
            each = todo.pop()
            if id(each) in seen:
                continue
            seen.add(id(each))
            if isinstance(each, Unknown):
                return each
            if isinstance(each, Reference):
                return Unknown(
                    f"is or holds `{each.name.removeprefix('builtins.')}`, which is made outside of the script"
                )
            if isinstance(each, (Function, Class, Instance, Bound, Module)):
                return Unknown("is or holds a function, class or instance of the script")
            if isinstance(each, CONTAINERS) and (doubt := self.doubt(each, None)):
                return Unknown(doubt.why, about=doubt.about)
            if isinstance(each, Lazy):
                return Unknown("is or holds an iterator or a view; a list, list(...), is followed")
            if isinstance(each, dict):
                todo += [*each.values(), *each]
            elif isinstance(each, list | set | tuple):
                todo += each
        return None

    def lookup(self, name: str, scope: Scope) -> tuple[Scope | None, Any]:
        """Return the scope that binds a name as seen from another scope, and its value; (None, ABSENT) if none does."""
        here: Scope | None = scope
        while here is not None:
            home = here.shared.get(name, here)
            if (here is scope or not here.is_class) and name in home.values:
                return home, home.values[name]
            here = here.parent
        return None, ABSENT


def short(node: ast.AST) -> str:
    """Return the text of an expression, shortened to 60 characters."""
    text = ast.unparse(node)
    return text if len(text) <= 60 else f"{text[:57]}..."


def loaded(target: ast.expr) -> ast.expr:
    """Convert an assignment target to an expression that reads it."""
    if isinstance(target, ast.Name):
        return ast.Name(target.id, ast.Load())
    if isinstance(target, ast.Attribute):
        return ast.Attribute(target.value, target.attr, ast.Load())
    assert isinstance(target, ast.Subscript)
    return ast.Subscript(target.value, target.slice, ast.Load())


def bound_error(handler: ast.ExceptHandler) -> ast.stmt:
    """Return the statement for `except ... as name`, which binds the name to an unknown value."""
    made = ast.Assign([ast.Name(handler.name or "_", ast.Store())], ast.Yield(None))
    return ast.fix_missing_locations(ast.copy_location(made, handler))
