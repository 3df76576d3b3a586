"""Where everything of this clone's engine lies: one folder, `.engine`, that `down --purge` removes."""

import fcntl
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .console import SetupError, say

LONGEST_SOCKET_PATH = 107
# The engine and its containerd put sockets below the exec root; this is the longest tail among them.
_LONGEST_SOCKET_TAIL = len("/containerd/containerd-debug.sock")


@dataclass(frozen=True)
class Place:
    """The paths of one clone's engine, all derived from the clone's own path."""

    clone: Path

    @property
    def root(self) -> Path:
        return self.clone / ".engine"

    @property
    def run(self) -> Path:
        """Sockets and pid file; outside the clone when the clone's path is too long for a socket."""
        inside = self.root / "run"
        if len(str(inside)) + _LONGEST_SOCKET_TAIL <= LONGEST_SOCKET_PATH:
            return inside
        return Path("/run") / f"skyward-{hashlib.sha256(str(self.clone).encode()).hexdigest()[:12]}"

    @property
    def socket(self) -> Path:
        return self.run / "docker.sock"

    @property
    def docker_host(self) -> str:
        return f"unix://{self.socket}"

    @property
    def data(self) -> Path:
        return self.root / "docker"

    @property
    def env(self) -> Path:
        return self.root / "env"

    def log(self, name: str) -> Path:
        return self.root / "logs" / f"{name}.log"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the clone's engine for one command; a second command waits here."""
        try:
            self.root.mkdir(exist_ok=True)
            handle = (self.root / "lock").open("w")
        except PermissionError as e:
            raise SetupError(
                f"{self.root} cannot be written by this user; root has made it, or the clone is root's. "
                "Run this again as root."
            ) from e
        with handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("waiting for another engine command of this clone to end")
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield


def here() -> Place:
    """Return the place of the clone that this file lies in, or of the clone whose `.engine` it links to."""
    return Place((Path(__file__).resolve().parents[2] / ".engine").resolve().parent)
