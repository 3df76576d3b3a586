"""Access to nodes that another process has started, and `Program`, a command that runs in such a node.

Everything done in a node goes through the standard streams of one program there, `skyward.runner.entry.session`: no
port is opened, and the node's runner is not involved. `NodeAccess` starts that program, `Program` communicates with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import Protocol, Self

from skyward.engine.address import EngineAddress
from skyward.engine.connection import Execution, runs
from skyward.errors import ProviderError, SkywardError, WireError
from skyward.model.resource import Resource
from skyward.nodes.container import COMMAND
from skyward.nodes.run_directory import PoolDirectory
from skyward.system import threading, time
from skyward.wire.session import WINDOW, Decoder, Kind, encode, encode_json

SESSION = ("-P", "-m", "skyward.runner.entry.session")  # -P: the node's files cannot be imported in its place
_END_S = 3.0  # for a session to end the processes it has started
_CHUNK = 1 << 18
_INPUT_CHUNK = 1 << 16
ERRORS, OUTPUT = 2, 1  # the streams of a command, by file descriptor
_LOOKS, _LOOK_S = 5, 0.2
_WATCH_S = 5.0
_LAST_CHARS = 4000


class NodeStream(Protocol):
    """The standard streams of a session's program, which ends everything it has started when its input ends."""

    def send(self, data: bytes) -> None:
        """Write to its input; raise OSError if it has ended."""
        ...

    def received(self) -> Iterator[bytes]:
        """Yield its output until it ends or the node is lost."""
        ...

    def said(self) -> str:
        """Return what it wrote to standard error, once its output has ended."""
        ...

    def close(self) -> None:
        """End the program. Repeated calls do nothing."""
        ...


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
    def open_session(self) -> NodeStream:
        """Start the program `skyward.runner.entry.session` in the node, with the runner's Python interpreter.

        Raises:
            SkywardError: it cannot be started.
        """

    @abstractmethod
    def loss_reason(self) -> str:
        """Return what has happened to the node, to complete "Node 1 ..."; "" if it is not known to be lost."""

    def close(self) -> None:
        """Close the connection and with it all open sessions."""
        self._close()


class ContainerAccess(NodeAccess):
    """Access to a container, through the engine that runs it.

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

    def open_session(self) -> NodeStream:
        """Start the program. Raises EngineError if the engine refuses, EngineMissingError if it does not answer."""
        stream = _ContainerStream(Execution(self._engine, self._id, (COMMAND[0], *SESSION)))
        threading.Thread(target=self._watch, args=(stream,), name="skyward-watch", daemon=True).start()
        return stream

    def _watch(self, stream: _ContainerStream) -> None:
        """Close a session when the engine is frozen or has lost the container, which the stream itself may not show."""
        while not stream.closed.wait(_WATCH_S):
            try:
                if runs(self._engine, self._id):
                    continue
            except SkywardError:
                pass  # `loss_reason` reports it
            stream.closed.wait(_LOOK_S * _LOOKS)
            stream.close()

    def loss_reason(self) -> str:
        """Return whether the container, the engine or its machine is lost, to complete "Node 1 ..."; "" if not."""
        if reason := self._loss_reason():
            return reason
        for _ in range(_LOOKS):  # the programs of an ending container end one after another
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
        self.closed = threading.Event()

    def send(self, data: bytes) -> None:
        self._execution.send(data)

    def received(self) -> Iterator[bytes]:
        with suppress(ValueError):  # closed while it was read
            for stream, data in self._execution.streams():
                if stream == OUTPUT:
                    yield data
                else:
                    self._said = (self._said + data)[-_LAST_CHARS:]

    def said(self) -> str:
        return self._said.decode(errors="replace").strip()

    def close(self) -> None:
        self.closed.set()
        self._execution.close()


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

    def open_session(self) -> NodeStream:
        """Start the program with the interpreter of this process."""
        own = str(Path(__file__).parents[2])  # sys.path may not show an editable install
        paths = os.pathsep.join(filter(None, (own, os.environ.get("PYTHONPATH"))))
        return ProcessStream([sys.executable, *SESSION], {"PYTHONPATH": paths})

    def loss_reason(self) -> str:
        """Return "has ended" if the node's directory is gone, which its pool removes at the end."""
        return "" if self._directory.is_dir() else "has ended"


