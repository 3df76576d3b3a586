"""A machine reached by SSH, as a host of one pool's nodes: its keeper, its engine, and how its loss is noticed."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from skyward.engine import Engine, Images
from skyward.engine.limits import limits_by
from skyward.engine.ssh import ForwardedEngine
from skyward.errors import EngineError, SkywardError
from skyward.model.rights import Rights
from skyward.model.ssh import SshHost
from skyward.providers.base import Launch
from skyward.providers.containers import OWNER_ID, ContainerNode, PoolContainers
from skyward.providers.images import EngineImages
from skyward.providers.keeper import KEEPER, Facts, Keeper
from skyward.system import socket, threading
from skyward.wire.listen import dial

_log = logging.getLogger(__name__)
_VERDICT_S = 1.5  # how long after the last event the reason may take; of a connection and an engine, who ended first?


class Machine:
    """One machine, for one pool. Made at once; `open` waits until it is known, `go` makes the first change there.

    Args:
        host: where it is.
        pool: identifier of the pool.
        folder: a private directory here for the sockets of its connection.
        lease_s: how long what it runs outlives a silent client.
        slot: number of the machine in the pool.
        attempt: how often the pool has connected to it before. What is left there of that is ended by `go`.
        rights: what programs in its containers may do.
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
        self.keeper = Keeper(host, folder, pool, lease_s, slot, attempt)
        self.connection = self.keeper.connection
        self.host, self.name = host, host.name
        self._containers: PoolContainers | None = None
        self._lock = threading.Lock()
        self._forwards: dict[str, Path] = {}
        self._settled = threading.Event()  # the verdict is there
        self._goes = False  # something may have been made there
        self._closing = False
        self._verdict = ""
        self._head_port: int | None = None

    def open(self) -> Facts:
        """What its keeper says of it.

        Raises:
            ProviderError: it cannot be reached; says why.
        """
        self.facts = self.keeper.facts()
        return self.facts

    @property
    def address(self) -> str:
        """IP address at which the other machines reach it: the one at which its sshd was reached."""
        return self.facts.address or "127.0.0.1"

    @cached_property
    def engine_address(self) -> ForwardedEngine:
        """Its engine's socket, here."""
        return self.connection.engine(self.facts.socket)

    @cached_property
    def engine(self) -> Engine:
        """Its engine."""
        return Engine.at(self.engine_address, limits_by(self.facts.status, self.facts.limits))

    @cached_property
    def info(self) -> Mapping[str, Any]:
        """What its engine says of itself."""
        return self.engine.info

    @property
    def images(self) -> EngineImages:
        """The images of its engine."""
        return EngineImages(Images(self.engine_address))

    def go(self) -> None:
        """Make the pool's directory there, and watch connection and engine from now on."""
        self._goes = True
        self.keeper.go()
        self._containers = PoolContainers(self._pool, self.engine, self._rights, self.facts.user, self.keeper.keep)
        threading.Thread(target=self._watch_engine, name=f"engine-{self.name}", daemon=True).start()
        self.connection.at_end(self._on_end)

    def claim_head_port(self) -> int:
        """A port for the pool's head, if that is here; one that was claimed for an earlier head is given up."""
        earlier, self._head_port = self._head_port, self.keeper.port()
        if earlier is not None:
            self.keeper.free_port(earlier)
        return self._head_port

    def free_bytes(self) -> int | None:
        """Room on the engine's disk."""
        return self.keeper.free_bytes(str(self.info.get("DockerRootDir", "/var/lib/docker")))

    def start(self, launch: Launch, gpus: tuple[int, ...] | None) -> ContainerNode:
        """Start the container of one node.

        Raises:
            EngineError: the engine refuses, or the machine is gone.
        """
        containers = self._containers
        if containers is None or self.is_gone:
            raise EngineError(
                f"Node {launch.node} cannot be started: its host {self.name} {self._verdict or 'is gone'}."
            )
        with containers.starting():
            self._follow_lease(launch)
            directory = self.keeper.add(launch.node, launch.key, containers.owner_of(launch))
            # another machine's process numbers mean nothing there, so no owner is named by number
            labels = {KEEPER: self.keeper.label, OWNER_ID: ""}
            try:
                container = containers.run(launch, Path(directory), gpus, labels, int(self.info["MemTotal"]))
            except BaseException:
                self.keeper.drop(directory)
                raise
        return ContainerNode(containers, launch, container, _HostDirectory(self, directory))

    def dial(self, directory: PurePosixPath, address: str) -> socket.socket:
        """A connected socket to an address that a node there announced."""
        scheme, _, rest = address.partition(":")
        remote = str(directory / PurePosixPath(rest).name) if scheme == "unix" else rest
        with self._lock:
            if remote not in self._forwards:
                self._forwards[remote] = self.connection.forward(remote)
            local = self._forwards[remote]
        return dial(local.parent, f"unix:{local.name}")

    # its end -----------------------------------------------------------------------------------------------------

    @property
    def is_gone(self) -> bool:
        """Whether it is lost."""
        return bool(self._verdict) or self.connection.ended.is_set()

    def why_gone(self) -> str:
        """Why it is lost, to complete "Node 1 ..."; "" if it is not."""
        self._settled.wait(_VERDICT_S)
        return self._verdict

    def close(self) -> None:
        """Remove the pool's containers there, have the keeper remove the rest, and end the connection.

        Nothing can be removed on a machine that is lost: its keeper, or the lease of its nodes, ends what runs there.

        Raises:
            EngineError: the engine refuses.
        """
        if self._containers is not None:
            self._containers.shut()
        self._closing = True
        if self.is_gone or not self._goes:
            self.connection.kill()
            return
        try:
            if self._containers is not None:
                self._containers.close()
        except SkywardError:
            if not self.is_gone:
                self.connection.close()
                raise
        self.keeper.end()

    def _watch_engine(self) -> None:
        """An engine that is gone can end no container and report no end: its machine is given up."""
        assert self._containers
        while self._containers.watch.ending("", 3600.0) is None:
            pass
        if self._closing or self.connection.ended.wait(_VERDICT_S / 3):
            return
        self._give_up(f"is lost: the Docker engine on {self.name} is gone")
        self.connection.kill()

    def _on_end(self) -> None:
        why = self.connection.why or "without a word"
        self._give_up(f"is lost: the SSH connection to {self.name} ended ({why})")

    def _give_up(self, verdict: str) -> None:
        with self._lock:
            if self._closing or self._verdict:
                return
            self._verdict = verdict
        self._settled.set()
        _log.warning(
            "Host %s of pool %s %s. What runs there ends within %g s of its client's silence.",
            *(self.name, self._pool, verdict, self._lease_s),
        )

    def _follow_lease(self, launch: Launch) -> None:
        """Wait for a silent client as long as the nodes do."""
        lease_s = float(json.loads(launch.runner)["lease_s"])
        if lease_s != self._lease_s:
            self._lease_s = lease_s
            self.keeper.lease(lease_s)


@dataclass(frozen=True, slots=True)
class _HostDirectory:
    """A node's directory on its machine."""

    machine: Machine
    path: PurePosixPath

    def dial(self, address: str) -> socket.socket:
        return self.machine.dial(self.path, address)

    def remove(self) -> None:
        if not self.machine.is_gone:
            self.machine.keeper.drop(self.path)

    def is_gone(self) -> bool:
        return self.machine.is_gone

    def why_gone(self) -> str:
        return self.machine.why_gone()
