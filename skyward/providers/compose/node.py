"""Nodes in the containers of a compose file: claimed, reached and given back through the engine alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

from skyward.engine import EngineAddress
from skyward.engine.connection import Execution
from skyward.errors import EngineMissingError, ProviderError
from skyward.nodes.container import COMMAND
from skyward.nodes.node import Exit, Launch, exit_of
from skyward.runner.entry.standby import EXIT_TAKEN, GREETING
from skyward.system import socket, threading

_PYTHON = COMMAND[0]
_TAKE = (_PYTHON, "-m", "skyward.runner.entry.standby", "take")
_RELAY = (_PYTHON, "-m", "skyward.runner.entry.relay")
_GREETING_S = 30.0  # a Python that starts on a busy machine
_END_S = 10.0  # how long a node may take to end and to tidy up
_CHUNK = 1 << 18


@dataclass(frozen=True, slots=True)
class Standby:
    """A container that waits to become a node.

    Attributes:
        container: its id.
        name: its name.
        address: its IP address on the network it shares with the others.
        image: what it was made from.
        owner: identifier of the pool that brought it up; "standby" if that was a person.
        gpus: how many NVIDIA GPUs it has for itself.
    """

    container: str
    name: str
    address: str
    image: str
    owner: str
    gpus: int = 0


class Taken:
    """A container that this client has for itself, until its connection to it is closed.

    Attributes:
        standby: which one.
        port: a free TCP port there.
        volumes: mounts where functions write; they are not cleaned for the next client.
    """

    def __init__(self, standby: Standby, execution: Execution, output: Iterator[bytes], facts: dict[str, Any]) -> None:
        self.standby, self.execution, self.output = standby, execution, output
        self.run_dir, self.port = str(facts["run_dir"]), int(facts["port"])
        self.volumes: list[str] = facts.get("volumes", [])  # older runners give none, and are refused later

    def give_back(self) -> None:
        """Let others have it, at once."""
        self.execution.close()


def take(engine: EngineAddress, standby: Standby) -> Taken | None:
    """Take a container for this client; None if another client has it.

    Raises:
        ProviderError: no standby of skyward's runs there, or it does not answer.
        EngineError: the engine refuses.
    """
    execution = Execution(engine, standby.container, _TAKE)
    execution.limit(_GREETING_S)
    output, said = execution.output(), b""
    for chunk in output:
        said += chunk
        if b"\n" in said and said.startswith(GREETING.encode()):
            execution.limit(None)
            greeting, _, rest = said.partition(b"\n")
            facts = json.loads(greeting.removeprefix(GREETING.encode()))
            return Taken(standby, execution, chain([rest] if rest else (), output), facts)
    code = execution.exit_code()
    execution.close()
    if code == EXIT_TAKEN:
        return None
    words = said.decode(errors="replace").strip() or "It printed nothing."
    raise ProviderError(
        f"Container {standby.name} (image {standby.image}) cannot become a node: `{' '.join(_TAKE)}` there ended with "
        f"exit status {code}. Its image must be one that skyward builds, of this version. {words}"
    )


class ComposeProcess:
    """A runner in a container that was there before.

    Raises:
        ProviderError: the container has ended.
    """

    channel = b""  # the engine's socket

    def __init__(self, engine: EngineAddress, taken: Taken, launch: Launch) -> None:
        self._engine, self._taken = engine, taken
        self._ended = threading.Event()
        self.title = f"container {taken.standby.name}"
        try:
            taken.execution.send(json.dumps(launch.order).encode() + b"\n")
        except OSError as error:
            raise ProviderError(
                f"Node {launch.node} of pool {launch.pool} cannot be started: its container {taken.standby.name} has "
                f"ended ({error})."
            ) from error

    def output(self) -> Iterator[bytes]:
        """What the runner prints, until it ends."""
        try:
            yield from self._taken.output
        finally:
            self._ended.set()

    def dial(self, address: str) -> socket.socket:
        """A socket that leads, through the engine, to an address that the runner announced."""
        standby = self._taken.standby
        relay = Execution(self._engine, standby.container, (*_RELAY, self._taken.run_dir, address))
        theirs, ours = socket.socketpair()
        for copy in (_to_node, _to_client):
            name = f"{standby.name}-{copy.__name__.strip('_')}"
            threading.Thread(target=copy, args=(relay, ours), name=name, daemon=True).start()
        return theirs

    def wait(self, timeout_s: float) -> Exit | None:
        """How the runner ended, None if it still runs after `timeout_s`."""
        if not self._ended.wait(timeout_s):
            return None
        try:
            code = self._taken.execution.exit_code()
        except EngineMissingError:
            return Exit(code=None, text=f"is unreachable: the Docker engine at {self._engine.url} is gone")
        if code is None:
            return Exit(code=None, text=f"is gone: its container {self._taken.standby.name} was stopped or removed")
        return exit_of(code)

    def end(self) -> None:
        """End the runner at once, wait until its container is free again, and let go of it."""
        self._taken.execution.end_input()
        self._ended.wait(_END_S)
        self._taken.give_back()


def _to_node(relay: Execution, client: socket.socket) -> None:
    """From the client to the node (a thread of its own)."""
    buffer = memoryview(bytearray(_CHUNK))
    with suppress(OSError):  # the node is gone, which the other direction tells the client
        while count := client.recv_into(buffer):
            relay.send(buffer[:count])
    relay.end_input()


def _to_client(relay: Execution, client: socket.socket) -> None:
    """From the node to the client (a thread of its own). It closes both, when the other can do nothing more."""
    with suppress(OSError):  # the client has closed
        for data in relay.output():
            client.sendall(data)
    with suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)  # wakes the other direction
    relay.close()
    client.close()
