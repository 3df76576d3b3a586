"""Processes that user code forks from a worker: each of them ends where its copy of the call does.

A child that returned from its function would go on in the worker's loop, and read the socket that its parent reads.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable

_is_child = False


def on_fork(abandon: Callable[[], object]) -> None:
    """Have this process's connections closed in every process that is forked from it; called once, by the worker."""

    def begin() -> None:
        global _is_child
        _is_child = True
        abandon()

    os.register_at_fork(after_in_child=begin)


def end_child(error: BaseException | None = None) -> None:
    """End a forked process with the status that Python would give it after this error; nothing happens in a worker.

    Its standard streams are flushed. What a worker does at its exit is the worker's, and is not done.
    """
    if not _is_child:
        return
    status = 1
    try:
        status = _status(error)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:  # also when nobody reads what it writes
        os._exit(status)


def _status(error: BaseException | None) -> int:
    if error is None:
        return 0
    if isinstance(error, SystemExit) and isinstance(error.code, int | None):
        return (error.code or 0) & 0xFF
    text = f"{error.code}\n" if isinstance(error, SystemExit) else "".join(traceback.format_exception(error))
    sys.stderr.write(text)
    return 1
