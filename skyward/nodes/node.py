"""Hosts and nodes as the pool sees them: a host starts nodes, one runner each, connects to them and removes them.

Every node is a `RunnerNode`, which knows when it is ready, how to connect to it, its last lines and how it ended.
Processes, containers, and containers of a compose file differ only in their `RunnerProcess`.
"""

from __future__ import annotations

import json
import signal
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from skyward.errors import NodeStartError, SkywardError
from skyward.model.instance import ANNOUNCEMENT
from skyward.model.spec import Accelerator
from skyward.system import socket, threading

_LAST_NEWS_S = 2.0  # from the end of a runner's output until its exit status is known, and vice versa
_LINES = 40
_LINE_CHARS = 2000
_UNFINISHED_BYTES = 64 * 1024  # of an incomplete line


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Everything a host needs to start one node.

    Attributes:
        pool: identifier of the pool; becomes the label `skyward.pool`.
        node: index of the node; becomes the label `skyward.node`.
        name: name of the container or process: `skyward-<pool>-<node>`.
        image: reference of the image to run; None if nodes are plain processes.
        compute_pool: the node's COMPUTE_POOL document.
        runner: the runner's settings (JSON), injected as SKYWARD_RUNNER.
        key: secret key of this start of the node, shared by the node and the client. It reaches the node through a file
            that only its owner can read, never through the environment, a label or the command line.
        env: the user's run-time environment variables.
        mounts: whether the node may mount file systems, for which its container needs additional rights.
    """

    pool: str
    node: int
    name: str
    image: str | None
    compute_pool: str
    runner: str
    key: bytes = field(repr=False)
    env: Mapping[str, str] = field(default_factory=dict)
    accelerator: Accelerator | None = None
    cpus: float | None = None
    memory_gb: float | None = None
    mounts: bool = False

    @property
    def order(self) -> dict[str, Any]:
        """The message with which an existing container becomes the node: see `skyward.runner.entry.container`."""
        return {
            "compute_pool": self.compute_pool,
            "runner": self.runner,
            "key": self.key.hex(),
            "env": dict(self.env),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """The addresses of a runner's agent and workers, which it prints once it is listening.

    An address is `unix:<file name in the run directory>` or `tcp:<ip>:<port>`; only the node's host can resolve it.
    """

    agent: str
    workers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a node ended.

    Attributes:
        code: its exit status; None if unknown.
        signal: number of the signal that ended it, if any.
        oom: whether the kernel killed it because it was out of memory.
        text: the same in words, to complete a sentence with the node as subject: "ended with exit status 1".
        log: its last lines.
    """

    code: int | None
    signal: int | None = None
    oom: bool = False
    text: str = ""
    log: str = ""


class Node(Protocol):
    """A started task runner."""

    @property
    def channel(self) -> bytes:
        """Identifier of the encrypted channel that `connect` uses, for the handshake; empty if there is none."""

    def wait_ready(self, timeout_s: float) -> Announcement:
        """Block until the runner has announced its addresses.

        Raises:
            NodeStartError: it ended, or announced nothing in time; the message contains its last lines.
        """

    def connect(self, address: str) -> socket.socket:
        """Return a connected, blocking stream socket to an announced address."""

    def wait_exit(self, timeout_s: float) -> Exit | None:
        """Return how it ended, with its last lines; None if it still runs after `timeout_s`."""

    def remove(self) -> None:
        """End it at once if it runs, and remove what it leaves behind. Repeated calls do nothing."""


class Host(Protocol):
    """A machine that can run nodes."""

    @property
    def name(self) -> str: ...
    @property
    def address(self) -> str: ...  # IP address of this host for the nodes of other hosts
    def claim_port(self) -> int:
        """Return a TCP port on this host on which nothing listens, and that other pools are unlikely to get."""

    def start(self, launch: Launch) -> Node: ...


class RunnerProcess(Protocol):
    """The process, container or task in which a node's runner runs: everything in which kinds of node differ."""

    @property
    def title(self) -> str:
        """A name for messages, such as "container skyward-1f2e-0"."""

    @property
    def channel(self) -> bytes:
        """Identifier of the encrypted channel that `dial` uses, for the handshake; empty if there is none."""

    def output(self) -> Iterable[bytes]:
        """Return its output until it ends; read once, in a separate thread."""

    def dial(self, address: str) -> socket.socket:
        """Return a socket connected to an address that it announced."""

    def wait(self, timeout_s: float) -> Exit | None:
        """Return how it ended, without its last lines; None if it still runs after `timeout_s`.

        If its exit status can no longer be known, the `Exit` has no code, and its text says what was lost.
        """

    def end(self) -> None:
        """End it at once if it runs, and remove what it leaves behind. Repeated calls do nothing."""


