"""HTTP connections to an engine, without the SDK, and programs run in its containers through them.

They use a socket of this machine, or SSH and a docker command on the other machine.
"""

from __future__ import annotations

import base64
import json
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import IO, TYPE_CHECKING, Any

from skyward.engine.address import EngineAddress, LiveSocket
from skyward.engine.failures import ADVICE, broken_off, translate
from skyward.errors import EngineMissingError, SkywardError

if TYPE_CHECKING:
    import subprocess

    from skyward.model.ssh import SshHost

TIMEOUT_S = 120.0  # longer silence means a hung engine
_END_S = 2.0  # time for ssh to report why it ended
_FRAME_HEADER = 8  # one byte for the stream, three of padding, four for the length
_BUFFER = 1 << 18
_END_NEWS_S = 2.0  # time after the last byte for an engine to learn the exit status


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

        ours, theirs = socket.socketpair()
        sock = LiveSocket(fileno=ours.detach())
        sock.engine = self._host.url
        sock.settimeout(self.timeout)
        self.sock = sock
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
        response, about = _exchange(address, "GET", f"/containers/{container}/json")
    except (HTTPException, OSError) as error:
        raise EngineMissingError(
            f"The Docker engine at {address.url} broke off when asked whether a container runs ({error}). {ADVICE}"
        ) from error
    return response.status == 200 and bool(about["State"]["Running"])


def _exchange(address: EngineAddress, method: str, path: str, body: Any = None) -> tuple[HTTPResponse, Any]:
    """Send one request; return the response and its content."""
    with closing(SocketLine(address)) as line:
        line.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
        response = line.getresponse()
        return response, json.loads(response.read() or b"null")


class Execution:
    """A running program in a container. It keeps running while its input is open, unless it ends on its own.

    Args:
        address: the engine.
        container: id of a running container.
        command: the program; visible to everybody who may list processes there, so not suitable for secrets.

    Raises:
        EngineError: the engine refuses.
        EngineMissingError: it does not answer.
    """

    def __init__(self, address: EngineAddress, container: str, command: Sequence[str]) -> None:
        self._address = address
        self._action = f"run {' '.join(command[:3])} in container {container[:12]}"
        wish = {"AttachStdin": True, "AttachStdout": True, "AttachStderr": True, "Cmd": list(command)}
        made = self._ask("POST", f"/containers/{container}/exec", wish)
        self._id = str(made["Id"])
        self._sock = address.dial()
        try:
            self._start()
        except BaseException:
            self._sock.close()
            raise

    def send(self, data: bytes | memoryview) -> None:
        """Write to its input; raises OSError when it has ended."""
        self._sock.sendall(data)

    def end_input(self) -> None:
        """Close its input; do nothing if the connection is closed."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def output(self) -> Iterator[bytes]:
        """Yield its output on both streams, until it, the container or the engine ends. It has to be read."""
        for _, data in self.streams():
            yield data

    def streams(self) -> Iterator[tuple[int, bytes]]:
        """Yield its output with the number of the stream: 1 for standard output, 2 for standard error."""
        try:
            while len(header := self._stream.read(_FRAME_HEADER)) == _FRAME_HEADER:
                yield header[0], self._stream.read(int.from_bytes(header[4:], "big"))
        except OSError:
            return  # cut off: the cause is found by asking

    def limit(self, timeout_s: float | None) -> None:
        """Limit how long a read or write may take; the output ends there."""
        self._sock.settimeout(timeout_s)

    def close(self) -> None:
        """Close the connection, which ends the program's input and, for readers, its output."""
        with suppress(OSError):  # the engine was faster
            self._sock.shutdown(socket.SHUT_RDWR)
        self._stream.close()
        self._sock.close()

    def exit_code(self) -> int | None:
        """Return its exit status, once its output has ended; None if unknown.

        Raises:
            EngineMissingError: the engine does not answer.
        """
        deadline = time.monotonic() + _END_NEWS_S
        while True:
            found = self._ask("GET", f"/exec/{self._id}/json", missing=True)
            if found is None or not found["Running"]:
                return None if found is None or found["ExitCode"] is None else int(found["ExitCode"])
            if time.monotonic() > deadline:
                return None
            time.sleep(0.02)  # the API has no call that waits for this

    def _start(self) -> None:
        """Turn the connection into the program's streams.

        The SDK is not used, as it loses output that arrives together with the engine's answer (docker-py#3332).
        """
        body = b'{"Detach":false,"Tty":false}'
        head = (
            f"POST /exec/{self._id}/start HTTP/1.1",
            "Host: docker",
            "Connection: Upgrade",
            "Upgrade: tcp",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        )
        try:
            self._sock.settimeout(120)
            self._sock.sendall("\r\n".join((*head, "", "")).encode() + body)
            self._stream = self._sock.makefile("rb", _BUFFER)
            status = self._stream.readline().split(maxsplit=2)
            while self._stream.readline() not in (b"\r\n", b""):
                pass
            if len(status) < 2 or status[1] != b"101":
                answer = self._stream.read(4096) if status else b"nothing"
                raise translate(self._action, self._address.url, answer.decode(errors="replace"))
            self._sock.settimeout(None)
        except OSError as error:
            raise broken_off(self._action, self._address.url, error) from error

    def _ask(self, method: str, path: str, body: Any = None, *, missing: bool = False) -> Any:
        """Return the engine's answer; None for a missing object, if that is allowed."""
        try:
            response, answer = _exchange(self._address, method, path, body)
        except (HTTPException, OSError) as error:
            raise broken_off(self._action, self._address.url, error) from error
        if response.status == 404 and missing:
            return None
        if response.status >= 400:
            raise translate(self._action, self._address.url, str((answer or {}).get("message", response.reason)))
        return answer
