"""Ctrl-C that never strikes in the middle of the pool's bookkeeping.

While the main thread is inside `uninterrupted`, SIGINT is remembered and delivered on the way out; everywhere else it
acts as the user's program set it up.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

from skyward.system import threading


class _Uninterrupted:
    """Context manager; a handful of instructions when entered, since every call enters it."""

    def __init__(self) -> None:
        self._main = threading.main_thread().ident
        self._depth = 0
        self._pending = False
        self._users = 0
        self._previous: signal._HANDLER = None

    def install(self) -> None:
        """Take over SIGINT for as long as a pool is open; only the main thread can, and only it needs to."""
        if threading.get_ident() != self._main:
            return
        if self._users == 0:
            self._previous = signal.getsignal(signal.SIGINT)
            if callable(self._previous):
                signal.signal(signal.SIGINT, self._on_signal)
        self._users += 1

    def uninstall(self) -> None:
        """Give SIGINT back, unless somebody else has taken it meanwhile."""
        if threading.get_ident() != self._main or self._users == 0:
            return
        self._users -= 1
        if self._users == 0 and signal.getsignal(signal.SIGINT) == self._on_signal:
            signal.signal(signal.SIGINT, self._previous)

    def __enter__(self) -> None:
        if threading.get_ident() == self._main:
            self._depth += 1

    def __exit__(self, *_: object) -> None:
        if threading.get_ident() == self._main:
            self._depth -= 1
            if self._pending and not self._depth:
                self._pending = False
                self._pass_on(None)

    def _on_signal(self, _number: int, frame: FrameType | None) -> None:
        if self._depth:
            self._pending = True
        else:
            self._pass_on(frame)

    def _pass_on(self, frame: FrameType | None) -> None:
        if callable(self._previous):
            self._previous(signal.SIGINT, frame)

    def _forget(self) -> None:
        """In a forked process: the thread that forked is the main one, and no pool is open."""
        self._main = threading.get_ident()
        self._depth, self._pending = 0, False


uninterrupted = _Uninterrupted()
os.register_at_fork(after_in_child=uninterrupted._forget)
