"""The pools that this process has opened: what becomes of those that nobody closes.

The program ends: they are closed before Python does. A pool is forgotten: it is closed by a thread of its own. A signal
comes while one is being closed: it hurries. The process is forked: the child lets go of them.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from types import FrameType
from typing import Protocol
from weakref import WeakSet

from skyward._pool.signals import Terminated, uninterrupted
from skyward.errors import PoolClosedError, PoolError
from skyward.model.instance import ENV_VAR
from skyward.system import process_end

_PATIENCE_S = 2.0  # after a signal: for a pool that is being closed, and for threads whose pool was closed


class _Pool(Protocol):
    def close(self) -> None: ...
    def _hurry(self, after_s: float) -> None: ...
    def _let_go(self) -> None: ...
    def __hash__(self) -> int: ...


_opened: WeakSet[_Pool] = WeakSet()


def check_place() -> None:
    """Refuse to open a pool while a module is imported on a node, or by a process that multiprocessing spawns.

    Both import the modules of the program again; one that opens a pool where it is imported would open another in each
    of that pool's nodes, and so on.

    Raises:
        PoolError: that is so; the message names the file and the line.
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


def closed(pool_id: str) -> PoolClosedError:
    """The error of calls that had not ended when their pool was closed."""
    return PoolClosedError(
        f"Pool {pool_id} was closed before the call had ended. Ask for its result inside the pool's block."
    )


def not_open(pool_id: str) -> PoolClosedError:
    """The error of a call that is sent before a pool is opened, or after its end."""
    return PoolClosedError(
        f"Pool {pool_id} is not open: it has not been opened, or its block has ended. Send calls inside of `with "
        "sky.ComputePool(...) as pool:`, or between open() and close()."
    )


def add(pool: _Pool) -> None:
    """Look after a pool from now on, until it is closed."""
    uninterrupted.on_deferred = _on_deferred
    process_end.before_end(_before_end)
    _opened.add(pool)


def discard(pool: _Pool) -> None:
    """A pool has been closed."""
    _opened.discard(pool)


def forgotten(pool: _Pool) -> None:
    """Close a pool that nobody refers to any more; may be called wherever the garbage collector runs."""
    process_end.soon(pool.close)


def _on_deferred(is_first: bool) -> None:
    """A signal waits for the main thread, which may be closing a pool; the second one lets nothing wait."""
    after_s = _PATIENCE_S if is_first else 0.0
    process_end.soon(partial(_hurry, after_s))


def _hurry(after_s: float) -> None:
    for pool in list(_opened):
        pool._hurry(after_s)


def _before_end() -> None:
    """Close what is open when the program has ended; in its main thread, once its other threads have ended too."""
    try:
        if uninterrupted.terminated is None and len(_opened):
            process_end.wait_for_threads()
    except Terminated as ended:
        _close_all()
        process_end.end(int(str(ended.code)))
    finally:
        _close_all()
    if uninterrupted.terminated is not None:  # threads whose pools are closed may still go on
        process_end.end_in(_PATIENCE_S, int(str(uninterrupted.terminated.code)))


def _close_all() -> None:
    for pool in list(_opened):
        pool.close()


def _after_fork() -> None:
    """A child has copies of the sockets: two processes that write to one mix their calls, so the child closes its."""
    for pool in list(_opened):
        pool._let_go()
    _opened.clear()


os.register_at_fork(after_in_child=_after_fork)
