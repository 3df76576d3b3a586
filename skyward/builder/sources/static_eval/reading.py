"""Shared state of one reading: the file being read, the bindings, what escaped to code that is not followed."""

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

STEPS = 100_000  # of expressions and statements, two seconds or so: what takes longer is refused


class TooLongError(Exception):
    """A script that takes too many steps to be followed."""


class Volatile:
    """What code that nobody follows may change at any time.

    Attributes:
        place: of that code.
        sites: where the containers and instances are made that it may put there.
    """

    __slots__ = ("place", "sites")

    def __init__(self, place: str, sites: set[object]) -> None:
        self.place, self.sites = place, sites


class PoolCall:
    """A call that makes a pool.

    Attributes:
        node: the call, or the bare decorator.
        module: the file it stands in.
        name: of the pool class or function of Skyward's.
        arguments: what it is given.
        result: what whoever is told of it makes of it.
    """

    __slots__ = ("arguments", "module", "name", "node", "result")

    def __init__(self, node: ast.expr, module: Module, name: str, arguments: Arguments) -> None:
        self.node, self.module, self.name, self.arguments = node, module, name, arguments
        self.result: Any = None


class Frame:
    """A call that is being followed, or a module: what it may return, and its changes where it returns early."""

    __slots__ = ("depth", "early", "loops", "results")

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.results: list[Any] = []
        self.early: list[Changes] = []
        self.loops: list[Loop] = []


class Loop:
    """A loop that is being followed; `early`: changes where it may be left or go on, which only a run can tell."""

    __slots__ = ("depth", "early")

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.early: list[Changes] = []


