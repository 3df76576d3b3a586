"""The heir: a process beside the client that clears a pool when the client dies without doing so.

A client that was killed can call nobody. Its heir waits for its end, with no part in anything before that, and then
does what the client would have done. Its input says when the pool is cleared, and ends when the client does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from skyward.errors import SkywardError
from skyward.system import select, time

_CLEARED = "cleared"
_LATE_S = 5.0  # a call that the client made with its last breath takes effect, and is listed, within this time
_AGAIN_S = 5.0
_LOOK_S = 1.0
_TRYING_S = 3600.0  # without network; after that leases have ended what can end by itself


class Heir:
    """The client's end of it.

    Args:
        module: what it runs, which is to call `inherit`.
        arguments: what that needs to know.
    """

    def __init__(self, module: str, *arguments: str) -> None:
        """Start it; it does nothing while this process lives."""
        root = str(Path(__file__).parents[2])  # where this very package is, however it came to be importable
        paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C, and the end of a terminal, are the client's alone
            text=True,
            env={**os.environ, "PYTHONPATH": paths},
        )

    def relieve(self, clear: Callable[[], None]) -> None:
        """Clear the pool here and let the heir end; where that does not work out, it goes on trying."""
        try:
            clear()
        except BaseException:
            assert self._process.stdin
            self._process.stdin.close()
            raise
        self._process.communicate(_CLEARED)


def inherit(clear: Callable[[], None]) -> int:
    """What an heir does: wait for the client's end, and clear its pool unless that is done.

    Args:
        clear: is called again until it raises no SkywardError, and once more when the client's last calls have settled.

    Returns:
        The exit status: 1 if the pool could not be cleared within the hour.
    """
    client = os.getppid()
    while not select.select([sys.stdin], [], [], _LOOK_S)[0] and os.getppid() == client:
        pass  # a process that the client has forked keeps the input open
    if os.getppid() == client and sys.stdin.read() == _CLEARED:
        return 0
    began = time.monotonic()
    while time.monotonic() - began < _TRYING_S:
        try:
            clear()
        except SkywardError:
            time.sleep(_AGAIN_S)  # the network may be away for a while; nobody is left who could be told
            continue
        if time.monotonic() - began > _LATE_S:
            return 0
        time.sleep(1.0)
    return 1
