"""Closing of open pools on signals, at the program's end, on garbage collection, and after a fork.

Signals are deferred while a pool changes its state, and never lost; the garbage collector waits, too.

A signal that arrives while the main thread is inside `uninterrupted` is recorded and handled on exit from it, by the
program's own handler. If the program has none for SIGTERM or SIGHUP, they are raised as `Terminated`, so that the
program leaves its pools as it does after Ctrl-C. Ignored signals stay ignored. A signal that arrives while a pool is
being closed shortens the grace period.

When the program ends, its pools are closed before Python shuts down. A pool that is garbage-collected while open is
closed by a separate thread. After a fork, the child closes its copies of the pools' descriptors.
"""

from __future__ import annotations

import os
import signal
import sys
from _signal import getsignal  # type: ignore[import-not-found]  # avoids the enum conversion of `signal`: 4 us per call
from collections.abc import Callable
from functools import partial
from inspect import CO_GENERATOR
from types import FrameType
from typing import Protocol
from weakref import WeakSet

from skyward.errors import PoolClosedError, PoolError
from skyward.model.instance import ENV_VAR
from skyward.system import process_end, threading, time
from skyward.system.collector import uncollected
from skyward.wire.exceptions import Stopping

SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)  # in the order in which deferred ones are handled
# others, deferred if the program has a handler, which may call the pool
_OTHERS = (
    *(signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD),
    *(signal.SIGQUIT, signal.SIGIO, signal.SIGWINCH),
)
_ONCE_S = 0.5  # a closed terminal and its shell both send SIGHUP, which count as one within this time
_AGAIN_S = 0.001
_Handler = Callable[[int, FrameType | None], object] | int | signal.Handlers | None
LISTEN_S = 1.0  # how long a wait may keep the main thread from handling a signal
_PATIENCE_S = 2.0  # after a signal, for a pool that is being closed, and for threads whose pool was closed


class Terminated(SystemExit, Stopping):
    """Raised to end the process after a signal; the exit status is 128 plus the signal's number, as in shells."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.name = signal.Signals(number).name


class _Deferred:
    """Stands in for the program's handler of a signal, and calls it at the end of the block that is interrupted."""

    def __init__(self, handler: Callable[[int, FrameType | None], object]) -> None:
        self.handler = handler

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if uninterrupted._depth:
            uninterrupted._deferred[number] = self.handler
        else:
            self.handler(number, frame)


