"""Access to nodes that another process has started, and `Program`, a command that runs in such a node.

Commands are run by the platform's own program: `docker exec`, `kubectl exec`, `srun --overlap` through `ssh`. It starts
`skyward.runner.entry.session` in the node, which runs the command as calls are run, and ends what is left of it.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from skyward.engine.address import EngineAddress
from skyward.engine.connection import runs
from skyward.errors import ProviderError, SkywardError, WireError
from skyward.model.resource import Resource
from skyward.nodes.container import COMMAND
from skyward.nodes.run_directory import PoolDirectory
from skyward.system import time

SESSION = ("-P", "-m", "skyward.runner.entry.session")  # -P: the node's files cannot be imported in its place
_DETACH_KEYS = "--detach-keys=ctrl-@,ctrl-@,ctrl-@"  # the usual ones begin with Ctrl-P, which shells use
_END_S = 10.0  # for a session to end what it has started
_LOOKS, _LOOK_S = 10, 0.3

Stream = int | IO[bytes] | None


class NodeAccess(ABC):
    """Access to one node. As a context manager it closes its connection at the end.

    Args:
        node: the node as `Provider.find` lists it.
        title: the container or process that the node is.
        close: closes the connection.

    Attributes:
        pool, node: the pool's identifier and the node's index.
        title: the container or process that the node is, such as "container skyward-1f2e-0".
        cwd: its working directory, if the operating system cannot report that of a process; "" if unknown.
    """

    def __init__(self, node: Resource, title: str, close: Callable[[], None] = lambda: None) -> None:
        self.pool, self.node, self.title = node["pool"], node["node"], title
        self.cwd = ""
        self._close = close

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def command(self, arguments: Sequence[str], *, terminal: bool = False) -> list[str]:
        """Return the command line of this machine that runs `skyward.runner.entry.session` in the node.

        Args:
            arguments: the program's arguments.
            terminal: whether its standard streams are a terminal there, as this process' are here.

        Raises:
            SkywardError: a program that this needs is not installed.
        """

    @abstractmethod
    def loss_reason(self) -> str:
        """Return what has happened to the node, to complete "Node 1 ..."; "" if it is not known to be lost."""

    def close(self) -> None:
        """Close the connection and with it all open sessions."""
        self._close()


def exec_command(engine: EngineAddress, container: str, words: Sequence[str], *, terminal: bool = False) -> list[str]:
    """Return the `docker exec`, or where there is no docker command, the `podman exec`, of a program in a container.

    Raises:
        ProviderError: this machine has neither command.
    """
    if shutil.which("docker"):
        client = ["docker", "--host"]
    elif shutil.which("podman"):
        client = ["podman", "--url"]
    else:
        raise ProviderError("Programs in containers are started by the docker or podman command; install one here.")
    streams = ["-it", _DETACH_KEYS] if terminal else ["-i"]
    return [*client, engine.socket_url, "exec", *streams, container, *words]


class ContainerAccess(NodeAccess):
    """Access to a container, by the docker or podman command of this machine and the engine that runs it.

    Args:
        node: the node as `Provider.find` lists it.
        engine: the engine's address.
        close: closes the connection to the engine.
        loss_reason: returns what has happened to the engine's machine; "" if it is not lost.
    """

    def __init__(
        self,
        node: Resource,
        engine: EngineAddress,
        close: Callable[[], None] = lambda: None,
        loss_reason: Callable[[], str] = lambda: "",
    ) -> None:
        super().__init__(node, f"container {node['name']}", close)
        self._id, self._engine, self._loss_reason = node["id"], engine, loss_reason

    def command(self, arguments: Sequence[str], *, terminal: bool = False) -> list[str]:
        """Return the `docker exec`, or where there is no docker command, the `podman exec`."""
        words = (COMMAND[0], *SESSION, *arguments)
        return exec_command(self._engine, self._id, words, terminal=terminal)

    def loss_reason(self) -> str:
        """Return whether the container, the engine or its machine is lost, to complete "Node 1 ..."; "" if not."""
        for _ in range(_LOOKS):  # the programs of an ending container end one after another
            if reason := self._loss_reason():
                return reason
            try:
                if not runs(self._engine, self._id):
                    return self._loss_reason() or "has ended"
            except SkywardError as error:
                return self._loss_reason() or f"is gone: {str(error).rstrip('.')}"
            time.sleep(_LOOK_S)
        return ""


class ProcessAccess(NodeAccess):
    """Access to a node that is a plain process of this machine and user.

    Args:
        node: the node as `Provider.find` lists it.
        pool: the directory of its pool.

    Raises:
        ProviderError: the node has ended.
    """

    def __init__(self, node: Resource, pool: PoolDirectory) -> None:
        super().__init__(node, f"process {node['name']}")
        running = ((path, about) for path, about, process in pool.processes_by_path() if not process.is_gone())
        directory = next((path for path, about in running if about["name"] == node["name"]), None)
        if directory is None:
            raise ProviderError(f"Node {node['node']} of pool {node['pool']} has ended.")
        self._directory = directory
        self.cwd = str(directory / "work")

    def command(self, arguments: Sequence[str], *, terminal: bool = False) -> list[str]:  # noqa: ARG002 - it is ours
        """Return the program with the interpreter of this process."""
        own = str(Path(__file__).parents[2])  # sys.path may not show an editable install
        paths = os.pathsep.join(filter(None, (own, os.environ.get("PYTHONPATH"))))
        return ["env", f"PYTHONPATH={paths}", sys.executable, *SESSION, *arguments]

    def loss_reason(self) -> str:
        """Return "has ended" if the node's directory is gone, which its pool removes at the end."""
        return "" if self._directory.is_dir() else "has ended"


