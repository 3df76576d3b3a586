"""The end of this process: signals that ask for it, and actions that are put off to a thread of their own.

A simulation replaces this module too: the processes it simulates are not real ones.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from importlib import import_module
from queue import SimpleQueue

_queue: SimpleQueue[Callable[[], None]] = SimpleQueue()
_thread: threading.Thread | None = None
_registered = False


def on_signals(numbers: Iterable[int], action: Callable[[int], object]) -> None:
    """Have something done at each of these signals, in a thread of its own, at once. Called in the main thread, once.

    A handler of Python's runs in the main thread, between two of its instructions. One that comes while that thread is
    giving the interpreter's lock away, on its way into a wait, is noted, and runs when the wait is over: with several
    busy threads that was one SIGTERM in five. What the interpreter writes to a descriptor, in the signal itself, is not
    late.
    """
    near, far = socket.socketpair()
    far.setblocking(False)
    signal.set_wakeup_fd(far.fileno(), warn_on_full_buffer=False)
    for number in numbers:
        signal.signal(number, lambda *_: None)

    def hear() -> None:
        with far:  # kept open for as long as signals may come
            while heard := near.recv(1):
                action(heard[0])

    threading.Thread(target=hear, name="signals", daemon=True).start()


def before_end(action: Callable[[], None]) -> None:
    """Have `action` called when the program has ended in order: by its main thread, while threads can be started.

    `atexit` is too late for that: Python then starts no thread (3.12) and runs nothing in thread pools (3.9).
    Also makes `soon` ready. Only the first call of a process has an effect.
    """
    global _registered, _thread
    if _thread is None:
        _thread = threading.Thread(target=_run, name="skyward-later", daemon=True)
        _thread.start()
    if not _registered:
        import_module("concurrent.futures.thread")  # registers the end of its threads, which is to come after this
        _registered = True
        threading._register_atexit(action)  # type: ignore[attr-defined]  # as concurrent.futures itself does


def soon(action: Callable[[], None]) -> None:
    """Run `action` in a thread, after `before_end`. Takes no lock: signal handlers and `__del__` may call it."""
    _queue.put(action)


def wait_for_threads() -> None:
    """Wait, in the main thread, for the program's other threads, as Python does before it ends.

    Threads of `concurrent.futures` are not waited for: they end when they are told to, after this.
    """
    from concurrent.futures.thread import _threads_queues

    me = threading.current_thread()
    for thread in threading.enumerate():
        if thread is not me and not thread.daemon and thread not in _threads_queues:
            thread.join()


def end(status: int) -> None:
    """End the process now, as Python does it, but for threads that have not ended; for `before_end`'s action."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass  # it is closed, as a terminal is after SIGHUP
    os._exit(status)


def end_in(patience_s: float, status: int) -> None:
    """`end` the process unless its threads end by themselves; for `before_end`'s action."""
    timer = threading.Timer(patience_s, end, (status,))
    timer.daemon = True
    timer.start()
    atexit.register(timer.cancel)  # called when all threads have ended, before anything else that was registered


def _run() -> None:
    while True:
        action = _queue.get()
        try:
            action()
        except Exception:  # one of them must not stop those after it
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
        del action  # what it holds must not live until the next one


def _after_fork() -> None:
    global _queue, _thread
    _queue, _thread = SimpleQueue(), None


os.register_at_fork(after_in_child=_after_fork)
