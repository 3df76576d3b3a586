"""Running a program in an existing container, with its streams, through the engine's socket alone."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator, Sequence
from http.client import HTTPException
from typing import Any

from skyward.engine.address import EngineAddress
from skyward.engine.failures import ADVICE, broken_off, translate
from skyward.engine.lines import SocketLine
from skyward.errors import EngineMissingError

_FRAME_HEADER = 8  # one byte for the stream, three of padding, four for the length
_BUFFER = 1 << 18
_END_NEWS_S = 2.0  # how long after the last byte an engine may take to know the exit status


def runs(address: EngineAddress, container: str) -> bool:
    """Whether a container runs.

    Raises:
        EngineMissingError: the engine does not answer.
    """
    line = SocketLine(address)
    try:
        line.request("GET", f"/containers/{container}/json")
        response = line.getresponse()
        about = json.loads(response.read() or b"null")
    except (HTTPException, OSError) as error:
        raise EngineMissingError(
            f"The Docker engine at {address.url} broke off when asked whether a container runs ({error}). {ADVICE}"
        ) from error
    finally:
        line.close()
    return response.status == 200 and bool(about["State"]["Running"])


class Execution:
    """A running program in a container. It keeps running while its input is open, unless it ends by itself.

    Args:
        address: the engine.
        container: id of a running container.
        command: the program; seen by everybody who may list processes there, so no place for secrets.

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
        """Close its input; nothing happens if the connection is gone."""
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def output(self) -> Iterator[bytes]:
        """Its output on both streams, ending when it, the container or the engine ends. It has to be read."""
        for _, data in self.streams():
            yield data

    def streams(self) -> Iterator[tuple[int, bytes]]:
        """The same, each part with the number of its stream: 1 for standard output, 2 for standard error."""
        try:
            while len(header := self._stream.read(_FRAME_HEADER)) == _FRAME_HEADER:
                yield header[0], self._stream.read(int.from_bytes(header[4:], "big"))
        except OSError:
            return  # cut off: what ended is found out by asking

    def limit(self, timeout_s: float | None) -> None:
        """Limit how long a read or write may take; the output ends there."""
        self._sock.settimeout(timeout_s)

    def close(self) -> None:
        """Close the connection, which ends the program's input and, for readers, its output."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the engine was faster
        self._stream.close()
        self._sock.close()

    def exit_code(self) -> int | None:
        """Its exit status, once its output has ended; None if it is not known.

        Raises:
            EngineMissingError: the engine is gone.
        """
        deadline = time.monotonic() + _END_NEWS_S
        while True:
            found = self._ask("GET", f"/exec/{self._id}/json", missing=True)
            if found is None or not found["Running"]:
                return None if found is None or found["ExitCode"] is None else int(found["ExitCode"])
            if time.monotonic() > deadline:
                return None
            time.sleep(0.02)  # the engine offers nothing to wait for

    def _start(self) -> None:
        """Turn the connection into the program's streams.

        Not through the SDK, which loses what arrives together with the engine's answer (docker-py#3332).
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
        """The engine's answer; None for what it does not know, if that is allowed."""
        line = SocketLine(self._address)
        try:
            line.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
            response = line.getresponse()
            answer = json.loads(response.read() or b"null")
        except (HTTPException, OSError) as error:
            raise broken_off(self._action, self._address.url, error) from error
        finally:
            line.close()
        if response.status == 404 and missing:
            return None
        if response.status >= 400:
            raise translate(self._action, self._address.url, str((answer or {}).get("message", response.reason)))
        return answer
