"""The reaper: a separate process that destroys a pool when the client dies without closing it.

The reaper of a client waits for the client's end, does nothing before that, and then calls the provider's `destroy`. It
reads from standard input the provider and the pool's identifier, then a word when the client has closed the pool
itself; the input ends with the client. It is for providers with resources that no lease ends.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from skyward.errors import SkywardError
from skyward.nodes.run_directory import sweep_orphans
from skyward.providers.base import Provider
from skyward.system import select, time

_CLOSED = b"closed"
_SIZE = 8  # bytes of the length before the pickle
_LATE_S = 5.0  # time for a call in progress at the client's death to take effect and be listed
_RETRY_S = 5.0
_LOOK_S = 1.0
_TRYING_S = 3600.0  # time limit while the network is down; by then leases have ended what they can
_log = logging.getLogger(__name__)


class Reaper:
    """The client's end of a reaper.

    Args:
        provider: a value that can be pickled; its secrets, if any, do not appear on a command line.
        pool_id: the pool to be destroyed.
    """

    def __init__(self, provider: Provider, pool_id: str) -> None:
        """Start it, before the resources that it is to remove exist; it does nothing while this process lives."""
        import cloudpickle  # can also pickle a provider defined in the client's program

        document = cloudpickle.dumps((provider, pool_id))
        self._pool = pool_id
        self._process = subprocess.Popen(
            # -P: no modules from the client's directory, where others may write; the last arguments are for people
            [sys.executable, "-P", "-m", "skyward.providers.reaper", provider.name, pool_id],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C and the end of the terminal are for the client only
            env={**os.environ, "PYTHONPATH": os.pathsep.join(_paths())},
        )
        assert self._process.stdin
        self._process.stdin.write(len(document).to_bytes(_SIZE) + document)
        self._process.stdin.flush()

    def relieve(self, clear: Callable[[], None]) -> None:
        """Clear the pool here and let the reaper end; if that fails, the reaper keeps trying after the client's end."""
        try:
            clear()
        except BaseException:
            assert self._process.stdin
            self._process.stdin.close()
            raise
        self._process.communicate(_CLOSED)
        if self._process.returncode:
            _log.warning(
                "The reaper of pool %s ended with status %d: it could not have removed what a killed client leaves.",
                self._pool,
                self._process.returncode,
            )


def _paths() -> list[str]:
    """Return the client's module search path, which includes the provider's module."""
    root = str(Path(__file__).parents[2])  # the location of this package, however it was found
    return list(dict.fromkeys([root, *(str(Path(entry).absolute()) for entry in sys.path)]))


def main() -> int:
    """Wait for the client's end, and destroy its pool unless the client has closed it.

    Returns:
        The exit status: 1 if the pool could not be destroyed within the hour.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):  # the client may have ignored or blocked them
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    client = os.getppid()
    size = int.from_bytes(_read(_SIZE))
    provider, pool_id = pickle.loads(_read(size))
    while not select.select([0], [], [], _LOOK_S)[0] and os.getppid() == client:
        pass  # a process forked from the client may keep the input open
    if os.getppid() == client and _read(len(_CLOSED)) == _CLOSED:
        return 0
    return _destroy(provider, pool_id)


def _read(size: int) -> bytes:
    """Return the next bytes of standard input, fewer at its end.

    They are read unbuffered, so that `select` sees those that follow.
    """
    found = b""
    while chunk := os.read(0, size - len(found)):
        found += chunk
    return found


def _destroy(provider: Provider, pool_id: str) -> int:
    """Destroy a pool until that has succeeded once after the client's last calls have settled."""
    began = time.monotonic()
    while time.monotonic() - began < _TRYING_S:
        try:
            provider.destroy(pool_id)
            sweep_orphans()
        except SkywardError:
            time.sleep(_RETRY_S)  # the network may be down for a while; there is no client to report to
            continue
        if time.monotonic() - began > _LATE_S:
            return 0
        time.sleep(1.0)
    return 1


if __name__ == "__main__":
    sys.exit(main())
