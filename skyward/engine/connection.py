"""HTTP connections to an engine, without the SDK.

They use a socket of this machine, or SSH and a docker command on the other machine.
"""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Mapping
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import IO, TYPE_CHECKING

from skyward.engine.address import EngineAddress
from skyward.engine.failures import ADVICE
from skyward.errors import EngineMissingError, SkywardError

if TYPE_CHECKING:
    import subprocess

    from skyward.model.ssh import SshHost

TIMEOUT_S = 120.0  # longer silence means a hung engine
_END_S = 2.0  # time for ssh to report why it ended


def auth_header(auth: Mapping[str, str]) -> dict[str, str]:
    """Return the header of a pull or push with credentials, which the engine does not keep."""
    return {"X-Registry-Auth": base64.urlsafe_b64encode(json.dumps(dict(auth)).encode()).decode()}


class SocketLine(HTTPConnection):
    """A connection through the engine's socket on this machine."""

    def __init__(self, address: EngineAddress, timeout_s: float = TIMEOUT_S) -> None:
        super().__init__("docker", timeout=timeout_s)
        self._address = address

    def connect(self) -> None:
        """Connect to the engine's socket; raises EngineMissingError."""
        self.sock = self._address.dial(self.timeout or TIMEOUT_S)

    def failure(self) -> SkywardError | None:
        """Return details on why the connection broke; always None, as the exception has them."""
        return None


class SshLine(HTTPConnection):
    """A connection through `ssh`, with the docker command there as a pipe to its engine."""

    def __init__(self, host: SshHost, timeout_s: float = TIMEOUT_S) -> None:
        super().__init__("docker", timeout=timeout_s)
        self._host = host
        self._ssh: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._said = ""
        self._is_answering = False

    def getresponse(self) -> HTTPResponse:
        """Return the next answer. One that ends with the connection keeps ssh until `close`."""
        self._is_answering = True
        try:
            return super().getresponse()
        finally:
            self._is_answering = False

    def connect(self) -> None:
        """Start ssh; a failure shows with the first answer."""
        import subprocess  # local builds need neither of them
        from tempfile import TemporaryFile

        self.sock, theirs = socket.socketpair()
        self.sock.settimeout(self.timeout)
        self._errors = TemporaryFile()  # noqa: SIM115 - closed with the connection
        command = self._host.command("docker", "system", "dial-stdio")
        with theirs:
            try:
                # its own session, as Ctrl-C must not end it before the build has been cancelled
                self._ssh = subprocess.Popen(
                    command, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=self._errors, start_new_session=True
                )
            except OSError as error:
                raise EngineMissingError(
                    f"The ssh command could not be started ({error}). Reaching {self._host.url} takes OpenSSH's client."
                ) from error

    def failure(self) -> SkywardError | None:
        """Return the output of ssh or of the other machine on why the connection broke."""
        self.close()
        return self._host.failure(self._said)

    def close(self) -> None:
        """Close the connection, which ends ssh; its output is kept until the next connection."""
        super().close()
        if self._is_answering:
            return
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


def runs(address: EngineAddress, container: str) -> bool:
    """Return whether a container is running.

    Raises:
        EngineMissingError: the engine does not answer.
    """
    try:
        with closing(SocketLine(address)) as line:
            line.request("GET", f"/containers/{container}/json")
            response = line.getresponse()
            about = json.loads(response.read() or b"null")
    except (HTTPException, OSError) as error:
        raise EngineMissingError(
            f"The Docker engine at {address.url} broke off when asked whether a container runs ({error}). {ADVICE}"
        ) from error
    return response.status == 200 and bool(about["State"]["Running"])
