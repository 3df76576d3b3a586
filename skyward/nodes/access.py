"""Access to nodes that another process has started, and `Program`, a command that runs in such a node.

Commands are run by the platform's own program: `docker exec`, `kubectl exec`, `srun --overlap` through `ssh`. It starts
`skyward.runner.entry.session` in the node, which runs the command as calls are run.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from skyward.engine.address import EngineAddress
from skyward.engine.images import Images
from skyward.errors import ProviderError, SkywardError, WireError
from skyward.model.resource import Resource
from skyward.nodes.container import COMMAND
from skyward.nodes.run_directory import PoolDirectory
from skyward.system import time

SESSION = ("-P", "-m", "skyward.runner.entry.session")  # -P: the node's files cannot be imported in its place
_DETACH_KEYS = "--detach-keys=ctrl-@,ctrl-@,ctrl-@"  # the usual ones begin with Ctrl-P, which shells use
_END_S, _KILL_S = 1.0, 10.0  # for a command to end when it is asked to, and when it is killed
_CUT_OFF = (128 + signal.SIGKILL, 255)  # statuses of a program whose container or connection ends
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
        is_process: whether it is a plain process of this machine, whose commands do not end with it.
    """

    is_process = False

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

    def why_cut_off(self, status: int) -> str:
        """Return what has happened to the node, if a program there ended with this status since the node was lost."""
        for _ in range(_LOOKS if status in _CUT_OFF else bool(status)):  # programs of a container end one by one
            if reason := self.loss_reason():
                return reason
            time.sleep(_LOOK_S if status in _CUT_OFF else 0)
        return ""

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
        try:
            gone = "" if Images(self._engine).runs(self._id) else "has ended"
        except SkywardError as error:
            gone = f"is gone: {str(error).rstrip('.')}"
        return self._loss_reason() or gone


class ProcessAccess(NodeAccess):
    """Access to a node that is a plain process of this machine and user.

    Args:
        node: the node as `Provider.find` lists it.
        pool: the directory of its pool.

    Raises:
        ProviderError: the node has ended.
    """

    is_process = True

    def __init__(self, node: Resource, pool: PoolDirectory) -> None:
        super().__init__(node, f"process {node['name']}")
        found = [each for each in pool.processes() if each[0]["name"] == node["name"] and not each[1].is_gone()]
        if not found:
            raise ProviderError(f"Node {node['node']} of pool {node['pool']} has ended.")
        about, self._process = found[0]
        self.cwd = str(about["directory"] / "work")

    def command(self, arguments: Sequence[str], *, terminal: bool = False) -> list[str]:  # noqa: ARG002 - it is ours
        """Return the program with the interpreter of this process."""
        own = str(Path(__file__).parents[2])  # sys.path may not show an editable install
        paths = os.pathsep.join(filter(None, (own, os.environ.get("PYTHONPATH"))))
        return ["env", f"PYTHONPATH={paths}", sys.executable, *SESSION, *arguments]

    def loss_reason(self) -> str:
        """Return "has ended" if it has."""
        return "has ended" if self._process.is_gone() else ""


class Program:
    """A command that runs in a node, with the environment and directory of calls.

    It ends when the program is closed.

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
        self._token, self._in_terminal = secrets.token_hex(8), size is not None
        order = {"token": self._token, "pool": access.pool, "node": access.node, "size": size, "cwd": access.cwd}
        words = ["run", json.dumps({**order, "env": dict(env or {})}), *argv]
        # a session of its own: Ctrl-C here is passed on by this process, and must not end it
        self.process = subprocess.Popen(
            access.command(words, terminal=self._in_terminal),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=not self._in_terminal,
        )

    def signal(self, number: int) -> None:
        """Send a signal to the command and all that it has started."""
        if sys.platform == "darwin":  # it has no /proc to find them in
            with suppress(ProcessLookupError):  # it has ended
                (os.kill if self._in_terminal else os.killpg)(self.process.pid, number)
        else:
            words = self._access.command(["signal", self._token, str(number)])
            nothing = subprocess.DEVNULL
            subprocess.run(words, stdin=nothing, stdout=nothing, stderr=nothing, check=False, start_new_session=True)

    def wait(self) -> int:
        """Block until the command has ended; return its status, 128 plus the signal's number if one has ended it.

        Raises:
            WireError: the connection or the node was lost, or the command was ended; the message says which.
        """
        node = f"Node {self._access.node} of pool {self._access.pool} ({self._access.title})"
        if self._closed:
            raise WireError(f"{node}: the command was ended by this client.")
        while self.process.returncode is None:
            try:
                self.process.wait(_LOOK_S if self._access.is_process else None)
            except subprocess.TimeoutExpired:
                if self._access.loss_reason():
                    self.close()
        status = self.process.returncode
        status = status if status >= 0 else 128 - status
        if reason := self._access.why_cut_off(status):
            raise WireError(f"{node} {reason}. What ran there has ended with it.")
        return status

    def close(self) -> None:
        """End the command and what it has started. Repeated calls do nothing."""
        self._closed = True
        for number, patience_s in ((signal.SIGHUP, _END_S), (signal.SIGKILL, _KILL_S)):
            if self.process.poll() is None:
                self.signal(number)
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(patience_s)
        self.process.kill()
        self.process.wait()
        for stream in filter(None, (self.process.stdin, self.process.stdout)):
            with suppress(BrokenPipeError):
                stream.close()
