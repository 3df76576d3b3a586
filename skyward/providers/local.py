"""`sky.Local`: nodes are plain processes of the client's interpreter, without container or image.

For debugging, fast tests, and machines without Docker. Runner and protocol are the same as in containers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from skyward.errors import ProviderError
from skyward.model.image import Image
from skyward.model.parameters import suggesting
from skyward.model.resource import Resource
from skyward.nodes.access import NodeAccess, ProcessAccess
from skyward.nodes.local_host import LocalHost, check_gpu_count
from skyward.nodes.node import Host, Launch, Node, RunnerNode
from skyward.nodes.process import AdoptedProcess, LocalProcess, dismiss, environment_of
from skyward.nodes.process_id import current_user
from skyward.nodes.run_directory import PoolDirectory, pool_directories, temporary_base
from skyward.providers.base import Allocation, Capabilities, PoolRequest, Provider
from skyward.system import threading

_noted = threading.Event()  # set once the note that the image is not used has been reported


@suggesting("sky.Local")
@dataclass(frozen=True)
class Local(Provider):
    """Processes on this machine that use the client's interpreter and packages; the pool's image is not used."""

    name: ClassVar[str] = "local"
    capabilities: ClassVar[Capabilities] = Capabilities(keeps=True, default_lease_s=60.0)

    def open(self, request: PoolRequest) -> LocalAllocation:
        """Return the allocation of the processes of a pool."""
        return LocalAllocation(request)

    def find(self) -> Sequence[Resource]:
        """Return every running node of this user on this machine."""
        user = current_user()  # the directories of other users are not read
        return [
            Resource(
                pool=directory.pool, node=about["node"], name=about["name"], state="running", user=user, pid=process.pid
            )
            for directory in pool_directories()
            for about, process in directory.processes()
            if not process.is_gone()
        ]

    def destroy(self, pool_id: str) -> None:
        """End every process of a pool, whichever client started it, and remove its directory."""
        for directory in pool_directories():
            if directory.pool == pool_id:
                dismiss([process for _, process in directory.processes()])
                directory.remove()

    def enter(self, node: Resource) -> NodeAccess:
        """Return access to a node: commands run as separate processes in its environment and working directory."""
        directory = next((each for each in pool_directories() if each.pool == node["pool"]), None)
        if directory is None:
            raise ProviderError(f"Pool {node['pool']} has ended.")
        return ProcessAccess(node, directory)


class LocalAllocation(Allocation):
    """The processes of one pool on this machine."""

    def __init__(self, request: PoolRequest) -> None:
        super().__init__(request)
        self._host: LocalHost | None = None
        self._lock = threading.Lock()
        self._processes: list[AdoptedProcess] = []
        self._directories: dict[int, Path] = {}  # the last directory of each node

    def acquire(self) -> Sequence[Host]:
        """Return this machine once for each node."""
        request = self.request
        if request.accelerator is not None:
            check_gpu_count(request.nodes, request.accelerator)
        self._host = LocalHost(request.pool_id, temporary_base(), self._start, request.name)
        return [self._host] * request.nodes

    def prepare(self, hosts: Sequence[Host]) -> str | None:  # noqa: ARG002 - nothing to prepare on them
        """Report, once per process, that the image is not used, if it is not the default one."""
        if not _noted.is_set() and self.request.image != Image():
            _noted.set()
            from skyward.builder.events import note  # imports the compiler, which is needed for nothing else here

            self.request.report(
                note("sky.Local() runs nodes as processes of this interpreter; the pool's image is not used")
            )
        return None

    def replace(self, lost: Host | None) -> Host:  # noqa: ARG002 - there is one machine
        """Return the same machine again."""
        self.check_open()
        assert self._host
        return self._host

    def _start(self, launch: Launch, pool: PoolDirectory) -> RunnerNode:
        with self._lock:
            self.check_open()
            directory = pool.add(launch.node, launch.key)
            process = LocalProcess(launch, directory)
            self._processes.append(process)
            self._directories[launch.node] = directory
        return RunnerNode(launch, process)

    def adopt(self, launch: Launch, about: Mapping[str, Any], agent: str) -> tuple[Node, Mapping[str, str]]:
        """Return a process started by an earlier client; its workers get this client's environment."""
        directory = Path(about["directory"])
        with self._lock:
            self.check_open()
            process = AdoptedProcess(launch.name, directory)
            self._processes.append(process)
            self._directories[launch.node] = directory
        return RunnerNode(launch, process, agent), environment_of(launch, directory)

    def about(self, node: int) -> Mapping[str, Any]:
        """Return the directory of a node, which identifies its process."""
        return {"directory": str(self._directories[node])}

    def let_go(self, keep_s: float, nodes: Collection[int]) -> None:
        """Leave the processes running."""

    def release(self) -> None:
        """End all processes, and remove the directory."""
        with self._lock:
            processes = tuple(self._processes)
        for process in processes:
            process.ask_to_end()  # all of them first, so that their grace periods run in parallel
        for process in processes:
            process.end()
        if self._host is not None:
            self._host.directory.remove()
