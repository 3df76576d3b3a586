"""Where calls run: the main thread, or one of several threads; and how a running call is interrupted.

An interrupt is raised inside the call it was meant for and nowhere else: it names the call, and is dropped when that
call is no longer running. While a slot is shielded (it writes to the socket), the interrupt waits.
"""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from skyward.system import threading

IDLE = 0  # no call has this id
_REPEAT_S = 0.05


class Interrupted(KeyboardInterrupt):
    """Raised in a call that the client cancelled or that ran out of time."""


class Slot:
    """A thread that runs one call at a time.

    Attributes:
        running: id of the call that runs, `IDLE` without. Set by the slot's own thread alone.
        thread: identifier of that thread.
    """

    def __init__(self) -> None:
        self.running = IDLE
        self.thread = 0
        self._target = IDLE
        self._shielded = 0

    def attach(self) -> None:
        """Make the calling thread this slot's thread."""
        self.thread = threading.get_ident()

    def is_current(self) -> bool:
        """Whether the caller runs in this slot's thread."""
        return self.thread == threading.get_ident()

    def interrupt(self, call: int) -> bool:
        """Raise `Interrupted` in this call if it runs here; returns whether it did run here."""
        if call == IDLE or self.running != call:
            return False
        self._target = call
        self._signal()
        return True

    def _signal(self) -> None:
        raise NotImplementedError

    @contextmanager
    def shield(self) -> Iterator[None]:
        """Hold interrupts back while the block runs; one that came meanwhile is raised at its end."""
        self._shielded += 1
        try:
            yield
        finally:
            self._shielded -= 1
        self.deliver()

    def deliver(self) -> None:
        """Raise the pending interrupt if it is meant for what runs now; called in the slot's own thread."""
        if self._shielded or self._target == IDLE:
            return
        due, self._target = self._target == self.running, IDLE
        if due:
            raise Interrupted("the call was interrupted by the client")


class MainSlot(Slot):
    """The main thread, interrupted by a signal, so that sleeping system calls end as well."""

    def __init__(self) -> None:
        super().__init__()
        signal.signal(signal.SIGINT, self._on_signal)

    def _signal(self) -> None:
        """Repeated until it is heeded: a signal that comes just before a system call begins wakes nobody."""
        signal.pthread_kill(self.thread, signal.SIGINT)
        again = threading.Timer(_REPEAT_S, self._insist)
        again.daemon = True
        again.start()

    def _insist(self) -> None:
        if self._target != IDLE and self._target == self.running:
            self._signal()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.deliver()


class ThreadSlot(Slot):
    """Another thread. The interrupt reaches it at its next Python instruction: a blocking C call ends first."""

    def _signal(self) -> None:
        if not self._shielded:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.thread), ctypes.py_object(Interrupted))
