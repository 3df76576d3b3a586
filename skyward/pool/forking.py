"""Open pools in a process that was forked from the one that opened them: they belong to the parent alone.

A forked child has copies of the parent's sockets and call numbers, and none of its threads. Two processes that write to
one socket mix their calls, so the child lets go of them at once.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Forked(Protocol):
    """What is to let go in the child."""

    def let_go(self) -> None:
        """Close this process's descriptors, without a word to the other side; called in a child, right after fork."""
        ...


_owned: WeakSet[Forked] = WeakSet()


def belongs_to_this_process(pool: Forked) -> None:
    """Have a pool let go in every process that is forked from this one."""
    _owned.add(pool)


def _after_fork() -> None:
    for pool in list(_owned):
        pool.let_go()
    _owned.clear()


os.register_at_fork(after_in_child=_after_fork)
