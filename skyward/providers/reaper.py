"""The reaper: a process beside the client that destroys a pool when the client dies without closing it.

A client that was killed can call nobody. Its reaper waits for its end, does nothing before that, and then calls the
provider's `destroy`. Its standard input holds the provider and the pool's identifier, then a word when the client has
closed the pool itself, and ends when the client does. It is for providers that make what no lease ends.
"""

from __future__ import annotations

import logging
import os
import pickle
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
_LATE_S = 5.0  # a call that was under way when the client died takes effect, and is listed, within this time
_RETRY_S = 5.0
_LOOK_S = 1.0
_TRYING_S = 3600.0  # without network; after that leases have ended what can end by itself
_log = logging.getLogger(__name__)


class Reaper:
    """The client's end of a reaper.

    Args:
        provider: a value that can be pickled; its secrets, if it has any, are on no command line.
        pool_id: what the reaper is to destroy.
    """

    def __init__(self, provider: Provider, pool_id: str) -> None:
        """Start it, before anything is made that it is to remove; it does nothing while this process lives."""
        import cloudpickle  # also takes a provider that the client's own program defines

        document = cloudpickle.dumps((provider, pool_id))
        self._pool = pool_id
        self._process = subprocess.Popen(
            # -P: no modules of the client's directory, where others may put files; the last words are for people
            [sys.executable, "-P", "-m", "skyward.providers.reaper", provider.name, pool_id],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C, and the end of a terminal, are the client's alone
            env={**os.environ, "PYTHONPATH": os.pathsep.join(_paths())},
        )
        assert self._process.stdin
        self._process.stdin.write(len(document).to_bytes(_SIZE) + document)
        self._process.stdin.flush()

    def relieve(self, clear: Callable[[], None]) -> None:
        """Clear the pool here and let the reaper end; where that does not work out, it goes on trying."""
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
    """Where this client finds its modules, of which the provider's is one."""
    root = str(Path(__file__).parents[2])  # where this very package is, however it came to be importable
    return list(dict.fromkeys([root, *(str(Path(entry).absolute()) for entry in sys.path)]))


def main() -> int:
    """Wait for the client's end, and destroy its pool unless the client has closed it.

    Returns:
        The exit status: 1 if the pool could not be destroyed within the hour.
    """
    client = os.getppid()
    size = int.from_bytes(_read(_SIZE))
    provider, pool_id = pickle.loads(_read(size))
    while not select.select([0], [], [], _LOOK_S)[0] and os.getppid() == client:
        pass  # a process that the client has forked keeps the input open
    if os.getppid() == client and _read(len(_CLOSED)) == _CLOSED:
        return 0
    return _destroy(provider, pool_id)


def _read(size: int) -> bytes:
    """The next bytes of the standard input, unbuffered, so that `select` sees those that follow; fewer at its end."""
    found = b""
    while chunk := os.read(0, size - len(found)):
        found += chunk
    return found


def _destroy(provider: Provider, pool_id: str) -> int:
    """Destroy a pool until that has worked once after the client's last calls have settled."""
    began = time.monotonic()
    while time.monotonic() - began < _TRYING_S:
        try:
            provider.destroy(pool_id)
            sweep_orphans()
        except SkywardError:
            time.sleep(_RETRY_S)  # the network may be away for a while; nobody is left who could be told
            continue
        if time.monotonic() - began > _LATE_S:
            return 0
        time.sleep(1.0)
    return 1


if __name__ == "__main__":
    sys.exit(main())
