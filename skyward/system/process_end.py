"""The end of this process: termination signals, and actions deferred to a separate thread.

A simulation replaces this module, too, since its processes are not real ones.
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
    """Call `action` at each of these signals, at once, in a thread of its own. To be called once, in the main thread.

    A Python signal handler runs in the main thread, between two instructions. If the signal arrives while that thread
    is releasing the interpreter lock before a wait, the handler runs only after the wait: with several busy threads
    that was one SIGTERM in five. The interpreter's write to a descriptor, in the signal itself, is not delayed.
    """
    near, far = socket.socketpair()
    far.setblocking(False)
    signal.set_wakeup_fd(far.fileno(), warn_on_full_buffer=False)
    for number in numbers:
        signal.signal(number, lambda *_: None)

    def hear() -> None:
        with far:  # kept open as long as signals may arrive
            while heard := near.recv(1):
                action(heard[0])

    threading.Thread(target=hear, name="signals", daemon=True).start()


def before_end(action: Callable[[], None]) -> None:
    """Call `action` when the program has ended regularly: in its main thread, while threads can be started.

    `atexit` is too late for that: by then Python starts no threads (3.12) and runs nothing in thread pools (3.9). Also
    enables `soon`. Only the first call in a process has an effect.
    """
    global _registered, _thread
    if _thread is None:
        _thread = threading.Thread(target=_run, name="skyward-later", daemon=True)
        _thread.start()
    if not _registered:
        import_module("concurrent.futures.thread")  # registers the end of its threads, which must come after this
        _registered = True
        threading._register_atexit(action)  # type: ignore[attr-defined]  # as concurrent.futures itself does


def soon(action: Callable[[], None]) -> None:
    """Run `action` in a thread, after `before_end`. Takes no lock: signal handlers and `__del__` may call it."""
    _queue.put(action)


def wait_for_threads() -> None:
    """Wait, in the main thread, for the program's other threads, as Python does before it ends.

    Threads of `concurrent.futures` are not waited for: they are told to end after this.
    """
    from concurrent.futures.thread import _threads_queues

    me = threading.current_thread()
    for thread in threading.enumerate():
        if thread is not me and not thread.daemon and thread not in _threads_queues:
            thread.join()


def end(status: int) -> None:
    """End the process now like Python, without waiting for threads; for `before_end`'s action."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass  # it is closed, like a terminal after SIGHUP
    os._exit(status)


def end_in(patience_s: float, status: int) -> None:
    """Call `end` after `patience_s` unless the threads end before; for `before_end`'s action."""
    timer = threading.Timer(patience_s, end, (status,))
    timer.daemon = True
    timer.start()
    atexit.register(timer.cancel)  # called when all threads have ended, before everything else registered


def _run() -> None:
    while True:
        action = _queue.get()
        try:
            action()
        except Exception:  # an error must not stop later actions
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
        del action  # its objects must not live until the next one


def _after_fork() -> None:
    global _queue, _thread
    _queue, _thread = SimpleQueue(), None


os.register_at_fork(after_in_child=_after_fork)
