"""One SSH connection to a machine: a session that runs a command, and forwards of the machine's sockets.

Two implementations: the system's OpenSSH (`openssh.py`), and where that is not installed paramiko
(`paramiko_client.py`). OpenSSH is preferred because users have it set up already, and because bulk data goes through
its forwards several times as fast as through those of SSH libraries in Python (`benchmarks/ssh.py` measures it).
"""

from __future__ import annotations

import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from skyward.engine.address import EngineAddress
from skyward.errors import ProviderError
from skyward.model.ssh import SshHost
from skyward.system import threading, time

CONNECT_S = 8.0  # for the machine's first answer
ALIVE_S, SILENT = 1, 5  # a sign of life is asked for each second; after so many without an answer the connection ends
END_S = 2.0  # for the connection to end by itself
MOST_JUMPS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardedEngine(EngineAddress):
    """The engine of a machine reached by SSH, through a socket here.

    Attributes:
        host: the machine.
    """

    host: SshHost

    @property
    def url(self) -> str:
        """The machine, for messages."""
        return self.host.url


class SshConnection(ABC):
    """A connection that is being made, is open, or has ended; `wait_line` blocks until it is known which.

    It ends with its session.

    Attributes:
        host: the machine.
        ended: is set when the connection has ended.
    """

    def __init__(self, host: SshHost, folder: Path) -> None:
        self.host, self.ended = host, threading.Event()
        self._folder = folder
        self._lock = threading.Lock()
        self._news = threading.Condition()
        self._lines: list[str] = []
        self._forwards = 0
        self._said = ""
        self._at_end: list[Callable[[], None]] = []

    @property
    @abstractmethod
    def through(self) -> SshHost:
        """The machine, for commands of OpenSSH's that go through this connection.

        Raises:
            ProviderError: OpenSSH is not installed.
        """

    @abstractmethod
    def send(self, line: str) -> None:
        """Give the session's command a line; nothing happens if the connection has ended."""

    @abstractmethod
    def forward(self, remote: str) -> Path:
        """A socket here that leads to one there: a path, or `host:port`.

        Raises:
            ProviderError: the connection has ended, or the machine allows no forwards.
        """

    @abstractmethod
    def kill(self) -> None:
        """End the connection at once, with everything that goes through it."""

    @abstractmethod
    def _end_input(self) -> None: ...

    @property
    def why(self) -> str:
        """Why it ended, as a sentence's part; "" where no reason was given."""
        return self._said.strip().splitlines()[-1].strip().rstrip(".") if self._said.strip() else ""

    @property
    def problem(self) -> str:
        """Why it did not come about or ended, and what to do, in sentences."""
        meaning = self.host.meaning(self._said)
        if meaning:
            return f"{meaning[0].upper()}{meaning[1:]}"
        return f"The SSH connection ended: {self.why or 'ssh gave no reason'}."

    def wait_line(self, timeout_s: float) -> str | None:
        """The next line that the session's command printed; None at its end, or if none comes in time."""
        with self._news:
            self._news.wait_for(lambda: self._lines or self.ended.is_set(), timeout_s)
            return self._lines.pop(0) if self._lines else None

    def wait_marked(self, mark: str, timeout_s: float) -> str | None:
        """As `wait_line`, without the mark that it begins with; what shell files of the user print is passed over."""
        deadline = time.monotonic() + timeout_s
        while (line := self.wait_line(max(0.0, deadline - time.monotonic()))) is not None:
            before, found, said = line.partition(mark)
            if found and not before:
                return said
        return None

    def at_end(self, action: Callable[[], None]) -> None:
        """Have something done when the connection ends, by whichever side; at once if it has."""
        with self._news:
            if not self.ended.is_set():
                self._at_end.append(action)
                return
        action()

    def engine(self, remote: str) -> ForwardedEngine:
        """The address here of the engine that listens at this path there."""
        return ForwardedEngine(
            path=self.forward(remote), origin=f"the SSH connection to {self.host.name}", host=self.host
        )

    def close(self) -> None:
        """End the session's input, which asks its command to end, and then the connection. Idempotent."""
        self._end_input()
        if not self.ended.wait(END_S):
            self.kill()

    def _next_forward(self) -> Path:
        with self._lock:
            self._forwards += 1
            return self._folder / f"f{self._forwards}"

    def _hear(self, line: bytes) -> None:
        with self._news:
            self._lines.append(line.decode(errors="replace").rstrip("\r\n"))
            self._news.notify_all()

    def _end(self, said: str) -> None:
        """Note that the connection has ended, and why."""
        self._said = said
        with self._news:
            self.ended.set()
            actions, self._at_end = self._at_end, []
            self._news.notify_all()
        for action in actions:
            action()


def connect(host: SshHost, folder: Path, *words: str) -> SshConnection:
    """Start to connect: by OpenSSH, or by paramiko where OpenSSH's client is not installed.

    Args:
        host: the machine.
        folder: a private directory for sockets; its path must be short.
        words: the command of the session.

    Raises:
        ProviderError: neither is installed, or the SSH configuration cannot be read.
    """
    if uses_paramiko():
        from skyward.ssh.paramiko_client import ParamikoConnection

        return ParamikoConnection(host, folder, *words)
    from skyward.ssh.openssh import OpenSshConnection

    return OpenSshConnection(host, folder, *words)


def uses_paramiko() -> bool:
    """Whether paramiko makes the connections."""
    return shutil.which("ssh") is None and find_spec("paramiko") is not None


def client_version() -> str:
    """What makes the connections, with its version; "" where nothing can."""
    if uses_paramiko():
        from importlib.metadata import version

        return f"paramiko {version('paramiko')}"
    try:
        done = subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    except OSError:
        return ""
    return done.stderr.partition(",")[0].strip()


def no_client(host: SshHost, error: OSError) -> ProviderError:
    """The error where no SSH client is installed."""
    return ProviderError(
        f"The ssh command could not be started ({error}). Reaching {host.name} takes OpenSSH's client (Debian: "
        "openssh-client) or the package paramiko (`pip install 'skyward[ssh]'`); install one of them."
    )
