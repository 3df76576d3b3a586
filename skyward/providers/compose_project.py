"""The project of a compose file: brought up and down by Docker Compose, inspected through the engine.

Its containers wait to become nodes; the engine alone is used to take, reach and release them.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from skyward.engine import Engine, EngineAddress, find_engine
from skyward.engine.images import Images
from skyward.errors import EngineMissingError, ProviderError
from skyward.nodes.access import exec_command
from skyward.nodes.container import COMMAND, POOL
from skyward.nodes.node import Exit, Launch, exit_of
from skyward.runner.entry.standby import EXIT_TAKEN, GREETING
from skyward.system import socket, threading, time

PROJECT = "com.docker.compose.project"  # labels that compose sets on what it creates
USER_VAR = "SKYWARD_NODE_USER"  # the user that functions run as if the file names none
GPUS = "skyward.gpus"  # label of services whose containers have dedicated GPUs
_NUMBER = "com.docker.compose.container-number"
_SERVICE = "com.docker.compose.service"
_UP_LIMIT_S, _DOWN_LIMIT_S = 600.0, 120.0
_GRACE_S = 2  # for containers to end on their own
_VERSION_LIMIT_S = 30.0
_LOCK_LOOK_S = 0.2
_LAST_LINES = 15
_TAKE = (COMMAND[0], "-m", "skyward.runner.entry.standby", "take")
_RELAY = (COMMAND[0], "-m", "skyward.runner.entry.relay")
_GREETING_S = 30.0  # for Python to start on a busy machine
_END_S = 10.0  # how long a node may take to end and clean up
_CHUNK = 1 << 18


@dataclass(frozen=True, slots=True)
class Standby:
    """A container that waits to become a node.

    Attributes:
        container: its id.
        name: its name.
        address: its IP address on the network that it shares with the others.
        image: the image it was created from.
        gpus: number of its dedicated NVIDIA GPUs.
    """

    container: str
    name: str
    address: str
    image: str
    gpus: int = 0


@dataclass(frozen=True)
class Project:
    """One compose file under one project name.

    Attributes:
        file: the file.
        name: the project's name.
    """

    file: Path
    name: str

    @cached_property
    def address(self) -> EngineAddress:
        """The engine that the docker CLI would use."""
        return find_engine()

    @property
    def engine(self) -> Engine:
        """The API of that engine; raises EngineMissingError if it does not answer."""
        return Engine.connect(self.address.url)

    def containers(self) -> Sequence[Mapping[str, Any]]:
        """Return all its containers, in any state."""
        return self.engine.containers(f"{PROJECT}={self.name}")

    def is_up(self) -> bool:
        """Return whether any of its containers runs."""
        return any(each["State"] == "running" for each in self.containers())

    def is_of(self, pool: str) -> bool:
        """Return whether a pool brought it up, and it has not been brought down since."""
        return any(each["Labels"].get(POOL) == pool for each in self.containers())

    def nodes(self) -> list[Standby]:
        """Return its running containers that can become nodes, in compose's numbering.

        Raises:
            ProviderError: a container has no IP address of its own.
        """
        return [_standby(each) for each in self.node_containers() if each["State"] == "running"]

    def node_containers(self) -> list[Mapping[str, Any]]:
        """Return its containers that are nodes when they run, in compose's numbering."""
        return sorted((each for each in self.containers() if POOL in each["Labels"]), key=_order)

    @contextmanager
    def locked(self) -> Iterator[int]:
        """Lock the project, so that only one client at a time checks whether it is up and brings it up.

        Yields the lock's file descriptor, for `up`: compose holds the lock until it ends.

        Raises:
            ProviderError: another client holds it for longer than compose may take.
        """
        deadline = time.monotonic() + _UP_LIMIT_S
        with self.file.open() as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise ProviderError(
                            f"Another client has been bringing up {self.file} for {_UP_LIMIT_S:g} s. End its compose."
                        ) from None
                    time.sleep(_LOCK_LOOK_S)
            yield file.fileno()

    def up(self, *locks: int, **variables: str) -> None:
        """Bring the project up; `variables` replace `${NAME}` in the file.

        Compose outlives a killed client, and holds the locks until it ends.

        Raises:
            ProviderError: compose failed; the message contains its last lines.
        """
        self._compose(("up", "--detach"), _UP_LIMIT_S, variables, locks)

    def down(self) -> None:
        """Remove its containers and network, but not its volumes. Raises ProviderError, EngineMissingError."""
        self.containers()  # compose would wait forever for a frozen engine
        self._compose(("down", "--timeout", str(_GRACE_S)), _DOWN_LIMIT_S, {})

    def _compose(
        self, words: Sequence[str], limit_s: float, variables: Mapping[str, str], locks: Sequence[int] = ()
    ) -> None:
        action = f"`{' '.join((*self.command, words[0]))}` of {self.file} (project {self.name})"
        with subprocess.Popen(
            [*self.command, "--file", str(self.file), "--project-name", self.name, *words],
            env={**os.environ, **variables, "DOCKER_HOST": self.address.url},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            pass_fds=locks,
            start_new_session=True,  # Ctrl-C in the terminal reaches only the client
        ) as program:
            try:
                said, _ = program.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                raise ProviderError(f"{action} did not end within {limit_s:g} s and was stopped.") from None
            finally:
                if program.poll() is None:
                    os.killpg(program.pid, signal.SIGKILL)
        if program.returncode:
            last = "\n".join(said.strip().splitlines()[-_LAST_LINES:])
            raise ProviderError(f"{action} ended with exit status {program.returncode}. Its last lines:\n{last}")

    @cached_property
    def command(self) -> tuple[str, ...]:
        """The command of Docker Compose: version 2 as part of the docker command, else docker-compose."""
        docker = os.environ.get("SKYWARD_DOCKER_CLI") or "docker"
        for command in ((docker, "compose"), ("docker-compose",)):
            with suppress(OSError, subprocess.SubprocessError):
                subprocess.run(
                    [*command, "version"],
                    capture_output=True,
                    stdin=subprocess.DEVNULL,
                    check=True,
                    timeout=_VERSION_LIMIT_S,
                )
                return command
        raise ProviderError(
            f"{self.file} is not up, and there is no Docker Compose to bring it up: neither `{docker} compose` nor "
            "`docker-compose` works. Install docker-compose, or the compose plugin of docker."
        )


