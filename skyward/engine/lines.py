"""HTTP connections to an engine, through a socket of this machine or through SSH and a docker command there."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Mapping
from http.client import HTTPConnection
from typing import IO, TYPE_CHECKING

from skyward.engine.address import EngineAddress
from skyward.engine.liveness import LiveSocket, Waiting
from skyward.errors import EngineMissingError, SkywardError

if TYPE_CHECKING:
    import subprocess

    from skyward.model.ssh import SshHost

_TIMEOUT_S = 120.0  # silence for longer is a hung engine
_END_S = 2.0  # ssh's time to say why it ended


def auth_header(auth: Mapping[str, str]) -> dict[str, str]:
    """The header of a pull or push with credentials, which the engine does not keep."""
    return {"X-Registry-Auth": base64.urlsafe_b64encode(json.dumps(dict(auth)).encode()).decode()}


class SocketLine(HTTPConnection):
    """Through the engine's socket on this machine.

    Attributes:
        waiting: see `LiveSocket`; set before it connects.
    """

    waiting: Waiting | None = None

    def __init__(self, address: EngineAddress) -> None:
        super().__init__("docker", timeout=_TIMEOUT_S)
        self._address = address

    def connect(self) -> None:
        """Connect to the engine's socket; raises EngineMissingError."""
        self.sock = self._address.dial(_TIMEOUT_S)
        self.sock.waiting = self.waiting

    def failure(self) -> SkywardError | None:
        """Details on why the connection broke; none beyond the exception."""
        return None


class SshLine(HTTPConnection):
    """Through `ssh`, and over there the docker command as a pipe to its engine.

    Attributes:
        waiting: see `LiveSocket`; set before it connects.
    """

    waiting: Waiting | None = None

    def __init__(self, host: SshHost) -> None:
        super().__init__("docker", timeout=_TIMEOUT_S)
        self._host = host
        self._ssh: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._said = ""

    def connect(self) -> None:
        """Start ssh; that it fails is found out with the first answer."""
        import subprocess  # a build here needs neither of them
        from tempfile import TemporaryFile

        ours, theirs = socket.socketpair()
        sock = LiveSocket(fileno=ours.detach())
        sock.engine = self._host.url
        sock.waiting = self.waiting
        sock.settimeout(_TIMEOUT_S)
        self.sock = sock
        self._errors = TemporaryFile()  # noqa: SIM115 - closed with the connection
        command = self._host.command("docker", "system", "dial-stdio")
        with theirs:
            try:
                # a session of its own: Ctrl-C must not end it before the build has been called off
                self._ssh = subprocess.Popen(
                    command, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=self._errors, start_new_session=True
                )
            except OSError as error:
                raise EngineMissingError(
                    f"The ssh command could not be started ({error}). Reaching {self._host.url} takes OpenSSH's client."
                ) from error

    def failure(self) -> SkywardError | None:
        """Output of ssh or of the other machine on why the connection broke."""
        self.close()
        return self._host.failure(self._said)

    def close(self) -> None:
        """Close the connection, which ends ssh; what it said is kept until the next connection."""
        super().close()
        if self._ssh is not None:
            from subprocess import TimeoutExpired

            try:
                self._ssh.wait(_END_S)
            except TimeoutExpired:
                self._ssh.kill()
                self._ssh.wait()
            self._ssh = None
        if self._errors is not None:
            self._errors.seek(0)
            self._said = self._errors.read().decode(errors="replace")
            self._errors.close()
            self._errors = None
