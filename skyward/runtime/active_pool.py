"""The active pool: the open pool that `>> sky` refers to, by the context (thread or asyncio task) that opened it."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Final
from weakref import ref

from skyward.errors import NoActivePoolError
from skyward.model.call import CallsOnly, Target
from skyward.model.instance import place_of_worker


class ActivePool(CallsOnly):
    """The type of `sky.sky`: as a target it stands for the active pool, like the module `skyward` itself.

    The active pool is the one opened last in this context (thread or asyncio task) and still open; in a context that
    has opened none, it is the only open pool.
    """

    def __repr__(self) -> str:
        return "skyward.sky"

    def __reduce__(self) -> str:
        return "sky"


sky: Final = ActivePool()

# weak references: a pool to which no other references exist closes itself
_opened: ContextVar[tuple[ref[Target], ...]] = ContextVar("skyward_opened_pools", default=())  # in this context
_open: list[ref[Target]] = []  # the open pools of all contexts; the lists of contexts may also have closed ones


def enter_target(target: Target) -> Callable[[], None]:
    """Register a pool as open and opened in this context; the returned function, called anywhere, undoes that."""
    entered = ref(target)
    _open.append(entered)
    _opened.set((*(each for each in _opened.get() if each in _open), entered))
    return lambda: _open.remove(entered)


def active_target(asker: Callable[[], str], remedy: str) -> Target:
    """Return the pool opened last in this context and still open; if the context has opened none, the only open pool.

    Args:
        asker: returns the name of what needs a pool; starts the sentence of an error.
        remedy: what to do if no pool is open.

    Raises:
        NoActivePoolError: no pool is open, or other contexts (threads, asyncio tasks) have opened several.
    """
    candidates = _still_open(_opened.get())[-1:] or _still_open(tuple(_open))
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise NoActivePoolError(
            f"{asker()} means the active pool, and this thread or task has opened none, while others have opened "
            f"{len(candidates)}: {', '.join(map(repr, candidates))}. Name the pool that is meant."
        )
    place = place_of_worker()
    if place is not None:
        raise NoActivePoolError(
            f"{asker()} means the active pool, and no pool is open in this function, which runs on node {place.node} "
            "of one. Nodes do not send calls to their own pool: return what comes next, and let the client send it."
        )
    raise NoActivePoolError(f"{asker()} means the active pool, but none is open. {remedy}")


def _still_open(targets: tuple[ref[Target], ...]) -> tuple[Target, ...]:
    entered = tuple(_open)
    return tuple(target for each in targets if each in entered and (target := each()) is not None)