def project_name(file: Path, env: Mapping[str, str] = os.environ) -> str:
    """Return compose's default name for a file's project: `COMPOSE_PROJECT_NAME`, else the folder's name.

    Raises:
        ProviderError: the folder's name has no character that is valid in a project name.
    """
    name = env.get("COMPOSE_PROJECT_NAME") or re.sub(r"[^-_a-z0-9]", "", file.parent.name.lower()).lstrip("-_")
    if not name:
        raise ProviderError(
            f"The folder of {file} gives no name for a project. Name it: sky.Compose(..., project=NAME)."
        )
    return name


def _order(container: Mapping[str, Any]) -> tuple[str, int]:
    labels = container["Labels"]
    return labels.get(_SERVICE, ""), int(labels.get(_NUMBER, 0))


def _standby(container: Mapping[str, Any]) -> Standby:
    name = container["Names"][0].lstrip("/")
    networks = container["NetworkSettings"]["Networks"] or {}
    address = next((each["IPAddress"] for each in networks.values() if each["IPAddress"]), None)
    if address is None:
        raise ProviderError(
            f"Container {name} has no IP address of its own (networks: {', '.join(networks) or 'none'}), and nodes of "
            "a compose file find each other by their addresses: put its service on a bridge network."
        )
    labels = container["Labels"]
    gpus = labels.get(GPUS, "0")
    if not gpus.isdigit():
        raise ProviderError(f"Container {name} has the label {GPUS}={gpus}, which is not a number of GPUs.")
    return Standby(container["Id"], name, address, container["Image"], int(gpus))


# containers as nodes -------------------------------------------------------------------------------------------------


class Execution:
    """A program that `docker exec` runs in a container until its input is closed, unless it ends on its own.

    Args:
        engine: the engine.
        container: id of a running container.
        words: the program and its arguments.
        errors: whether its standard error is part of its output.

    Attributes:
        socket: its standard streams.

    Raises:
        ProviderError: this machine has no docker command.
    """

    def __init__(self, engine: EngineAddress, container: str, words: Sequence[str], *, errors: bool = True) -> None:
        command = exec_command(engine, container, words)
        self.socket, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            self._docker = subprocess.Popen(
                command,
                stdin=number,
                stdout=number,
                stderr=number if errors else subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in the terminal reaches only the client
            )

    @property
    def has_ended(self) -> bool:
        """Whether the program, its container or the engine has ended."""
        return self._docker.poll() is not None

    def output(self) -> Iterator[bytes]:
        """Yield its output until it ends, or for as long as the socket's timeout."""
        with suppress(OSError):
            while data := self.socket.recv(_CHUNK):
                yield data

    def close(self) -> int:
        """Close its streams, wait until it has ended, and return the exit status of `docker exec`. Idempotent."""
        with suppress(OSError):  # closed before
            self.socket.shutdown(socket.SHUT_RDWR)
        try:
            self._docker.wait(_END_S)
        except subprocess.TimeoutExpired:  # the engine is frozen
            self._docker.kill()
        self.socket.close()
        return self._docker.wait()


