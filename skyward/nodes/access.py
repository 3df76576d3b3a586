"""Ways into a node that another process has started: `NodeAccess`, and those into containers and plain processes.

All that is done in a node goes through one program there, `skyward.runner.entry.session`, over its standard streams: no
port is opened, and the node's runner has no part in it. `skyward.nodes.program` speaks with that program.
"""

from __future__ import annotations

import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import Protocol, Self

from skyward.engine.address import EngineAddress
from skyward.engine.connection import Execution, runs
from skyward.errors import ProviderError, SkywardError
from skyward.model.resource import Resource
from skyward.nodes.container import COMMAND
from skyward.nodes.run_directory import PoolDirectory
from skyward.system import threading, time

SESSION = ("-P", "-m", "skyward.runner.entry.session")  # -P: the node's files are no modules for it
_END_S = 3.0  # for a session to end what it has started
_CHUNK = 1 << 18
_STDOUT = 1
_LOOKS, _LOOK_S = 5, 0.2
_WATCH_S = 5.0
_LAST_CHARS = 4000


class NodeStream(Protocol):
    """The standard streams of a session's program. What it started ends when its input ends, in whatever way."""

    def send(self, data: bytes) -> None:
        """Write to its input; raises OSError when it has ended."""
        ...

    def received(self) -> Iterator[bytes]:
        """Its output, until it ends or the node is lost."""
        ...

    def said(self) -> str:
        """What it wrote to standard error, once its output has ended."""
        ...

    def close(self) -> None:
        """End it. Does nothing the second time."""
        ...


class NodeAccess(ABC):
    """A way into one node; leaving its `with` block ends the connection that it needs.

    Args:
        node: as `Provider.find` lists it.
        title: what runs it.
        close: ends the connection.

    Attributes:
        pool, node: which node.
        title: what runs it, such as "container skyward-1f2e-0".
        cwd: its working directory where the operating system does not tell that of a process; "" if not known.
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
    def open_session(self) -> NodeStream:
        """Start the program `skyward.runner.entry.session` in the node, with the Python that the runner has.

        Raises:
            SkywardError: it cannot be started.
        """

    @abstractmethod
    def loss_reason(self) -> str:
        """What has become of the node, to complete "Node 1 ..."; "" if it is there as far as can be known."""

    def close(self) -> None:
        """End the connection; sessions that are open end with it."""
        self._close()


class ContainerAccess(NodeAccess):
    """Into a container, through the engine that runs it.

    Args:
        node: as `Provider.find` lists it.
        engine: the engine's address.
        close: ends what leads to the engine.
        loss_reason: what has become of the engine's machine; "" if it is not lost.
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

    def open_session(self) -> NodeStream:
        """Start the program; raises EngineError if the engine refuses, EngineMissingError if it does not answer."""
        stream = _ContainerStream(Execution(self._engine, self._id, (COMMAND[0], *SESSION)))
        threading.Thread(target=self._watch, args=(stream,), name="skyward-watch", daemon=True).start()
        return stream

    def _watch(self, stream: _ContainerStream) -> None:
        """End a session whose engine is frozen or has lost its container, which the stream itself may not tell."""
        while not stream.closed.wait(_WATCH_S):
            try:
                if runs(self._engine, self._id):
                    continue
            except SkywardError:
                pass  # `loss_reason` says it
            stream.closed.wait(_LOOK_S * _LOOKS)
            stream.close()

    def loss_reason(self) -> str:
        """Whether the container, the engine or its machine is gone."""
        if reason := self._loss_reason():
            return reason
        for _ in range(_LOOKS):  # a container that is ending loses its programs one by one
            try:
                if not runs(self._engine, self._id):
                    return self._loss_reason() or "has ended"
            except SkywardError as error:
                return self._loss_reason() or f"is gone: {str(error).rstrip('.')}"
            time.sleep(_LOOK_S)
        return ""


class _ContainerStream:
    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._said = bytearray()
        self._lock, self.closed = threading.Lock(), threading.Event()

    def send(self, data: bytes) -> None:
        self._execution.send(data)

    def received(self) -> Iterator[bytes]:
        with suppress(ValueError):  # closed while it was read
            for stream, data in self._execution.streams():
                if stream == _STDOUT:
                    yield data
                else:
                    self._said = (self._said + data)[-_LAST_CHARS:]

    def said(self) -> str:
        return self._said.decode(errors="replace").strip()

    def close(self) -> None:
        with self._lock:
            if self.closed.is_set():
                return
            self.closed.set()
        self._execution.close()


class ProcessAccess(NodeAccess):
    """Into a node that is a plain process of this machine and user.

    Args:
        node: as `Provider.find` lists it.
        pool: the directory of its pool.

    Raises:
        ProviderError: it has ended.
    """

    def __init__(self, node: Resource, pool: PoolDirectory) -> None:
        super().__init__(node, f"process {node['name']}")
        running = ((path, about) for path, about, process in pool.processes_by_path() if not process.is_gone())
        directory = next((path for path, about in running if about["name"] == node["name"]), None)
        if directory is None:
            raise ProviderError(f"Node {node['node']} of pool {node['pool']} has ended.")
        self._directory = directory
        self.cwd = str(directory / "work")

    def open_session(self) -> NodeStream:
        """Start the program as a process of this one's interpreter."""
        own = str(Path(__file__).parents[2])  # an editable install may not show in sys.path
        paths = os.pathsep.join(filter(None, (own, os.environ.get("PYTHONPATH"))))
        return ProcessStream([sys.executable, *SESSION], {"PYTHONPATH": paths})

    def loss_reason(self) -> str:
        """Whether its directory is gone, which its pool removes at its end."""
        return "" if self._directory.is_dir() else "has ended"


class ProcessStream:
    """The standard streams of a process that this one starts, in a session of its own: Ctrl-C is the client's alone.

    Args:
        words: the command.
        environment: variables beside this process's.
        end_s: seconds that it has to end in, once its input is closed, before it is killed.
    """

    def __init__(
        self, words: Sequence[str], environment: Mapping[str, str] | None = None, *, end_s: float = _END_S
    ) -> None:
        self._errors, self._end_s = TemporaryFile(), end_s  # noqa: SIM115 - closed with the stream
        self._process = subprocess.Popen(
            words,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,
            start_new_session=True,
        )
        self._lock, self._closed = threading.Lock(), False

    def send(self, data: bytes) -> None:
        assert self._process.stdin
        left = memoryview(data)
        while left:
            left = left[self._process.stdin.write(left) :]

    def received(self) -> Iterator[bytes]:
        assert self._process.stdout
        with self._process.stdout as output:
            while data := output.read(_CHUNK):
                yield data

    def said(self) -> str:
        if self._errors.closed:
            return ""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")[-_LAST_CHARS:].strip()

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        try:
            self._process.wait(self._end_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()