class RunnerNode(Node):
    """A node whose runner is a process of any kind.

    Args:
        launch: the launch it was started with.
        process: its runner.
        agent: address at which its agent is known to listen, for a node that another client has started.
    """

    def __init__(self, launch: Launch, process: RunnerProcess, agent: str | None = None) -> None:
        self._process = process
        self._known = None if agent is None else Announcement(agent=agent, workers=())
        self._subject = f"Node {launch.node} of pool {launch.pool} ({process.title})"
        self._output = NodeOutput(process.output(), launch.name)

    @property
    def channel(self) -> bytes:
        return self._process.channel

    def wait_ready(self, timeout_s: float) -> Announcement:
        announcement = self._known or self._output.wait_announcement(timeout_s)
        if announcement:
            return announcement
        ended = self.wait_exit(_LAST_NEWS_S) if self._output.ended else None
        raise start_failure(self._subject, ended, timeout_s, self._output.tail)

    def connect(self, address: str) -> socket.socket:
        connected = self._process.dial(address)
        connected.settimeout(None)
        return connected

    def wait_exit(self, timeout_s: float) -> Exit | None:
        ended = self._process.wait(timeout_s)
        if ended is None:
            return None
        self._output.join(_LAST_NEWS_S)
        return replace(ended, log=self._output.tail)

    def remove(self) -> None:
        self._process.end()
        self._output.join(_LAST_NEWS_S)


class NodeOutput:
    """Reads a node's output until it ends, in a separate thread.

    Args:
        chunks: the output; always read to its end, because a node blocks if nobody reads its output.
        name: name of the node, for the thread.

    Attributes:
        ended: whether the output has ended.
    """

    def __init__(self, chunks: Iterable[bytes], name: str) -> None:
        self._news = threading.Condition()
        self._announcement: Announcement | None = None
        self._failure: SkywardError | None = None
        self.ended = False
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._thread = threading.Thread(target=self._read, args=(chunks,), name=f"{name}-output", daemon=True)
        self._thread.start()

    def wait_announcement(self, timeout_s: float) -> Announcement | None:
        """Return the announcement; None if the output ended without one or none came in time.

        Raises:
            SkywardError: the output cannot be read, or the announcement does not follow this protocol.
        """
        with self._news:
            self._news.wait_for(lambda: self._announcement or self._failure or self.ended, timeout_s)
            if self._failure:
                raise self._failure
            return self._announcement

    @property
    def tail(self) -> str:
        """The last lines, without the announcement."""
        with self._news:
            return "\n".join(self._lines)

    def join(self, timeout_s: float) -> None:
        """Wait until everything has been read."""
        self._thread.join(timeout_s)

    def _read(self, chunks: Iterable[bytes]) -> None:
        failure: SkywardError | None = None
        rest = b""
        try:
            for chunk in chunks:
                *lines, rest = (rest + chunk).split(b"\n")
                rest = rest[-_UNFINISHED_BYTES:]
                self._take(lines)
            self._take([rest] if rest else [])
        except SkywardError as error:
            failure = error
        with self._news:
            self.ended, self._failure = True, failure
            self._news.notify_all()

    def _take(self, lines: list[bytes]) -> None:
        for line in lines:
            text = line.decode(errors="replace").rstrip("\r")
            # the other stream may have printed half a line before it
            before, mark, after = text.partition(ANNOUNCEMENT)
            announcement = parse_announcement(mark + after) if mark else None
            with self._news:
                if before:
                    self._lines.append(before[-_LINE_CHARS:])
                if announcement:
                    self._announcement = announcement
                    self._news.notify_all()


def exit_of(code: int, *, oom: bool = False) -> Exit:
    """Return how a runner ended, from its exit status in the convention of shells: 128 plus the number for signals."""
    number = code - 128 if code > 128 else None
    names = {s.value: s.name for s in signal.Signals}
    if oom:
        text = "was killed by the kernel because it used more memory than it may (out of memory)"
    elif number in names:
        text = f"was killed ({names[number]})"
    else:
        number, text = None, f"ended with exit status {code}"
    return Exit(code=code, signal=number, oom=oom, text=text)


def start_failure(subject: str, ended: Exit | None, timeout_s: float, log: str) -> NodeStartError:
    """Return the error for a node that is not ready: it ended as `ended` says, or is silent; with its last lines."""
    what = f"{ended.text} before it was ready" if ended else f"was not ready within {timeout_s:g} s and still runs"
    return NodeStartError(f"{subject} {what}. " + (f"Its last lines:\n{log}" if log else "It printed nothing."))


def parse_announcement(line: str) -> Announcement | None:
    """Parse the announcement in a line of a runner's standard output; return None if the line contains none."""
    if not line.startswith(ANNOUNCEMENT):
        return None
    try:
        document = json.loads(line.removeprefix(ANNOUNCEMENT))
        return Announcement(agent=document["agent"], workers=tuple(document["workers"]))
    except (ValueError, KeyError, TypeError) as error:
        raise NodeStartError(f"A node announced itself in an unknown form ({error}): {line!r}.") from None