class Taken:
    """A container that this client holds exclusively until its connection to it is closed.

    Attributes:
        standby: the container.
        port: a free TCP port in the container.
        volumes: writable mounts, which are not cleaned for the next client.
    """

    def __init__(self, standby: Standby, execution: Execution, output: Iterator[bytes], facts: dict[str, Any]) -> None:
        self.standby, self.execution, self.output = standby, execution, output
        self.run_dir, self.port = str(facts["run_dir"]), int(facts["port"])
        self.volumes: list[str] = facts.get("volumes", [])  # older runners send none, and are rejected later

    def give_back(self) -> None:
        """Release the container for other clients."""
        self.execution.close()


def take(engine: EngineAddress, standby: Standby) -> Taken | None:
    """Take a container for this client; return None if another client holds it.

    Raises:
        ProviderError: the container does not run skyward's standby, or it does not answer.
    """
    execution = Execution(engine, standby.container, _TAKE)
    execution.socket.settimeout(_GREETING_S)
    output, said = execution.output(), b""
    for chunk in output:
        said += chunk
        if b"\n" in said and said.startswith(GREETING.encode()):
            execution.socket.settimeout(None)
            greeting, _, rest = said.partition(b"\n")
            facts = json.loads(greeting.removeprefix(GREETING.encode()))
            return Taken(standby, execution, chain([rest] if rest else (), output), facts)
    code = execution.close()
    if code == EXIT_TAKEN:
        return None
    words = said.decode(errors="replace").strip() or "It printed nothing."
    raise ProviderError(
        f"Container {standby.name} (image {standby.image}) cannot become a node: `{' '.join(_TAKE)}` there ended with "
        f"exit status {code}. Its image must be one that skyward builds, of this version. {words}"
    )


class ComposeProcess:
    """A runner in an existing container.

    Raises:
        ProviderError: the container has ended.
    """

    channel = b""  # the engine's socket

    def __init__(self, engine: EngineAddress, taken: Taken, launch: Launch) -> None:
        self._engine, self._taken = engine, taken
        self._ended = threading.Event()
        self._relays: list[Execution] = []
        self.title = f"container {taken.standby.name}"
        try:
            taken.execution.socket.sendall(json.dumps(launch.order).encode() + b"\n")
        except OSError as error:
            raise ProviderError(
                f"Node {launch.node} of pool {launch.pool} cannot be started: its container {taken.standby.name} has "
                f"ended ({error})."
            ) from error

    def output(self) -> Iterator[bytes]:
        """Yield the runner's output until it ends."""
        try:
            yield from self._taken.output
        finally:
            self._ended.set()

    def dial(self, address: str) -> socket.socket:
        """Return a socket that leads, through the engine, to an address that the runner announced."""
        words = (*_RELAY, self._taken.run_dir, address)
        relay = Execution(self._engine, self._taken.standby.container, words, errors=False)
        self._relays = [each for each in self._relays if not each.has_ended] + [relay]
        return relay.socket

    def wait(self, timeout_s: float) -> Exit | None:
        """Return how the runner ended, None if it still runs after `timeout_s`."""
        if not self._ended.wait(timeout_s):
            return None
        code = self._taken.execution.close()
        try:
            if not Images(self._engine).runs(self._taken.standby.container):
                return Exit(code=None, text=f"is gone: its container {self._taken.standby.name} was stopped or removed")
        except EngineMissingError:
            return Exit(code=None, text=f"is unreachable: the Docker engine at {self._engine.url} is gone")
        return exit_of(code)

    def end(self) -> None:
        """End the runner at once, wait until its container is free again, and release it."""
        with suppress(OSError):
            self._taken.execution.socket.shutdown(socket.SHUT_WR)
        self._ended.wait(_END_S)
        self._taken.give_back()
        for relay in self._relays:  # the runner has closed its ends
            relay.close()
