"""Handles signals at once, however busy the process is.

A handler of Python's runs in the main thread, between two of its instructions. One that comes while that thread is
giving the interpreter's lock away, on its way into a wait, is noted, and runs when the wait is over: with several busy
threads that was one SIGTERM in five. What the interpreter writes to a descriptor, in the signal itself, is not late.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable

from skyward.system import socket, threading


def on_signals(numbers: Iterable[int], action: Callable[[int], object]) -> None:
    """Have something done at each of these signals, in a thread of its own. To be called in the main thread, once."""
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
