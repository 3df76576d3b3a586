"""A machine reached by SSH, for one pool: its watchdog, engine and containers, and the detection of its loss."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from skyward.engine import Engine
from skyward.errors import EngineError, SkywardError
from skyward.model.rights import Rights
from skyward.model.ssh import SshHost
from skyward.nodes.container import OWNER_ID, PoolContainers, RunDirectory
from skyward.nodes.node import Launch, RunnerNode
from skyward.ssh.connection import ForwardedEngine
from skyward.ssh.watchdog import WATCHDOG, Facts, Watchdog
from skyward.system import socket, threading

_log = logging.getLogger(__name__)
_REASON_S = 1.5  # how long to wait until it is known what ended first, the connection or the engine


class Machine:
    """One machine, for one pool. `open` waits for the connection; `go` makes the first changes on the machine.

    Args:
        host: how to reach it.
        pool: identifier of the pool.
        folder: a private local directory for the sockets of its connection.
        lease_s: seconds that its nodes outlive a silent client.
        slot: number of the machine in the pool.
        attempt: how often the pool has connected to it before. `go` removes leftovers of earlier attempts.
        rights: the user and the capabilities of programs in its containers.
    """

    def __init__(
        self,
        host: SshHost,
        pool: str,
        folder: Path,
        lease_s: float,
        slot: int = 0,
        attempt: int = 0,
        rights: Rights | None = None,
    ) -> None:
        self._pool, self._lease_s, self._rights = pool, lease_s, rights or Rights()
        self._folder = folder
        folder.mkdir(mode=0o700)
        self.watchdog = Watchdog(host, folder, pool, lease_s, slot, attempt)
        self.connection = self.watchdog.connection
        self.host, self.name = host, host.name
        self._containers: PoolContainers | None = None
        self._lock = threading.Lock()
        self._loss_known = threading.Event()  # set once the reason is known
        self._closing = False
        self._loss_reason = ""

    def open(self) -> Facts:
        """Wait for the connection, and return the facts that its watchdog reports."""
        self.facts = self.watchdog.facts()
        return self.facts

    @property
    def address(self) -> str:
        """Its IP address for the other machines: the one at which its sshd was reached."""
        return self.facts.address or "127.0.0.1"

    @cached_property
    def engine_address(self) -> ForwardedEngine:
        """The address of its engine: a forwarded local socket."""
        return self.connection.engine(self.facts.socket)

    @cached_property
    def engine(self) -> Engine:
        """Its engine."""
        return Engine.at(self.engine_address)

    @cached_property
    def info(self) -> Mapping[str, Any]:
        """The engine's information about itself."""
        return self.engine.info

    def go(self, name: str | None = None, *, adopts: bool = False) -> None:
        """Create the pool's directory on the machine, and start watching connection and engine.

        Args:
            name: the name under which the pool may be kept; None if it has none.
            adopts: whether an earlier client of the pool has created the directory.
        """
        self.watchdog.go(adopts=adopts)
        if name is not None:
            self.watchdog.outlast()
        self._containers = PoolContainers(self._pool, self.engine, self._rights, self.facts.user, self.watchdog.keep)
        threading.Thread(target=self._watch_engine, name=f"engine-{self.name}", daemon=True).start()
        self.connection.at_end(self._on_end)

    def beat(self) -> None:
        """Report to the watchdog that the client is alive, once it has begun."""
        if self._containers is not None:
            self.watchdog.beat()

    def free_bytes(self) -> int | None:
        """Return the number of free bytes on the engine's disk; None if unknown."""
        return self.watchdog.free_bytes(str(self.info.get("DockerRootDir", "/var/lib/docker")))

    def start(self, launch: Launch, gpus: tuple[int, ...] | None) -> RunnerNode:
        """Start the container of one node.

        Raises:
            EngineError: the engine refused, or the machine is lost.
        """
        containers = self._containers
        if containers is None or self.is_gone:
            raise EngineError(
                f"Node {launch.node} cannot be started: its host {self.name} {self._loss_reason or 'is gone'}."
            )
        # process IDs of another machine mean nothing there, so the owner's is left empty
        labels = {WATCHDOG: self.watchdog.label, OWNER_ID: ""}

        def directory(owner: int | None) -> RunDirectory:
            return _HostDirectory(self.watchdog.add(launch.node, launch.key, owner), self)

        return containers.start(launch, directory, gpus, labels, int(self.info["MemTotal"]))

    def adopt(self, launch: Launch, about: Mapping[str, Any], agent: str) -> RunnerNode:
        """Return a node whose container an earlier client has started there."""
        assert self._containers is not None
        directory = _HostDirectory(PurePosixPath(about["directory"]), self)
        return self._containers.adopt(launch, about, directory, agent)

    def about(self, node: int) -> Mapping[str, Any]:
        """Return the data by which `adopt` finds a node of this machine."""
        assert self._containers is not None
        slot, attempt = self.watchdog.label.split(".")
        place = {"host": self.name, "slot": int(slot), "attempt": int(attempt)}
        return {**place, **self._containers.about(node)}

    @property
    def nodes(self) -> Collection[int]:
        """The indexes of the nodes that have been started there."""
        return self._containers.nodes.keys() if self._containers is not None else ()

    def leave(self, keep_s: float) -> None:
        """Leave everything to the next client, and close the connection.

        Raises:
            SkywardError: the machine does not answer; its watchdog, or the lease of its nodes, ends what runs there.
        """
        self._closing = True
        if self.is_gone or self._containers is None:
            self.connection.kill()
            return
        self._containers.let_go()
        self.watchdog.leave(keep_s)

    # loss and end ------------------------------------------------------------------------------------------------

    @property
    def is_gone(self) -> bool:
        """Whether the machine is lost."""
        return bool(self._loss_reason) or self.connection.ended.is_set()

    def why_gone(self) -> str:
        """Return why it is lost, to complete "Node 1 ..."; "" if it is not."""
        self._loss_known.wait(_REASON_S)
        return self._loss_reason

    def why_out_of_reach(self) -> str:
        """Return why its connection ended, to complete "Node 1 ..."; "" if it is open."""
        if not self.connection.ended.wait(_REASON_S):
            return ""
        return f"is unreachable: the SSH connection to {self.name} ended ({self.connection.why})"

    def close(self) -> None:
        """Remove the pool's containers there, let the watchdog remove the rest, and close the connection.

        Nothing can be removed on a lost machine: its watchdog, or the lease of its nodes, ends what runs there.

        Raises:
            EngineError: the engine refused.
        """
        if self._containers is not None:
            self._containers.shut()
        self._closing = True
        if self.is_gone or self._containers is None:
            self.connection.kill()
            return
        try:
            self._containers.close()
        except SkywardError:
            if not self.is_gone:
                self.connection.close()
                raise
        self.watchdog.end()

    def _watch_engine(self) -> None:
        """Treat the machine as lost when its engine is: that can neither end containers nor report their end."""
        assert self._containers
        while self._containers.watch.ending("", 3600.0) is None:
            pass
        if self._closing or self.connection.ended.wait(_REASON_S / 3):
            return
        self._give_up(f"is lost: the Docker engine on {self.name} is gone")
        self.connection.kill()

    def _on_end(self) -> None:
        self._give_up(f"is lost: the SSH connection to {self.name} ended ({self.connection.why})")

    def _give_up(self, reason: str) -> None:
        with self._lock:
            if self._closing or self._loss_reason:
                return
            self._loss_reason = reason
        self._loss_known.set()
        _log.warning(
            "Host %s of pool %s %s. What runs there ends within %g s of its client's silence.",
            *(self.name, self._pool, reason, self._lease_s),
        )


@dataclass(frozen=True, slots=True)
class _HostDirectory(RunDirectory):
    """A node's directory on a remote machine."""

    machine: Machine

    def dial(self, address: str) -> socket.socket:
        scheme, _, rest = address.partition(":")
        remote = str(self.path / PurePosixPath(rest).name) if scheme == "unix" else rest
        return self.machine.connection.dial(remote)

    def remove(self) -> None:
        if not self.machine.is_gone:
            self.machine.watchdog.drop(self.path)

    def is_lost(self) -> bool:
        return self.machine.is_gone

    def loss_reason(self) -> str:
        return self.machine.why_gone()
