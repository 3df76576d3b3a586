"""A provider in one file: nodes are processes on this machine, and each has a folder below a root.

`docs/architecture.md` explains it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from skyward.errors import ConfigError, PoolClosedError
from skyward.model.resource import Resource
from skyward.nodes.access import NodeAccess, ProcessAccess
from skyward.nodes.local_host import claim_port
from skyward.nodes.node import Host, Launch, Node, RunnerNode
from skyward.nodes.process import LocalProcess, dismiss
from skyward.nodes.process_id import current_user
from skyward.nodes.run_directory import PoolDirectory
from skyward.providers.base import Allocation, Capabilities, PoolRequest, Provider
from skyward.providers.reaper import Reaper

LABEL = "label.json"  # in the folder of a pool


@dataclass(frozen=True)
class Folders(Provider):
    """Processes in folders: `ComputePool(Folders("/srv/nodes"))`.

    Attributes:
        root: where the folders are; a short path, since sockets are made below it.

    Raises:
        ConfigError: there is no such folder.
    """

    name: ClassVar[str] = "folders"
    capabilities: ClassVar[Capabilities] = Capabilities(default_lease_s=60.0)
    root: str

    def __post_init__(self) -> None:
        if not Path(self.root).is_dir():
            raise ConfigError(f"Folders: there is no folder {self.root!r}. Make it first.")

    def open(self, request: PoolRequest) -> FoldersAllocation:
        """The folder of a pool, which does not exist yet."""
        return FoldersAllocation(self, request)

    def find(self) -> Sequence[Resource]:
        """The nodes that run, and folders of pools."""
        found = []
        for label in Path(self.root).glob(f"*/{LABEL}"):
            pool, user = label.parent.name, json.loads(label.read_text())["user"]
            found.append(Resource(pool=pool, node=-1, name=str(label.parent), state="folder", user=user))
            found += [
                Resource(pool=pool, node=about["node"], name=about["name"], state="running", user=user)
                for about, process in PoolDirectory(label.parent).processes()
                if not process.is_gone()
            ]
        return found

    def enter(self, node: Resource) -> NodeAccess:
        """A way into a node for `skyward shell` and its like: a process beside it."""
        return ProcessAccess(node, PoolDirectory(Path(self.root) / node["pool"]))

    def destroy(self, pool_id: str) -> None:
        """End the nodes of a pool, whoever started them, and remove its folder."""
        folder = PoolDirectory(Path(self.root) / pool_id)
        dismiss([process for _, process in folder.processes()])
        folder.remove()


class FoldersAllocation(Allocation):
    """The folder of one pool, and the processes in it."""

    def __init__(self, provider: Folders, request: PoolRequest) -> None:
        super().__init__(request)
        self._provider = provider
        self._folder = PoolDirectory(Path(provider.root) / request.pool_id)
        self._lock = threading.Lock()
        self._reaper: Reaper | None = None
        self._processes: list[LocalProcess] = []

    def acquire(self) -> Sequence[Host]:
        """Make the folder. The reaper is there before anything that it would have to remove."""
        self._reaper = Reaper(self._provider, self.request.pool_id)
        self._folder.path.mkdir(mode=0o700)
        (self._folder.path / LABEL).write_text(json.dumps({"user": current_user()}))
        return [FoldersHost(self)] * self.request.nodes

    def prepare(self, hosts: Sequence[Host]) -> str | None:  # noqa: ARG002 - nodes run no image
        """Nothing is to be prepared: nodes run this interpreter."""
        return None

    def replace(self, lost: Host | None) -> Host:  # noqa: ARG002 - there is one machine
        """This machine once more, unless another client has destroyed the pool."""
        self.check_open()
        if not (self._folder.path / LABEL).exists():
            raise PoolClosedError(f"Pool {self.request.pool_id} was destroyed by another client.")
        return FoldersHost(self)

    def start(self, launch: Launch) -> Node:
        """Start a node in a folder of its own."""
        with self._lock:  # `release` takes it too: it either finds this node, or has ended the allocation before it
            self.check_open()
            process = LocalProcess(launch, self._folder.add(launch.node, launch.key))
            self._processes.append(process)
        return RunnerNode(launch, process)

    def release(self) -> None:
        """End the nodes and remove the folder; the reaper goes on with what cannot be removed."""
        if self._reaper is not None:
            self._reaper.relieve(self._clear)

    def _clear(self) -> None:
        with self._lock:
            processes = tuple(self._processes)
        for process in processes:
            process.end()
        self._folder.remove()


@dataclass(frozen=True)
class FoldersHost:
    """This machine, for the nodes of one pool."""

    allocation: FoldersAllocation
    name: ClassVar[str] = "this machine"
    address: ClassVar[str] = "127.0.0.1"

    def claim_port(self) -> int:
        """A port for the head of the pool."""
        return claim_port()

    def start(self, launch: Launch) -> Node:
        """Start a node."""
        return self.allocation.start(launch)
