"""The heir: a process beside the client that clears a pool at AWS when the client dies without doing so.

A client that was killed cannot call AWS. Its machines would end by themselves some minutes later (see boot.py), but a
security group cannot. Run as `python -m skyward.providers.aws.heir POOL REGION`; its input says when the pool is
cleared, and ends when the client does.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from skyward.errors import SkywardError
from skyward.providers.aws import estate
from skyward.providers.aws.api import Api
from skyward.providers.rundir import sweep_orphans

_CLEARED = "cleared"
_LATE_S = 5.0  # a call that the client made with its last breath takes effect, and is listed, within this time
_AGAIN_S = 5.0
_LOOK_S = 1.0
_TRYING_S = 3600.0  # without network; after that the guards have ended the machines


class Heir:
    """The client's end of it."""

    def __init__(self, pool: str, region: str) -> None:
        """Start it; it makes no call of AWS while this process lives."""
        root = str(Path(__file__).parents[3])  # where this very package is, however it came to be importable
        paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, pool, region],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C, and the end of a terminal, are the client's alone
            text=True,
            env={**os.environ, "PYTHONPATH": paths},
        )

    def dismiss(self) -> None:
        """Tell it that the pool is cleared."""
        self._process.communicate(_CLEARED)

    def succeed(self) -> None:
        """Let it clear the pool, which did not work out here."""
        assert self._process.stdin
        self._process.stdin.close()


def main(arguments: Sequence[str]) -> int:
    """Wait for the client's end, and clear its pool unless that is done; exit status 1 if it could not be."""
    pool, region = arguments
    client = os.getppid()
    while not select.select([sys.stdin], [], [], _LOOK_S)[0] and os.getppid() == client:
        pass  # a process that the client has forked keeps the input open
    if os.getppid() == client and sys.stdin.read() == _CLEARED:
        return 0
    api = Api(region)
    began = time.monotonic()
    while time.monotonic() - began < _TRYING_S:
        try:
            estate.clear(api, pool)
        except SkywardError:
            time.sleep(_AGAIN_S)  # the network may be away for a while; nobody is left who could be told
            continue
        if time.monotonic() - began > _LATE_S:
            sweep_orphans()  # the client's keys
            return 0
        time.sleep(1.0)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
