"""The address of the Docker engine, and connections to it that distinguish slow answers from a frozen engine.

The address is found as by the docker CLI, since the SDK does not support contexts. Order: the caller's address,
`DOCKER_HOST`, the context named by `DOCKER_CONTEXT` or by the CLI's configuration, the default socket; if that does not
exist, the socket of the user's rootless engine, or of Podman's.

A stopped or hanging daemon still accepts connections: the kernel does that for it. Its answer then never arrives, while
a pull or a start on a busy machine may legitimately take minutes. So after some silence the engine is pinged on another
connection, to which a live one answers at once whatever else it does.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skyward.engine.failures import ADVICE
from skyward.errors import ConfigError, EngineMissingError

DEFAULT_URL = "unix:///var/run/docker.sock"
_MAY_NOT = (
    "Add the user to the group that owns it (`sudo usermod -aG docker $USER`, then log in again), or use "
    "provider=sky.Local()."
)
_SILENCE_S, _PING_S = 3.0, 7.0  # ten seconds in total, of the fifteen that opening or closing a pool may take
_AGAIN_S = 0.3  # both, for an engine that was just found frozen: several more requests may follow
_REMEMBERED_S = 30.0
_frozen: dict[str, float] = {}  # engines, and when they were last found frozen


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """An engine's socket on this machine.

    Attributes:
        path: the unix socket.
        origin: what named it, for error messages.
    """

    path: Path
    origin: str

    @property
    def url(self) -> str:
        """The address in the form of `DOCKER_HOST`."""
        return self.socket_url

    @property
    def socket_url(self) -> str:
        """The socket to connect to, in the same form; for a forwarded engine, `url` names its machine."""
        return f"unix://{self.path}"

    def dial(self, timeout_s: float = 10) -> LiveSocket:
        """Connect to the engine.

        Raises:
            EngineMissingError: there is no answer, or this user has no permission.
        """
        where = f"No Docker engine answers at {self.url} (from {self.origin})"
        try:
            return LiveSocket.connected(self.path, self.url, timeout_s)
        except OSError as error:
            found, advice = f"{error}.", ADVICE
            if isinstance(error, FileNotFoundError):
                found = "there is no such socket."
            elif isinstance(error, ConnectionRefusedError):
                found = "the socket exists, but nobody listens."
            elif isinstance(error, PermissionError):
                found, advice = "permission denied, this user may not open it.", _MAY_NOT
            raise EngineMissingError(f"{where}: {found} {advice}") from None


def find_engine(base_url: str | None = None, env: Mapping[str, str] = os.environ) -> EngineAddress:
    """Return the engine that the docker CLI would use, or the one at `base_url`.

    Raises:
        ConfigError: the address is not a unix socket of this machine, or the named context does not exist.
    """
    if base_url:
        return _socket(base_url, "the provider's base_url")
    if env.get("DOCKER_HOST"):
        return _socket(env["DOCKER_HOST"], "DOCKER_HOST")
    # not Path.home(), which raises for a user without a home
    own = Path(env.get("HOME") or os.path.expanduser("~"))  # noqa: PTH111
    folder = Path(env.get("DOCKER_CONFIG") or own / ".docker")
    name, said_by = env.get("DOCKER_CONTEXT"), "DOCKER_CONTEXT"
    if not name:
        name, said_by = _read(folder / "config.json").get("currentContext"), str(folder / "config.json")
    if not name or name == "default":
        return _default(env)
    # the CLI keeps each context in a folder named by the SHA-256 of the context's name
    meta = folder / "contexts" / "meta" / hashlib.sha256(name.encode()).hexdigest() / "meta.json"
    url = _read(meta).get("Endpoints", {}).get("docker", {}).get("Host")
    if not url:
        raise ConfigError(
            f"The docker context {name!r}, named by {said_by}, has no engine address in {meta}. "
            "Choose another with `docker context use`, or set DOCKER_HOST."
        )
    return _socket(url, f"the docker context {name!r}")


def _default(env: Mapping[str, str]) -> EngineAddress:
    """Return Docker's default socket, or if it does not exist that of the user's own engine, or one of Podman's."""
    own = [Path(env["XDG_RUNTIME_DIR"])] if env.get("XDG_RUNTIME_DIR") else []
    others = [(folder / "docker.sock", "rootless Docker's default address") for folder in own]
    podmans = [folder / "podman" / "podman.sock" for folder in (*own, Path("/run"))]
    others += [(path, "Podman's default address") for path in podmans]
    if not Path(DEFAULT_URL.removeprefix("unix://")).exists():
        for path, name in others:
            if path.exists():
                return EngineAddress(path, name)
    return _socket(DEFAULT_URL, "the default address")