class _Uninterrupted:
    """Context manager that defers signals; entering it is cheap, since every call does."""

    def __init__(self) -> None:
        self._main = threading.main_thread().ident
        self._depth = 0
        self._pending: dict[int, _Handler] = {}  # deferred signals, with the program's handler for each
        self._others: tuple[_Handler, ...] = ()  # the last known handlers of _OTHERS
        self._deferred: dict[int, Callable[[int, FrameType | None], object]] = {}  # the same of _OTHERS
        self._users = 0
        self._previous: dict[int, _Handler] = {}
        self._raised_at = -_ONCE_S
        self._handler = self._on_signal  # stored for comparisons by identity: each access creates a new bound method
        self._masks: dict[int, set[int | signal.Signals]] = {}  # previous signal masks of threads that are forking
        self.terminated: Terminated | None = None

    def install(self) -> bool:
        """Install the handlers while a pool is open; return False outside the main thread, where that is impossible.

        If it returns True, the caller must call `uninstall` later.
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
        """Restore handlers that were not replaced since; outside the main thread, the next signal restores them."""
        self._users -= 1
        if self._users == 0 and threading.get_ident() == self._main:
            self._give_back()

    def __enter__(self) -> None:
        if threading.get_ident() == self._main:
            if not self._depth and self._users:
                if getsignal(signal.SIGINT) is not self._handler:
                    self._take(signal.SIGINT)  # a notebook installs its handler for each cell
                if tuple(map(getsignal, _OTHERS)) != self._others:
                    self._take_others()
            self._depth += 1

    def __exit__(self, *_: object) -> None:
        if threading.get_ident() == self._main:
            self._depth -= 1
            if self._pending and not self._depth:
                pending, self._pending = self._pending, {}
                for number in SIGNALS:
                    if number in pending:
                        self._pass_on(number, pending[number], None)
            while self._deferred and not self._depth:
                other, handler = self._deferred.popitem()
                handler(other, sys._getframe(1))

    def _take_others(self) -> None:
        for number in _OTHERS:
            handler = signal.getsignal(number)
            if callable(handler) and type(handler) is not _Deferred:
                signal.signal(number, _Deferred(handler))
        self._others = tuple(map(getsignal, _OTHERS))

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
        for number in _OTHERS:
            if type(handler := signal.getsignal(number)) is _Deferred:
                signal.signal(number, handler.handler)
        self._others = ()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        __tracebackhide__ = True  # IPython and pytest leave such frames out of tracebacks
        if self._depth:
            is_first = not self._pending
            self._pending[number] = self._previous.get(number)
            process_end.soon(partial(_hurry, _PATIENCE_S if is_first else 0.0))
        elif self._users:
            self._pass_on(number, self._previous.get(number), frame)
        else:
            self._give_back()  # the last pool was closed by another thread
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
        """Send a signal to the main thread again; called in another thread."""
        time.sleep(_AGAIN_S)
        if self._main is not None:
            signal.pthread_kill(self._main, number)

    def _before_fork(self) -> None:
        """Block signals during the fork, since this process's handler would drop one in the child."""
        if self._users:
            self._masks[threading.get_ident()] = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)

    def _after_fork(self) -> None:
        mask = self._masks.pop(threading.get_ident(), None)
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _forget(self) -> None:
        """Reset the state in a forked process, where the forking thread is the main one and no pool is open."""
        self._main = threading.get_ident()
        self._depth, self._users, self._raised_at = 0, 0, -_ONCE_S
        self._pending, self.terminated = {}, None
        self._give_back()
        self._after_fork()  # a signal that arrived meanwhile reaches the program's handlers
        self._masks.clear()  # other threads exist only in the parent


def _is_ignored(frame: FrameType | None) -> bool:
    """Return whether Python would ignore an exception now: in skyward's destructors and generators being dropped.

    Both take little time. The program's own destructors may block, and are interrupted as usual.
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
    """Wake this thread's event loop, so that it runs callbacks that a signal handler has scheduled.

    A notebook's handler cancels an awaiting cell that way, which otherwise takes effect only when the wait ends.
    """
    asyncio = sys.modules.get("asyncio")
    try:
        if asyncio is not None:
            asyncio.get_running_loop().call_soon_threadsafe(lambda: None)
    except RuntimeError:
        pass  # no loop is running


uninterrupted = _Uninterrupted()
os.register_at_fork(
    before=uninterrupted._before_fork,
    after_in_parent=uninterrupted._after_fork,
    after_in_child=uninterrupted._forget,
)


class _Undisturbed:
    """Context manager: no code of the program's runs in this thread, which could wait for what the thread is doing.

    Signals are deferred as by `uninterrupted`, and garbage is not collected.
    """

    def __enter__(self) -> None:
        uninterrupted.__enter__()
        uncollected.__enter__()

    def __exit__(self, *_: object) -> None:
        uncollected.__exit__()
        uninterrupted.__exit__()


undisturbed = _Undisturbed()


class StateLock:
    """A lock whose holder is `undisturbed`.

    Attributes:
        plain: the lock itself, for threads that are `undisturbed` already.
    """

    def __init__(self) -> None:
        self.plain = threading.RLock()  # tracers run all the same

    def __enter__(self) -> None:
        undisturbed.__enter__()
        self.plain.acquire()

    def __exit__(self, *_: object) -> None:
        self.plain.release()
        undisturbed.__exit__()


RECEIVER = "skyward-node-"  # beginning of the names of threads that receive results


def check_thread() -> None:
    """Check that this thread may wait for a call.

    Raises:
        PoolError: it is the one that would receive the result.
    """
    if threading.current_thread().name.startswith(RECEIVER):
        raise PoolError(
            "A call cannot be waited for here: Python has run this code, a destructor or the like, in the thread that "
            "receives results. Send the call with `f() > pool` instead of `f() >> pool`, or wait in another thread."
        )


def listen(wait: Callable[[float], object], timeout_s: float | None = None) -> bool:
    """Call `wait(seconds)` until it returns True, in slices of `LISTEN_S`; return False after `timeout_s`.

    Python runs signal handlers in the main thread. A signal does not interrupt that thread's wait for a lock if it
    arrives just before the wait, or if the kernel delivers it to another thread: the handler runs when the slice ends.

    Raises:
        PoolError: see `check_thread`.
    """
    check_thread()
    if timeout_s is None:
        while not wait(LISTEN_S):
            pass
        return True
    end = time.monotonic() + timeout_s
    while not wait(max(0.0, min(LISTEN_S, end - time.monotonic()))):
        if time.monotonic() >= end:
            return False
    return True


# open pools --------------------------------------------------------------------------------------------------------


class _Pool(Protocol):
    def close(self) -> None: ...
    def _hurry(self, after_s: float) -> None: ...
    def _let_go(self) -> None: ...
    def __hash__(self) -> int: ...


_opened: WeakSet[_Pool] = WeakSet()


def check_place() -> None:
    """Check that no module is being imported on a node or by a process that multiprocessing has spawned.

    Both import the program's modules again; one that opens a pool on import would open another on each of that pool's
    nodes, and so on.

    Raises:
        PoolError: a module is being imported there; the message names the file and the line.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        if frame.f_code.co_name == "<module>" and (
            name == "__mp_main__" or (ENV_VAR in os.environ and name != "__main__")
        ):
            who = "a process that multiprocessing started" if name == "__mp_main__" else "a node of a pool"
            raise PoolError(
                f"{frame.f_code.co_filename}, line {frame.f_lineno}, opens a pool while the file is imported by {who}, "
                'which needs its functions only. Put what runs the program under `if __name__ == "__main__":`.'
            )
        frame = frame.f_back