class Program:
    """A command that runs in a node, with the environment and directory of calls.

    It ends when the program is closed, and when this process ends: a second process, whose input this one holds open,
    passes signals on and reports how the command ended.

    Args:
        access: access to the node.
        argv: the command, run without a shell; empty to start a shell.
        size: rows and columns of the terminal that this process has; None for streams without a terminal.
        env: variables in addition to those of calls.
        stdin, stdout, stderr: as for `subprocess.Popen`.

    Attributes:
        process: the program of this machine that runs the command.

    Raises:
        SkywardError: the node cannot be accessed.
    """

    def __init__(
        self,
        access: NodeAccess,
        argv: Sequence[str],
        *,
        size: tuple[int, int] | None = None,
        env: Mapping[str, str] | None = None,
        stdin: Stream = None,
        stdout: Stream = None,
        stderr: Stream = None,
    ) -> None:
        self._access, self._closed = access, False
        token, terminal = secrets.token_hex(8), size is not None
        order = {"token": token, "pool": access.pool, "node": access.node, "size": size, "cwd": access.cwd}
        words = ["run", json.dumps({**order, "env": dict(env or {})}), *argv]
        run, control = access.command(words, terminal=terminal), access.command(["control", token])
        # sessions of their own: Ctrl-C here is passed on by this process, and must not end them
        self._control = subprocess.Popen(
            control,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,
        )
        try:
            self.process = subprocess.Popen(
                run, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=not terminal
            )
        except BaseException:
            self._end_control()
            raise

    def signal(self, number: int) -> None:
        """Send a signal to the command's process group, or to the foreground one of its terminal."""
        assert self._control.stdin
        with suppress(OSError, ValueError):  # it has ended
            self._control.stdin.write(bytes([number]))

    def wait(self) -> int:
        """Block until the command has ended; return its status, 128 plus the signal's number if one has ended it.

        Raises:
            WireError: the connection or the node was lost, or the command was ended; the message says which.
        """
        status = self.process.wait()
        report = b""
        with suppress(subprocess.TimeoutExpired, ValueError):
            report, _ = self._control.communicate(timeout=_END_S)
        self._end_control()
        if report.strip().isdigit():
            return int(report)
        node = f"Node {self._access.node} of pool {self._access.pool} ({self._access.title})"
        if self._closed:
            raise WireError(f"{node}: the command was ended by this client.")
        if reason := self._access.loss_reason() or ("has ended" if report else ""):
            raise WireError(f"{node} {reason}. What ran there has ended with it.")
        if not status:
            return 0
        raise WireError(f"{node} ended the session with status {status}.")

    def close(self) -> None:
        """End the command and everything it has started. Repeated calls do nothing."""
        self._closed = True
        self._end_control()
        try:
            self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for stream in filter(None, (self.process.stdin, self.process.stdout)):
            with suppress(BrokenPipeError):
                stream.close()

    def _end_control(self) -> None:
        assert self._control.stdin and self._control.stdout
        with suppress(OSError):
            self._control.stdin.close()
        try:
            self._control.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._control.kill()
            self._control.wait()
        self._control.stdout.close()