def _socket(url: str, origin: str) -> EngineAddress:
    given: object = url
    if not isinstance(given, str):
        raise ConfigError(f"{origin} is a string of the form unix:///path/to/docker.sock; found {given!r}.")
    scheme, _, rest = url.partition("://")
    if scheme == "unix" and rest:
        return EngineAddress(Path("/" + rest.lstrip("/")), origin)
    if url.startswith("/"):
        raise ConfigError(f"The Docker engine's address {url!r} (from {origin}) is a path: write 'unix://{url}'.")
    there = "user@host" if scheme != "ssh" else rest.partition("/")[0]
    raise ConfigError(
        f"The Docker engine at {url!r} (from {origin}) is not on this machine: sky.Docker() talks to its containers "
        "through a directory it shares with them, so it needs an address of the form unix:///path/to/docker.sock. For "
        f"containers of another machine use sky.SSH({there!r}), which needs no engine here."
    )


def _read(path: Path) -> dict[str, Any]:
    """Return a JSON object from a file; empty if there is no such file."""
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"Docker's configuration file {path} cannot be read: {error}.") from error
    return document if isinstance(document, dict) else {}


class LiveSocket(socket.socket):
    """A connection to an engine: a socket that, if it has a time limit, checks the engine during silence.

    Attributes:
        engine: the engine's address, for messages.
        path: its socket on this machine; None if it cannot be pinged.
    """

    engine: str
    path: Path | None = None

    @classmethod
    def connected(cls, path: Path, engine: str, timeout_s: float | None) -> LiveSocket:
        """Connect to the engine that listens there; raises OSError."""
        sock = cls(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.path, sock.engine = path, engine
        try:
            sock.settimeout(timeout_s)
            sock.connect(str(path))
        except BaseException:
            sock.close()
            raise
        return sock

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Receive as a socket does.

        Raises:
            EngineMissingError: the engine is frozen.
            TimeoutError: it is alive, but has not answered within the time limit.
        """
        self._wait(select.POLLIN, "no answer")
        return super().recv_into(buffer, nbytes, flags)

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Send as a socket does, as long as the engine accepts data.

        Raises:
            EngineMissingError: the engine is frozen.
            TimeoutError: it is alive, but has accepted nothing within the time limit.
        """
        left = memoryview(data).cast("B")
        while left:
            self._wait(select.POLLOUT, "nothing taken")
            left = left[self.send(left, flags) :]

    def _wait(self, event: int, failing: str) -> None:
        """Wait until the engine answers or accepts data; return at once without a time limit."""
        limit_s = self.gettimeout()
        if limit_s is None:
            return
        began = time.monotonic()
        poller = select.poll()
        poller.register(self, event)
        while not poller.poll(min(_patience(self.engine, _SILENCE_S), limit_s) * 1000):
            if time.monotonic() - began > limit_s:
                raise TimeoutError(f"{failing} within {limit_s:g} s")
            if self.path is not None:
                check_alive(self.path, self.engine)


def check_alive(path: Path, engine: str) -> None:
    """Check that an engine answers a ping.

    Raises:
        EngineMissingError: it does not.
    """
    if _answers(path, _patience(engine, _PING_S)):
        _frozen.pop(engine, None)
        return
    _frozen[engine] = time.monotonic()
    raise EngineMissingError(
        f"The Docker engine at {engine} is frozen: it takes connections, but answers neither what it is asked nor a "
        "ping. Let it go on or restart it (for example `systemctl restart docker`). Containers of pools that could not "
        "be removed end by their lease."
    )


def _answers(path: Path, limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(limit_s)
            sock.connect(str(path))
            sock.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
            sock.settimeout(max(0.01, deadline - time.monotonic()))
            return bool(sock.recv(1))
    except TimeoutError:
        return False
    except OSError:
        return True  # it has ended, which the original connection reports in better words


def _patience(engine: str, usual_s: float) -> float:
    recently = time.monotonic() - _frozen.get(engine, -_REMEMBERED_S) < _REMEMBERED_S
    return _AGAIN_S if recently else usual_s
