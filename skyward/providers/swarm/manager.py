"""The connection to a swarm: its manager's engine, here or through SSH, and through it the machines' addresses."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from skyward.engine.address import EngineAddress, find_engine
from skyward.errors import ConfigError, EngineMissingError, ProviderError, WireError
from skyward.model.ssh import SshHost
from skyward.nodes.claimed import DIAL_S, dial_directly
from skyward.nodes.ssh_host import Machine
from skyward.providers.swarm.api import Document, SwarmApi
from skyward.ssh.handed import handed_hosts
from skyward.ssh.preflight import check_host, refuse
from skyward.system import socket

_UNUSED_LEASE_S = 60.0  # of a watchdog that makes nothing


@dataclass(frozen=True, slots=True)
class ManagerAddress:
    """Where a manager is.

    Attributes:
        host: the machine that is reached by SSH; None for this one.
        url: the engine's socket on this machine, as `unix:///path`; None for what the docker command would use.
    """

    host: SshHost | None
    url: str | None

    @classmethod
    def of(
        cls, engine: str | None, key: str | os.PathLike[str] | None, known_hosts: str | os.PathLike[str] | None
    ) -> ManagerAddress:
        """The manager that a caller names; by default the engine that the docker command would use.

        Raises:
            ConfigError: the text is no such address.
        """
        given: object = engine
        if given is not None and not isinstance(given, str):
            raise ConfigError(f"sky.Swarm: a manager is named by a string such as 'ssh://user@host'; found {given!r}.")
        text = engine or os.environ.get("DOCKER_HOST") or ""
        if text.startswith("ssh://"):
            host = SshHost.parse(text)
            if handed := handed_hosts().get(host.name):
                return cls(handed, None)
            files = [str(path) if path else None for path in (key, known_hosts)]
            return cls(replace(host, key=files[0], known_hosts=files[1]), None)
        if engine and not engine.startswith("unix://"):
            raise ConfigError(
                f"sky.Swarm: a manager is named as 'ssh://user@host', or as 'unix:///path' of its engine's socket on "
                f"this machine; found {engine!r}."
            )
        if key or known_hosts:
            raise ConfigError("sky.Swarm: key= and known_hosts= are for a manager that is reached by SSH.")
        return cls(None, engine)

    @property
    def name(self) -> str:
        """Its name for messages."""
        return self.host.name if self.host else "this machine"


class Manager:
    """An open connection to a manager.

    Attributes:
        api: its HTTP interface.

    Raises:
        ProviderError: its machine cannot be reached.
        EngineMissingError: no engine answers.
    """

    def __init__(self, address: ManagerAddress, folder: Path) -> None:
        self.address = address
        self._machine: Machine | None = None
        self.engine: EngineAddress
        if address.host is None:
            self.engine = find_engine(address.url)
        else:
            self._machine = machine = Machine(address.host, "none", folder / "m", _UNUSED_LEASE_S)
            try:
                refuse(check_host(machine.name, machine.open(), 0, None), 1)
                self.engine = machine.engine_address
            except BaseException:
                self.close()
                raise
        self.api = SwarmApi(self.engine)

    def dial(self, address: str, port: int) -> socket.socket:
        """A connected socket to a machine of the swarm.

        Raises:
            OSError: nothing listens there, or it cannot be reached.
        """
        if self._machine is None:
            return dial_directly(address, port)
        host = f"[{address}]" if ":" in address else address
        try:
            sock = self._machine.dial(PurePosixPath("/"), f"tcp:{host}:{port}")
        except (ProviderError, WireError) as error:
            raise ConnectionError(str(error)) from error
        sock.settimeout(DIAL_S)
        return sock

    def machines(self) -> dict[str, Document]:
        """The machines of the swarm, by id.

        Raises:
            EngineError: the manager refuses or does not answer.
        """
        return {str(node["ID"]): node for node in self.api.nodes()}

    def why_gone(self) -> str:
        """Why the manager cannot be asked any more, to complete "Node 1 ..."; "" if it can."""
        machine = self._machine
        if machine is not None and machine.connection.ended.is_set():
            why = machine.connection.why or "without a reason given"
            return f"is unreachable: the SSH connection to the manager {machine.name} ended ({why})"
        try:
            self.engine.dial(DIAL_S).close()
        except EngineMissingError:
            return f"is unreachable: the manager's engine at {self.engine.url} is gone"
        return ""

    def close(self) -> None:
        """End the connection; nothing happens the second time."""
        if self._machine is not None:
            self._machine.connection.kill()
