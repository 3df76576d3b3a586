"""HTTP connections to an engine's socket, without the SDK."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from contextlib import closing
from http.client import HTTPConnection, HTTPException

from skyward.engine.address import EngineAddress
from skyward.engine.failures import ADVICE
from skyward.errors import EngineMissingError

TIMEOUT_S = 120.0  # longer silence means a hung engine


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