def closed_early(pool_id: str) -> PoolClosedError:
    """Return the error for calls that had not ended when their pool was closed."""
    return PoolClosedError(
        f"Pool {pool_id} was closed before the call had ended. Ask for its result inside the pool's block."
    )


def not_open(pool_id: str) -> PoolClosedError:
    """Return the error for a call to a pool that is not open yet or was closed."""
    return PoolClosedError(
        f"Pool {pool_id} is not open: it has not been opened, or its block has ended. Send calls inside of `with "
        "sky.ComputePool(...) as pool:`, or between open() and close()."
    )


def look_after(pool: _Pool) -> None:
    """Register an open pool, to be closed at the program's end."""
    process_end.before_end(_before_end)
    _opened.add(pool)


def forget(pool: _Pool) -> None:
    """Unregister a pool that has been closed."""
    _opened.discard(pool)


def close_soon(pool: _Pool) -> None:
    """Close an unreferenced pool in another thread; may be called wherever the garbage collector runs."""
    process_end.soon(pool.close)


def _hurry(after_s: float) -> None:
    """Hurry pools that are being closed while a signal waits; the second signal sets `after_s` to 0."""
    for pool in list(_opened):
        pool._hurry(after_s)


def _before_end() -> None:
    """Close open pools at the program's end, in the main thread, after its other threads have ended."""
    try:
        if uninterrupted.terminated is None and len(_opened):
            process_end.wait_for_threads()
    except Terminated as ended:
        _close_all()
        process_end.end(int(str(ended.code)))
    finally:
        _close_all()
    if uninterrupted.terminated is not None:  # threads whose pools were closed may continue
        process_end.end_in(_PATIENCE_S, int(str(uninterrupted.terminated.code)))


def _close_all() -> None:
    for pool in list(_opened):
        pool.close()


def _after_fork() -> None:
    """Close the child's copies of the sockets: if two processes wrote to one, their calls would mix."""
    for pool in list(_opened):
        pool._let_go()
    _opened.clear()


os.register_at_fork(after_in_child=_after_fork)
