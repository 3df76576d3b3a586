"""The state of a reading: bindings and contents of containers, with changes that can be undone and joined.

A branch that may run or not is read with its changes noted; they are taken back, and what the ways through the script
do not agree on becomes unknown.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from typing import Any, NamedTuple

from skyward.builder.sources.static_eval.values import ABSENT, Class, Instance, Scope, Unknown, aliases, same

Key = tuple[int, str | None]


class _Content(NamedTuple):
    """What a container holds (None for an instance or class), and why nobody knows that, where nobody does."""

    held: Any
    lost: Unknown | None


class Change:
    """One name or container that was changed: what it held before, holds after, and where that was done.

    `held`: what it held in between that others can change.
    """

    __slots__ = ("after", "before", "held", "holder", "name", "places")

    def __init__(self, holder: Any, name: str | None, before: Any) -> None:
        self.holder, self.name, self.before, self.after = holder, name, before, before
        self.places: dict[str, None] = {}
        self.held: tuple[Any, ...] = ()

    @property
    def every(self) -> tuple[Any, ...]:
        """All that it held, before, in between and after, that others can change."""
        return aliases((*self.held, *_held(self.before), *_held(self.after)))


Changes = dict[Key, Change]


class State:
    """The names of all scopes and the content of all containers.

    Attributes:
        count: changes so far; a moment of the reading.
        history: for each name and container the moments of its changes, with their places and what it held before that
            others can change. The first binding of a name is none.
    """

    def __init__(self) -> None:
        self.count = 0
        self.history: dict[Key, list[tuple[int, str, tuple[Any, ...]]]] = {}
        self._open: list[Changes] = []
        self._lost: dict[int, Unknown] = {}
        self._alive: dict[int, Any] = {}  # an id stays that of one object

    def bind(self, scope: Scope, name: str, value: Any, place: str) -> None:
        """Bind a name."""
        scope = scope.shared.get(name, scope)
        self._note(scope, name, place, is_first=scope.values.get(name, ABSENT) is ABSENT)
        scope.values[name] = value

    def touch(self, container: Any, place: str, *, is_growing: bool = False) -> None:
        """Note that a container is about to be changed; `is_growing`: all that it holds stays in it."""
        self._note(container, None, place, is_growing=is_growing)

    def lose(self, holder: Any, why: str, place: str, given: Iterable[Any] = (), *, is_out: bool = True) -> None:
        """Note that nobody knows what a container, instance or class holds from now on.

        Args:
            holder: it.
            why: as in `Unknown`.
            place: where that happens.
            given: what it may hold besides what it holds now.
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
        """Why nobody knows what it holds; None if it is known."""
        return self._lost.get(id(holder))

    def begin(self) -> None:
        """Start to note changes that may be taken back."""
        self._open.append({})

    def end(self) -> Changes:
        """Take back the changes since the last `begin`."""
        changes = self._captured(self._open[-1])
        self._open.pop()
        for change in changes.values():
            self._restore(change, change.before)
        return changes

    @property
    def depth(self) -> int:
        """How many times changes are being noted."""
        return len(self._open)

    def since(self, depth: int) -> Changes:
        """The changes that stand since `begin` was called at that depth."""
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
        """Make changes again that were taken back."""
        for change in changes.values():
            for place in change.places or ("",):
                self._note(change.holder, change.name, place, change.every, is_first=change.before is ABSENT)
            self._restore(change, change.after)

    def join(self, ways: list[Changes], *, agree: bool = True) -> None:
        """Go on after one of several ways, nobody knows which. What they do not agree on becomes unknown.

        Args:
            ways: the changes of each.
            agree: whether what they do agree on holds; else all of it is unknown.
        """
        every = {key: change for way in ways for key, change in way.items()}
        for key, change in every.items():
            now = self._content(change.holder, change.name)
            contents = [way[key].after if key in way else now for way in ways]
            places = dict.fromkeys(place for way in ways if key in way for place in way[key].places)
            held = [each for way in ways if key in way for each in way[key].every]
            for place in places or ("",):
                self._note(change.holder, change.name, place, held, is_first=now is ABSENT)
            if not _falls_through(change):  # where it is not bound, a run that reads it ends there
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
        """Where something was changed between two moments; "" if it was not."""
        every = self.history.get((id(holder), name), ())
        return next((place for moment, place, _ in every if start < moment <= end), "")

    def held_since(self, holder: Any, name: str | None, start: int) -> tuple[Any, ...]:
        """What something held since a moment, and holds, that others can change."""
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
    """Whether a name that is not bound here is found further out: from a class's body, or as a built-in one."""
    return isinstance(change.holder, Scope) and (change.holder.is_class or hasattr(builtins, str(change.name)))


def _held(content: Any) -> list[Any]:
    """What a name is bound to, or a container holds, as a list; with what is known of it where that is lost."""
    if not (isinstance(content, _Content)):
        return [content]
    held, lost = content
    return [*([] if held is None else [*held, *held.values()] if isinstance(held, dict) else held), lost]


def _agree(contents: list[Any], is_name: bool) -> bool:
    """Whether a name, or a container, holds the same after all ways."""
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
