"""Bindings and container contents during a reading, with changes that can be undone and joined.

A branch that may or may not run is read while its changes are recorded; they are undone afterwards, and what the
possible paths through the script do not agree on becomes unknown.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from typing import Any, NamedTuple

from skyward.builder.sources.static_eval.values import ABSENT, Class, Instance, Scope, Unknown, aliases, same

Key = tuple[int, str | None]


class _Content(NamedTuple):
    """The content of a container (None for an instance or class), and why it is unknown, if it is."""

    held: Any
    lost: Unknown | None


class Change:
    """A changed name or container: its content before and after, and the places of the changes.

    `held`: mutable values it held in between.
    """

    __slots__ = ("after", "before", "held", "holder", "name", "places")

    def __init__(self, holder: Any, name: str | None, before: Any) -> None:
        self.holder, self.name, self.before, self.after = holder, name, before, before
        self.places: dict[str, None] = {}
        self.held: tuple[Any, ...] = ()

    @property
    def every(self) -> tuple[Any, ...]:
        """All mutable values it held before, in between and after."""
        return aliases((*self.held, *_held(self.before), *_held(self.after)))


Changes = dict[Key, Change]


class State:
    """The names of all scopes and the contents of all containers.

    Attributes:
        count: number of changes so far, which serves as a moment of the reading.
        history: for each name and container the moments of its changes, with their places and the mutable values held
            before. The first binding of a name is not listed.
    """

    def __init__(self) -> None:
        self.count = 0
        self.history: dict[Key, list[tuple[int, str, tuple[Any, ...]]]] = {}
        self._open: list[Changes] = []
        self._lost: dict[int, Unknown] = {}
        self._alive: dict[int, Any] = {}  # keeps objects alive, so that their ids are not reused

    def bind(self, scope: Scope, name: str, value: Any, place: str) -> None:
        """Bind a name."""
        scope = scope.shared.get(name, scope)
        self._note(scope, name, place, is_first=scope.values.get(name, ABSENT) is ABSENT)
        scope.values[name] = value

    def touch(self, container: Any, place: str, *, is_growing: bool = False) -> None:
        """Record that a container is about to change; `is_growing`: it keeps all of its items."""
        self._note(container, None, place, is_growing=is_growing)

    def lose(self, holder: Any, why: str, place: str, given: Iterable[Any] = (), *, is_out: bool = True) -> None:
        """Record that the content of a container, instance or class is unknown from now on.

        Args:
            holder: the container, instance or class.
            why: as in `Unknown`.
            place: the place where that happens.
            given: values it may hold besides the current ones.
            is_out: whether code that is not followed has it.
        """
        lost = self._lost.get(id(holder))
        of = aliases((*(lost.of if lost else ()), *given))
        if lost is None or len(of) > len(lost.of) or (is_out and not lost.is_out):
            self._note(holder, None, place, is_growing=True)
            found = Unknown(lost.why if lost else why, of=of)
            found.is_out = is_out or (lost is not None and lost.is_out)
            self._lost[id(holder)] = found

    def lost(self, holder: Any) -> Unknown | None:
        """Return why the content of a holder is unknown; None if it is known."""
        return self._lost.get(id(holder))

    def begin(self) -> None:
        """Start to record changes that may be undone."""
        self._open.append({})

    def end(self) -> Changes:
        """Undo and return the changes since the last `begin`."""
        changes = self._captured(self._open[-1])
        self._open.pop()
        for change in changes.values():
            self._restore(change, change.before)
        return changes

    @property
    def depth(self) -> int:
        """Number of nested recordings."""
        return len(self._open)

    def since(self, depth: int) -> Changes:
        """Return the changes in effect since `begin` was called at that depth."""
        found: Changes = {}
        for changes in reversed(self._open[depth:]):
            for key, change in self._captured(changes).items():
                copy = Change(change.holder, change.name, change.before)
                copy.after, copy.places, copy.held = change.after, change.places, change.held
                if key in found:
                    copy.places, copy.held = copy.places | found[key].places, (*copy.held, *found[key].every)
                found[key] = copy
        return found

    def apply(self, changes: Changes) -> None:
        """Redo changes that were undone."""
        for change in changes.values():
            for place in change.places or ("",):
                self._note(change.holder, change.name, place, change.every, is_first=change.before is ABSENT)
            self._restore(change, change.after)

    def join(self, ways: list[Changes], *, agree: bool = True) -> None:
        """Continue after one of several possible paths. What they do not agree on becomes unknown.

        Args:
            ways: the changes of each path.
            agree: whether contents they agree on stay known; else all changes become unknown.
        """
        every = {key: change for way in ways for key, change in way.items()}
        for key, change in every.items():
            now = self._content(change.holder, change.name)
            contents = [way[key].after if key in way else now for way in ways]
            places = dict.fromkeys(place for way in ways if key in way for place in way[key].places)
            held = [each for way in ways if key in way for each in way[key].every]
            for place in places or ("",):
                self._note(change.holder, change.name, place, held, is_first=now is ABSENT)
            if not _falls_through(change):  # if it is unbound, a run that reads it ends there
                contents = [each for each in contents if each is not ABSENT] or [ABSENT]
            if agree and _agree(contents, change.name is not None):
                self._restore(change, contents[0])
                continue
            where = " and ".join(filter(None, places)) or "a line that may run or not"
            may_be = [*held, *(each for content in contents for each in _held(content))]
            unknown = Unknown(f"is changed on {where}, and only a run can tell whether, or how often", of=may_be)
            unknown.is_out = any(isinstance(each, _Content) and each.lost and each.lost.is_out for each in contents)
            self._restore(change, unknown if change.name is not None else _Content(contents[0][0], unknown))

    def changed_between(self, holder: Any, name: str | None, start: int, end: int) -> str:
        """Return where a holder was changed between two moments; "" if it was not."""
        every = self.history.get((id(holder), name), ())
        return next((place for moment, place, _ in every if start < moment <= end), "")

    def held_since(self, holder: Any, name: str | None, start: int) -> tuple[Any, ...]:
        """Return the mutable values that a holder has held since a moment, including the current ones."""
        every = self.history.get((id(holder), name), ())
        held = [each for moment, _, before in every if moment > start for each in before]
        return aliases((*held, *_held(self._content(holder, name))))

    def _note(
        self,
        holder: Any,
        name: str | None,
        place: str,
        held: Iterable[Any] = (),
        *,
        is_first: bool = False,
        is_growing: bool = False,
    ) -> None:
        self.count += 1
        key = (id(holder), name)
        self._alive[id(holder)] = holder
        before = () if is_growing else aliases((*held, *_held(self._content(holder, name))))
        if not is_first:
            self.history.setdefault(key, []).append((self.count, place, before))
        if self._open:
            changes = self._open[-1]
            if key not in changes:
                changes[key] = Change(holder, name, self._content(holder, name))
            if before:
                changes[key].held = aliases((*changes[key].held, *before))
            if place:
                changes[key].places[place] = None

    def _captured(self, changes: Changes) -> Changes:
        for change in changes.values():
            change.after = self._content(change.holder, change.name)
        return changes

    def _content(self, holder: Any, name: str | None) -> Any:
        if name is not None:
            return holder.values.get(name, ABSENT)
        held = None if isinstance(holder, Instance | Class) else holder.copy()
        return _Content(held, self._lost.get(id(holder)))

    def _restore(self, change: Change, content: Any) -> None:
        holder = change.holder
        if change.name is not None:
            if content is ABSENT:
                holder.values.pop(change.name, None)
            else:
                holder.values[change.name] = content
            return
        held, lost = content
        if isinstance(holder, list):
            holder[:] = held
        elif held is not None:
            holder.clear()
            holder.update(held)
        if lost is None:
            self._lost.pop(id(holder), None)
        else:
            self._lost[id(holder)] = lost


def _falls_through(change: Change) -> bool:
    """Return whether an unbound name is found further out: from a class body, or as a built-in."""
    return isinstance(change.holder, Scope) and (change.holder.is_class or hasattr(builtins, str(change.name)))


def _held(content: Any) -> list[Any]:
    """Return the content of a name or container as a list, including the values it may hold if it is unknown."""
    if not (isinstance(content, _Content)):
        return [content]
    held, lost = content
    return [*([] if held is None else [*held, *held.values()] if isinstance(held, dict) else held), lost]


def _agree(contents: list[Any], is_name: bool) -> bool:
    """Return whether a name or container has the same content after all paths."""
    return all((same if is_name else _same_content)(each, contents[0]) for each in contents[1:])


def _same_content(one: _Content, other: _Content) -> bool:
    (held, lost), (also, gone) = one, other
    if lost is not gone:
        return False
    if isinstance(held, list):
        return len(held) == len(also) and all(map(same, held, also))
    if isinstance(held, dict):
        return [*held] == [*also] and all(same(held[key], also[key]) for key in held)
    return bool(held == also)
