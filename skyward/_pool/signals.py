"""SIGINT, SIGTERM and SIGHUP while pools are open: deferred while a pool changes its state, never lost.

While the main thread is inside `uninterrupted`, a signal is remembered and acted on on the way out. What is done then
is what the program set up: its own handler is called. Where it has none for SIGTERM or SIGHUP, they are raised as
`Terminated`, so that the program leaves its pools as it does after Ctrl-C. What is ignored stays ignored.
"""

from __future__ import annotations

import os
import signal
import sys
from _signal import getsignal  # type: ignore[import-not-found]  # without the enum of `signal`: 4 us of each call
from collections.abc import Callable
from functools import partial
from inspect import CO_GENERATOR
from types import FrameType

from skyward.system import process_end, threading, time
from skyward.wire.exceptions import Stopping

SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)  # in the order in which deferred ones are acted on
_ONCE_S = 0.5  # a terminal that is closed and its shell both send SIGHUP: within this time they count as one
_AGAIN_S = 0.001
_Handler = Callable[[int, FrameType | None], object] | int | signal.Handlers | None


class Terminated(SystemExit, Stopping):
    """The process is to end because of a signal; the exit status is 128 and the signal's number, as shells have it."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.name = signal.Signals(number).name


class _Uninterrupted:
    """Context manager; a handful of instructions when entered, since every call enters it."""

    def __init__(self) -> None:
        self._main = threading.main_thread().ident
        self._depth = 0
        self._pending: dict[int, _Handler] = {}  # what came, with what the program had set up for it
        self._users = 0
        self._previous: dict[int, _Handler] = {}
        self._raised_at = -_ONCE_S
        self._handler = self._on_signal  # one object: a bound method is a new one each time
        self._diverted: Callable[[], None] | None = None
        self._masks: dict[int, set[int | signal.Signals]] = {}  # of threads that fork now: what they blocked before
        self.terminated: Terminated | None = None
        self.on_deferred: Callable[[bool], object] = _nothing

    def install(self) -> bool:
        """Take over the signals for as long as a pool is open; False outside the main thread, which alone can.

        Whoever was told True calls `uninstall` in the end.
        """
        if threading.get_ident() != self._main:
            return False
        if self._users == 0:
            self.terminated = None
        self._users += 1
        for number in SIGNALS:
            self._take(number)
        return True

    def uninstall(self) -> None:
        """Give the signals back, unless somebody else has taken them meanwhile; in another thread, with the next."""
        self._users -= 1
        if self._users == 0 and threading.get_ident() == self._main:
            self._give_back()

    def divert(self, handler: Callable[[], None] | None) -> None:
        """Let Ctrl-C call this and nothing else, in the main thread; None ends that."""
        self._diverted = handler

    def __enter__(self) -> None:
        if threading.get_ident() == self._main:
            if not self._depth and self._users and getsignal(signal.SIGINT) is not self._handler:
                self._take(signal.SIGINT)  # a notebook sets its handler anew for each cell
            self._depth += 1

    def __exit__(self, *_: object) -> None:
        if threading.get_ident() == self._main:
            self._depth -= 1
            if self._pending and not self._depth:
                pending, self._pending = self._pending, {}
                for number in SIGNALS:
                    if number in pending:
                        self._pass_on(number, pending[number], None)

    def _take(self, number: int) -> None:
        previous = signal.getsignal(number)
        is_ours = previous is self._handler
        if not is_ours and (callable(previous) or (previous == signal.SIG_DFL and number != signal.SIGINT)):
            self._previous[number] = previous
            signal.signal(number, self._handler)

    def _give_back(self) -> None:
        for number, previous in self._previous.items():
            if signal.getsignal(number) is self._handler:
                signal.signal(number, previous)
        self._previous.clear()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        __tracebackhide__ = True  # IPython and pytest leave such frames out of tracebacks
        if self._diverted is not None and number == signal.SIGINT:
            self._diverted()
        elif self._depth:
            is_first = not self._pending
            self._pending[number] = self._previous.get(number)
            self.on_deferred(is_first)
        elif self._users:
            self._pass_on(number, self._previous.get(number), frame)
        else:
            self._give_back()  # the last pool was closed in another thread
            signal.raise_signal(number)

    def _pass_on(self, number: int, previous: _Handler, frame: FrameType | None) -> None:
        __tracebackhide__ = True
        if _is_ignored(sys._getframe()):
            process_end.soon(partial(self._send_again, number))
        elif callable(previous):
            previous(number, frame)
            _wake_event_loop()
        elif time.monotonic() - self._raised_at >= _ONCE_S:
            self._raised_at = time.monotonic()
            self.terminated = Terminated(number)
            raise self.terminated

    def _send_again(self, number: int) -> None:
        """Let a signal come once more, to the main thread (in another one)."""
        time.sleep(_AGAIN_S)
        if self._main is not None:
            signal.pthread_kill(self._main, number)

    def _before_fork(self) -> None:
        """Let signals wait for the end of the fork: the handler of this process would drop one in the child."""
        if self._users:
            self._masks[threading.get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)

    def _after_fork(self) -> None:
        mask = self._masks.pop(threading.get_ident(), None)
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _forget(self) -> None:
        """In a forked process: the thread that forked is the main one, and no pool is open."""
        self._main = threading.get_ident()
        self._depth, self._users, self._raised_at = 0, 0, -_ONCE_S
        self._pending, self._diverted, self.terminated = {}, None, None
        self._give_back()
        self._after_fork()  # a signal that came meanwhile finds what the program had set up
        self._masks.clear()  # of other threads, which are the parent's


def _is_ignored(frame: FrameType | None) -> bool:
    """Whether Python ignores what is raised now: in a destructor of ours, or a generator that ends as it is dropped.

    Both take little time; destructors of the program's own may block, and are interrupted as ever.
    """
    is_closing = isinstance(sys.exc_info()[1], GeneratorExit)
    while frame is not None:
        code = frame.f_code
        ignores = code.co_name == "__del__" or (is_closing and code.co_flags & CO_GENERATOR)
        if ignores and str(frame.f_globals.get("__name__")).startswith("skyward."):
            return True
        frame = frame.f_back
    return False


def _wake_event_loop() -> None:
    """Let this thread's event loop look for what a handler has given it to do; while it waits, it does not.

    A notebook's handler cancels a cell that awaits something that way, and is else heard when the wait is over.
    """
    asyncio = sys.modules.get("asyncio")
    try:
        if asyncio is not None:
            asyncio.get_running_loop().call_soon_threadsafe(_nothing, False)
    except RuntimeError:
        pass  # no loop runs here


def _nothing(_is_first: bool) -> None:
    """What is done of a deferred signal until a pool says it."""


uninterrupted = _Uninterrupted()
os.register_at_fork(
    before=uninterrupted._before_fork,
    after_in_parent=uninterrupted._after_fork,
    after_in_child=uninterrupted._forget,
)
