"""The client's own machine as the host of one pool's nodes, whether they are containers or processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from skyward.nodes.node import Launch, RunnerNode
from skyward.nodes.ports import PortClaim, claim_port
from skyward.nodes.run_directory import PoolDirectory, sweep_orphans
from skyward.system import socket


class LocalHost:
    """The client's own machine, for one pool: its run directory, the port of its head, and what starts its nodes.

    Args:
        pool: identifier of the pool.
        base: where its run directory is made.
        start: starts a node in the pool's directory.
        name: that of a pool which may be kept; None where the pool has none.

    Raises:
        ProviderError: the directory cannot be made.
    """

    address = "127.0.0.1"  # all nodes are on this machine

    def __init__(
        self, pool: str, base: Path, start: Callable[[Launch, PoolDirectory], RunnerNode], name: str | None = None
    ) -> None:
        sweep_orphans()
        self.directory = PoolDirectory.create(pool, base, name)
        self._start = start
        self._port: PortClaim | None = None

    @property
    def name(self) -> str:
        """The machine's name."""
        return socket.gethostname()

    def claim_port(self) -> int:
        """A port that no other pool on this machine gets until this one is released or claims another."""
        earlier, self._port = self._port, claim_port()
        if earlier is not None:
            earlier.release()  # that of a head that has been replaced
        return self._port.port

    def start(self, launch: Launch) -> RunnerNode:
        """Start a node.

        Raises:
            EngineError: the engine refuses; nothing is left.
            NodeStartError: its process could not be started.
        """
        return self._start(launch, self.directory)

    def release(self) -> None:
        """Release the port, and remove the directory."""
        self.let_go()
        self.directory.remove()

    def let_go(self) -> None:
        """Release the port; the directory stays, for the next client."""
        if self._port is not None:
            self._port.release()
