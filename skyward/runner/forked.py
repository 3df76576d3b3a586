"""Processes that user code forks from a worker: each of them ends where its copy of the call does.

A child that returned from its function would go on in the worker's loop, and read the socket that its parent reads.
"""

from __future__ import annotations

import fcntl
import os
import stat
import sys
import termios
import traceback
from collections.abc import Callable

from skyward.system import time

_READ_WITHIN_S = 5.0
_LOOK_S = 0.001
_is_child = False


def on_fork(abandon: Callable[[], object]) -> None:
    """Have this process's connections closed in every process that is forked from it; called once, by the worker."""

    def begin() -> None:
        global _is_child
        _is_child = True
        abandon()

    os.register_at_fork(after_in_child=begin)


def is_child() -> bool:
    """Whether this process has been forked from a worker."""
    return _is_child


def end_child(error: BaseException | None = None) -> None:
    """End a forked process with the status that Python would give it after this error; nothing happens in a worker.

    Its standard streams are flushed, and read: what its parent writes when it has ended comes after them. What a worker
    does at its exit is the worker's, and is not done.
    """
    if not _is_child:
        return
    status = 1
    try:
        status = _status(error)
        sys.stdout.flush()
        sys.stderr.flush()
        _wait_until_read()
    finally:  # also when nobody reads what it writes
        os._exit(status)


def _wait_until_read() -> None:
    """Wait until the agent has read both streams, 5 s at most. It reads them in no order: they are two pipes."""
    pipes = [fd for fd in (1, 2) if stat.S_ISFIFO(os.fstat(fd).st_mode)]
    deadline = time.monotonic() + _READ_WITHIN_S
    while any(_unread(fd) for fd in pipes) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)


def _unread(pipe: int) -> int:
    """How many bytes a pipe holds, asked at the end that is written to."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def _status(error: BaseException | None) -> int:
    if error is None:
        return 0
    if isinstance(error, SystemExit) and isinstance(error.code, int | None):
        return (error.code or 0) & 0xFF
    text = f"{error.code}\n" if isinstance(error, SystemExit) else "".join(traceback.format_exception(error))
    sys.stderr.write(text)
    return 1