class ProcessStream:
    """The standard streams of a child process, which has its own session so that Ctrl-C reaches only the client.

    Args:
        words: the command.
        environment: variables in addition to those of this process.
        end_s: seconds after the end of its input before it is killed.
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


@dataclass(frozen=True, slots=True)
class Ending:
    """How a command ended.

    Attributes:
        status: its exit status; 128 plus the signal's number, as in shells; 126 or 127 if it did not start.
        text: why it did not start, as a sentence; "" if it did.
    """

    status: int
    text: str = ""


class Program:
    """A command that runs in a node, with the environment and directory of calls. It ends when the program is closed.

    Args:
        access: access to the node.
        argv: the command, run without a shell; empty to start a shell.
        on_output: called with a stream (1 or 2) and data written to it, in a separate thread; the command is blocked
            until it returns. Its exceptions close the program, and `wait` raises them.
        size: rows and columns of its terminal; None for separate streams without a terminal.
        env: variables in addition to those of calls.

    Raises:
        SkywardError: the node cannot be accessed.
    """

    def __init__(
        self,
        access: NodeAccess,
        argv: Sequence[str],
        on_output: Callable[[int, bytes], None],
        *,
        size: tuple[int, int] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._access, self._on_output = access, on_output
        self._news = threading.Condition()
        self._sending = threading.Lock()
        self._room = WINDOW
        self._ending: Ending | None = None
        self._failure: BaseException | None = None
        self._over = self._closed = False
        self._at_end: list[Callable[[], None]] = []
        self._stream = access.open_session()
        rows, columns = size or (0, 0)
        order = {"argv": list(argv), "pool": access.pool, "node": access.node, "rows": rows, "columns": columns}
        self._send(encode_json(Kind.START, {**order, "env": dict(env or {}), "cwd": access.cwd}))
        threading.Thread(target=self._read, name="skyward-program", daemon=True).start()

    def write(self, data: bytes) -> bool:
        """Write to its input; block while it does not read. Return False if it has ended."""
        left = memoryview(data)
        while left:
            with self._news:
                self._news.wait_for(lambda: self._room > 0 or self._over)
                if self._over:
                    return False
                part = left[: min(self._room, _INPUT_CHUNK)]
                self._room -= len(part)
            self._send(encode(Kind.INPUT, part))
            left = left[len(part) :]
        return True

    def end_input(self) -> None:
        """Close its input; in a terminal, as Ctrl-D does."""
        self._send(encode(Kind.END))

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of its terminal."""
        self._send(encode_json(Kind.SIZE, [rows, columns]))

    def signal(self, number: int) -> None:
        """Send a signal to the command's process group, or to the foreground one of its terminal."""
        self._send(encode_json(Kind.SIGNAL, int(number)))

    def at_end(self, action: Callable[[], None]) -> None:
        """Call `action` when the command has ended for whatever reason; at once if it has."""
        with self._news:
            if not self._over:
                self._at_end.append(action)
                return
        action()

    def wait(self) -> Ending:
        """Block until the command has ended.

        Raises:
            WireError: the connection or the node was lost, or the command was ended; the message says which.
        """
        with self._news:
            self._news.wait_for(lambda: self._over)
        if self._failure is not None:
            raise self._failure
        assert self._ending
        return self._ending

    def close(self) -> None:
        """End the command and everything it has started. Repeated calls do nothing."""
        self._closed = True
        self._stream.close()
        with self._news:
            self._news.wait_for(lambda: self._over, timeout=2.0)

    def _send(self, frame: bytes) -> None:
        with suppress(OSError, ValueError), self._sending:  # it has ended, which the reader detects
            self._stream.send(frame)

    def _read(self) -> None:
        """Handle data from the node (in a separate thread)."""
        decoder = Decoder()
        try:
            for data in self._stream.received():
                for kind, content in decoder.feed(data):
                    self._take(kind, content)
        except BaseException as error:
            self._failure = error
        if self._ending is None and self._failure is None:
            self._failure = WireError(self._why_lost())
        self._stream.close()
        with self._news:
            self._over = True
            actions, self._at_end = self._at_end, []
            self._news.notify_all()
        for action in actions:
            action()

    def _take(self, kind: Kind, content: bytes) -> None:
        match kind:
            case Kind.OUTPUT:
                self._on_output(OUTPUT, content)
            case Kind.ERRORS:
                self._on_output(ERRORS, content)
            case Kind.TAKEN:
                with self._news:
                    self._room += int(json.loads(content))
                    self._news.notify_all()
            case Kind.EXIT:
                found = json.loads(content)
                self._ending = Ending(128 + found["signal"] if found["signal"] else found["status"])
            case Kind.FAILED:
                self._ending = Ending(**json.loads(content))
            case Kind.LOST:
                raise WireError(f"{self._subject} has ended, and what ran there with it.")
            case _:
                raise WireError(f"A node's session sent a frame {kind.name}, which is for nodes.")

    @property
    def _subject(self) -> str:
        return f"Node {self._access.node} of pool {self._access.pool} ({self._access.title})"

    def _why_lost(self) -> str:
        if self._closed:
            return f"{self._subject}: the command was ended by this client."
        if reason := self._access.loss_reason():
            return f"{self._subject} {reason}. What ran there has ended with it."
        said = self._stream.said()
        more = f" Its last lines:\n{said}" if said else ""
        if f"No module named {'skyward'!r}" in said or "runner.entry.session" in said:
            more = f" The node runs another version of skyward, or none: open the pool anew with this one.{more}"
        return f"{self._subject} ended the session.{more}"
