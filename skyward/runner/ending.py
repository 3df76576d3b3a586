"""The end of a child process, told before it is reaped."""

from __future__ import annotations

import os
import sys

from skyward.system import select


def wait_unreaped(pid: int) -> None:
    """Block until a child has ended, and leave it to be reaped: until then nobody else can get its number."""
    if sys.platform == "darwin":  # Python has no waitid there before 3.13
        queue = select.kqueue()
        try:
            ended = select.kevent(pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD, select.KQ_NOTE_EXIT)
            queue.control([ended], 1)
        except ProcessLookupError:
            return  # it has ended already
        finally:
            queue.close()
    else:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
