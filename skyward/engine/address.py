"""The address of the Docker engine, and connections to it.

The address is found as by the docker CLI, since the SDK does not support contexts. Order: the caller's address,
`DOCKER_HOST`, the context named by `DOCKER_CONTEXT` or by the CLI's configuration, the default socket; if that does not
exist, the socket of the user's rootless engine, or of Podman's.

A stopped or hanging daemon still accepts connections: the kernel does that for it. So an engine is pinged before a
connection is opened, and before containers are removed.
"""

from __future__ import annotations

import hashlib
import json
import os
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
_PING_S = 10.0
_AGAIN_S = 0.3  # for an engine that was just found frozen: several more requests may follow
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

    def dial(self, timeout_s: float = 10) -> socket.socket:
        """Connect to the engine.

        Raises:
            EngineMissingError: there is no answer, or this user has no permission.
        """
        where = f"No Docker engine answers at {self.url} (from {self.origin})"
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(timeout_s)
            sock.connect(str(self.path))
            check_alive(self.path, self.url)
        except EngineMissingError:
            sock.close()
            raise
        except OSError as error:
            sock.close()
            found, advice = f"{error}.", ADVICE
            if isinstance(error, FileNotFoundError):
                found = "there is no such socket."
            elif isinstance(error, ConnectionRefusedError):
                found = "the socket exists, but nobody listens."
            elif isinstance(error, PermissionError):
                found, advice = "permission denied, this user may not open it.", _MAY_NOT
            raise EngineMissingError(f"{where}: {found} {advice}") from None
        return sock


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


def check_alive(path: Path, engine: str) -> None:
    """Check that an engine answers a ping.

    Raises:
        EngineMissingError: it does not.
    """
    is_known = time.monotonic() - _frozen.get(engine, -_REMEMBERED_S) < _REMEMBERED_S
    if _answers(path, _AGAIN_S if is_known else _PING_S):
        _frozen.pop(engine, None)
        return
    _frozen[engine] = time.monotonic()
    raise EngineMissingError(
        f"The Docker engine at {engine} is frozen: it accepts connections, but answers neither requests nor a "
        "ping. Let it go on or restart it (for example `systemctl restart docker`). Containers of pools that could not "
        "be removed end by their lease."
    )


def _answers(path: Path, limit_s: float) -> bool:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(limit_s)
            sock.connect(str(path))
            sock.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
            return bool(sock.recv(1))
    except TimeoutError:
        return False
    except OSError:
        return True  # it has ended, which the original connection reports in better words
