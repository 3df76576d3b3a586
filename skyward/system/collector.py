"""When Python collects garbage, which runs destructors and callbacks of the program in whatever thread it happens."""

from __future__ import annotations

import gc


class _Uncollected:
    """Context manager: the garbage collector is off, since it would run destructors of the program's in this thread."""

    def __init__(self) -> None:
        self._users: list[None] = []  # not a number: appending and popping need no lock
        self._collects = False

    def __enter__(self) -> None:
        self._users.append(None)
        if gc.isenabled():
            self._collects = True
            gc.disable()

    def __exit__(self, *_: object) -> None:
        self._users.pop()
        if self._collects and not self._users:
            self._collects = False
            gc.enable()


class _Collected:
    """Context manager that undoes `uncollected`, which its thread is in."""

    def __enter__(self) -> None:
        uncollected.__exit__()

    def __exit__(self, *_: object) -> None:
        uncollected.__enter__()


uncollected, collected = _Uncollected(), _Collected()