class Reading:
    """One reading of a script.

    Attributes:
        module: the file whose code is being read.
        volatile: names and containers that code nobody follows may change at any time.
        stored: attributes that are assigned anywhere, with a place where they are.
        everything: why no name can be trusted any more, beside those of imports; None while they can.
        patched: why not even Skyward's own names can; None while they can.
        births: how many containers, scopes and instances were made.
        pools: the calls that make pools, in the order in which they were met.
        functions: all functions that were met.
        used: ids of the images that a pool or another image is made with.
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
        self.unsure = 0  # branches around what is being read that may run or not
        self.trying = 0  # blocks around it that catch exceptions
        self.quiet = 0  # calls of pools are not noted: not by another file's import, nor by what is read once more
        self._sites: dict[int, tuple[ast.AST, int]] = {}
        self._kept: list[Any] = []
        self._steps = 0
        self.births = 0

    def step(self) -> None:
        """Count one statement or expression.

        Raises:
            TooLongError: there were too many.
        """
        self._steps += 1
        if self._steps > STEPS:
            raise TooLongError

    @property
    def is_long(self) -> bool:
        """Whether so many steps are done that loops are no longer followed round by round."""
        return self._steps > STEPS // 2

    def note_stores(self, source: Source) -> None:
        """Note which attributes a file assigns, of whatever object."""
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
                self.stored.setdefault(node.attr, source.place(node.lineno))

    def made(self, call: PoolCall) -> None:
        """Note a call that makes a pool."""
        if not self.quiet:
            self.pools.append(call)
            self._on_pool(call, self)

    def place(self, node: ast.AST) -> str:
        """Where a node of the current file stands."""
        return self.module.source.place(getattr(node, "lineno", 1))

    def about(self, node: ast.AST) -> str:
        """An expression and where it stands."""
        return f"`{short(node)}` ({self.place(node)})"

    def where(self, node: ast.AST) -> str:
        """File and place of a node, for messages."""
        return f"{self.module.source.path}, {self.place(node)}"

    def wrong(self, node: ast.AST, error: Exception) -> Unknown:
        """An expression that fails in any run."""
        kind = "" if isinstance(error, ConfigError) else f"{type(error).__name__}: "
        reason = kind + str(error).removeprefix("Image: ")
        return Unknown("is wrong", mistake=f"{self.where(node)}: `{short(node)}`: {reason}")

    def unknown(self, node: ast.AST, why: str, **more: Any) -> Unknown:
        """A value that nobody knows, with the expression it belongs to."""
        return Unknown(why, about=self.about(node), **more)

    def born(self, holder: Any, node: ast.AST) -> None:
        """Note where a container, scope or instance is made."""
        if id(holder) not in self._sites:
            self.births += 1
            self._sites[id(holder)] = (node, self.births)
            self._kept.append(holder)

    def site(self, holder: Any) -> tuple[object, int]:
        """Where a holder was made (for a scope, its key), and as which of all in order."""
        node, moment = self._sites.get(id(holder), (None, 0))
        return (holder.key if isinstance(holder, Scope) else node), moment

    def doubt(self, holder: Any, name: str | None) -> Unknown | None:
        """Why what a name or container holds is not certain; None if it is."""
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
        """Why an iterator or a view gives something else by now; "" if it does not."""
        for source in lazy.containers():
            if doubt := self.doubt(source, None):
                return doubt.why
            if (place := self.state.changed_between(source, None, lazy.moment, self.state.count)) and not lazy.is_same(
                0
            ):
                return f"is made of something that is changed on {place}, before it is used"
        return next((doubt.why for each in lazy.sequence()[1:] if (doubt := self.doubt(each, None))), "")

    def spend(self, lazy: Lazy, node: ast.AST) -> Unknown | None:
        """Note that an iterator is used, or a view is; why what it gives is not certain, if it is not."""
        if doubt := self.doubt(lazy, None):
            return doubt
        for each in lazy.sequence():
            if not each.is_view:
                why = f"is an iterator that is used on {self.place(node)} already"
                self.state.lose(each, why, self.place(node), is_out=False)
        return None

    def taken(self, value: Any, node: ast.AST) -> Any:
        """A value as built-in code takes it: iterators and views themselves, if all that they give is known."""
        if not isinstance(value, Lazy):
            return value
        return self.spend(value, node) or self.unknown_in([*value]) or value.now()

    def iterated(self, value: Any, node: ast.expr) -> tuple[Any, list[Any] | Unknown]:
        """What a loop iterates over, and its items: of a list itself, to which the loop may add some."""
        if isinstance(value, dict):
            value = Lazy(dict.keys, [value], self.state.count)
        items = self.expressions.items(value, node)
        return value, value if isinstance(items, list) and type(value) is list else items

    def is_moved(self, value: Any, position: int, since: int) -> bool:
        """Whether only a run can tell what a loop over a value goes on with.

        Args:
            value: as `iterated` gives it.
            position: of the next item.
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
        """What a name may be bound to, or a container may hold, that others can change; doubted or not."""
        volatile = self.volatile.get((self.site(holder)[0], name or ""))
        made = self._made_at(volatile.sites) if volatile else ()
        return aliases((*self.state.held_since(holder, name, 0), *made))

    def _made_at(self, sites: set[object]) -> list[Any]:
        """The containers and instances that were made at some places."""
        return [each for each in self._kept if self.site(each)[0] in sites] if sites else []

    def sites_before(self, values: Iterable[Any], moment: int) -> set[object]:
        """Where those of some values, and of what they hold, were made that were there when so many had been."""
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
        """What values hold, or what they may be holds, that others can change."""
        found: list[Any] = []
        for each in aliases(values):
            is_doubted = isinstance(each, CONTAINERS) and self.doubt(each, None)
            found += self.held(each, None) if is_doubted else parts(each)
        return aliases(found)

    def expose(self, function: Function) -> None:
        """Note that code nobody follows may call a function from now on."""
        if function.exposed is None:
            function.exposed = self.state.count

    def use(self, value: Any, node: ast.AST) -> None:
        """Note that an operator, or a loop, was given a value: classes of the script say what that does."""
        todo = [value]
        while todo:
            each = todo.pop()
            if isinstance(each, tuple | Unknown | Within):
                todo += each.of if isinstance(each, Within) else parts(each)
            elif not isinstance(each, CONTAINERS):
                self.escape(each, node)

    def change(self, value: Unknown, given: Iterable[Any], node: ast.AST) -> None:
        """Note that a statement changes something unknown, and puts values into it."""
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
        """Note that code nobody follows has a value, and may change and call what can be."""
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
        """Something unknown that a value is or holds; None if all of it is certain."""
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
        """The scope that binds a name as seen from another, and its value; (None, ABSENT) where none does."""
        here: Scope | None = scope
        while here is not None:
            home = here.shared.get(name, here)
            if (here is scope or not here.is_class) and name in home.values:
                return home, home.values[name]
            here = here.parent
        return None, ABSENT


def short(node: ast.AST) -> str:
    """An expression's text, cut where it is long."""
    text = ast.unparse(node)
    return text if len(text) <= 60 else f"{text[:57]}..."


def loaded(target: ast.expr) -> ast.expr:
    """The target of an assignment as an expression that is read."""
    if isinstance(target, ast.Name):
        return ast.Name(target.id, ast.Load())
    if isinstance(target, ast.Attribute):
        return ast.Attribute(target.value, target.attr, ast.Load())
    assert isinstance(target, ast.Subscript)
    return ast.Subscript(target.value, target.slice, ast.Load())


def bound_error(handler: ast.ExceptHandler) -> ast.stmt:
    """What `except ... as name` does: it binds the name to something unknown."""
    made = ast.Assign([ast.Name(handler.name or "_", ast.Store())], ast.Yield(None))
    return ast.fix_missing_locations(ast.copy_location(made, handler))
