"""The heir: a process beside the client that clears a pool in its swarm when the client dies without doing so.

The tasks of a killed client end by their lease, and the engine starts none of them again; but no task may remove its
service. Run as `python -m skyward.providers.swarm.heir`; its input says first which pool it is, then that the pool is
cleared, and ends when the client does.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from skyward.errors import SkywardError
from skyward.providers.rundir import runtime_base, sweep_orphans
from skyward.providers.swarm import estate
from skyward.providers.swarm.manager import Manager, ManagerAddress

_CLEARED = "cleared"
_LATE_S = 3.0  # a call that the client made with its last breath takes effect, and is listed, within this time
_AGAIN_S = 5.0
_LOOK_S = 1.0
_TRYING_S = 3600.0  # without network; what is left then is found by the next pool, or by `skyward down`


class Heir:
    """The client's end of it."""

    def __init__(self, pool: str, address: ManagerAddress) -> None:
        """Start it; it asks the swarm nothing while this process lives."""
        root = str(Path(__file__).parents[3])  # where this very package is, however it came to be importable
        paths = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C, and the end of a terminal, are the client's alone
            text=True,
            env={**os.environ, "PYTHONPATH": paths},
        )
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"pool": pool, **address.document()}) + "\n")
        self._process.stdin.flush()

    def dismiss(self) -> None:
        """Tell it that the pool is cleared."""
        self._process.communicate(_CLEARED)

    def succeed(self) -> None:
        """Let it clear the pool, which did not work out here."""
        assert self._process.stdin
        self._process.stdin.close()


def main() -> int:
    """Wait for the client's end, and clear its pool unless that is done; exit status 1 if it could not be."""
    client, said = os.getppid(), b""
    while os.getppid() == client:  # a process that the client has forked keeps the input open
        if select.select([0], [], [], _LOOK_S)[0]:
            data = os.read(0, 4096)
            if not data:
                break
            said += data
    line, _, after = said.decode().partition("\n")
    if after == _CLEARED:
        return 0
    order = json.loads(line)
    files = (Path(order[name]) if order.get(name) else None for name in ("key", "known_hosts"))
    address = ManagerAddress.of(order["engine"], *files)
    began = time.monotonic()
    while time.monotonic() - began < _TRYING_S:
        try:
            _clear(order["pool"], address)
        except SkywardError:
            time.sleep(_AGAIN_S)  # the network may be away for a while; nobody is left who could be told
            continue
        sweep_orphans()  # the client's directory
        return 0
    return 1


def _clear(pool: str, address: ManagerAddress) -> None:
    with tempfile.TemporaryDirectory(prefix="sky-", dir=runtime_base()) as folder:
        manager = Manager(address, Path(folder))
        try:
            estate.clear(manager.api, pool)
            time.sleep(_LATE_S)
            estate.clear(manager.api, pool)
        finally:
            manager.close()


if __name__ == "__main__":
    sys.exit(main())
