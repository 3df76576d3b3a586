"""`sky.Docker`: nodes are containers of the Docker engine on this machine. It is the default provider.

All nodes use the machine's network. Each shares a private directory with the client.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from skyward.engine import Engine, Images, find_engine
from skyward.errors import ProviderError
from skyward.model.parameters import suggesting
from skyward.model.resource import Resource
from skyward.model.rights import Rights
from skyward.nodes.access import ContainerAccess, NodeAccess
from skyward.nodes.container import OWNER_ID, POOL, PoolContainers, RunDirectory, describe, dismiss_all
from skyward.nodes.local_host import (
    LocalHost,
    check_engine_gpus,
    check_memory,
    gpus_of_container,
)
from skyward.nodes.node import Host, Launch, Node, RunnerNode
from skyward.nodes.process_id import ProcessId
from skyward.nodes.run_directory import PoolDirectory, runtime_base, share
from skyward.providers.base import Allocation, Capabilities, PoolRequest, Provider

if TYPE_CHECKING:
    from skyward.builder.store import EngineImages


@suggesting("sky.Docker")
@dataclass(frozen=True)
class Docker(Provider):
    """Containers on this machine's Docker engine; the provider of pools that name none.

    Attributes:
        base_url: the engine's socket, as `unix:///path`; None for the engine that the docker CLI would use
            (`DOCKER_HOST`, the current context, the default socket).
        user: user that functions run as, by name or number, optionally with a group ("app", "1000:100"). None for the
            image's user; if it has none, the caller's own, or for root the image's user skyward.
        privileges: capabilities(7) that their programs can have, such as ["SYS_PTRACE"]: root has them, other users get
            them through programs such as sudo. None by default, and then none can be gained. "default" for Docker's own
            default.

    Raises:
        ConfigError: a value is invalid.
    """

    name: ClassVar[str] = "docker"
    capabilities: ClassVar[Capabilities] = Capabilities(mounts=True, keeps=True, default_lease_s=60.0)
    base_url: str | None = None
    user: str | None = None
    privileges: Sequence[str] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "privileges", self.rights.privileges)

    @property
    def rights(self) -> Rights:
        """The user that functions run as, and their privileges."""
        return Rights.of("sky.Docker", self.user, self.privileges)

    @property
    def images(self) -> EngineImages:
        """The images of the engine, for resolving a base image and building on it; connects on first use."""
        from skyward.builder.store import EngineImages  # imports the builder, which Local() never needs

        return EngineImages(Images(find_engine(self.base_url)))

    def open(self, request: PoolRequest) -> DockerAllocation:
        """Return the allocation of the containers of a pool."""
        return DockerAllocation(self, request)

    def find(self) -> Sequence[Resource]:
        """Return every container of every pool on the engine."""
        return describe(self.engine().containers(POOL))

    def destroy(self, pool_id: str) -> None:
        """End and remove every container of a pool, whichever client started it."""
        dismiss_all(self.engine(), pool_id)

    def enter(self, node: Resource) -> NodeAccess:
        """Return access to a container through the engine."""
        return ContainerAccess(node, find_engine(self.base_url))

    def engine(self) -> Engine:
        """Return a connection to the engine.

        Raises:
            EngineMissingError: no engine answers.
            ProviderError: its containers run in a virtual machine.
        """
        engine = Engine.connect(self.base_url)
        is_elsewhere = sys.platform != "linux"
        if is_elsewhere or "Docker Desktop" in engine.product:
            raise ProviderError(
                f"The Docker engine at {engine.url} runs its containers in a virtual machine, where sky.Docker() "
                "cannot reach them: it needs an engine that runs on this machine itself. Use provider=sky.Local()."
            )
        return engine


class DockerAllocation(Allocation):
    """The containers of one pool on this machine."""

    def __init__(self, provider: Docker, request: PoolRequest) -> None:
        super().__init__(request)
        self._provider = provider
        self._host: LocalHost | None = None
        self._containers: PoolContainers | None = None

    def acquire(self) -> Sequence[Host]:
        """Return this machine once for each node."""
        request, engine = self.request, self._provider.engine()
        if request.accelerator is not None:
            check_engine_gpus(engine, request.nodes, request.accelerator)
        if request.memory_gb is not None:
            check_memory(engine, request.memory_gb)
        self._host = LocalHost(request.pool_id, runtime_base(), self._start, request.name)
        _remove_unstarted(engine)
        client, keep = (os.geteuid(), os.getegid()), self._host.directory.keep
        self._containers = PoolContainers(request.pool_id, engine, self._provider.rights, client, keep)
        return [self._host] * request.nodes

    def prepare(self, hosts: Sequence[Host]) -> str | None:  # noqa: ARG002 - all of them are this machine
        """Compile the image and build it unless the engine has it."""
        from skyward.delivery.deliver import ImageTarget, deliver

        request = self.request
        target = ImageTarget(engine=find_engine(self._provider.base_url))
        return deliver(request.image, request.cluster, target, request.report).tag

    def replace(self, lost: Host | None) -> Host:  # noqa: ARG002 - there is one machine
        """Return the same machine again."""
        self.check_open()
        assert self._host
        return self._host

    def _start(self, launch: Launch, pool: PoolDirectory) -> RunnerNode:
        def directory(owner: int | None) -> RunDirectory:
            path = pool.add(launch.node, launch.key)
            share(path, owner)
            return RunDirectory(path)

        assert self._containers
        return self._containers.start(launch, directory, gpus_of_container(launch))

    def adopt(self, launch: Launch, about: Mapping[str, Any], agent: str) -> tuple[Node, None]:
        """Return a container started by an earlier client."""
        assert self._containers
        return self._containers.adopt(launch, about, RunDirectory(Path(about["directory"])), agent), None

    def about(self, node: int) -> Mapping[str, Any]:
        """Return the directory of a node, and its container."""
        assert self._containers
        return self._containers.about(node)

    def let_go(self, keep_s: float, nodes: Collection[int]) -> None:  # noqa: ARG002 - the nodes end on their own
        """Leave the containers running."""
        if self._containers is not None:
            self._containers.let_go()

    def release(self) -> None:
        """Remove all containers, and the directory."""
        with ExitStack() as last:
            if self._host is not None:
                last.callback(self._host.directory.remove)
            if self._containers is not None:
                self._containers.close()


def _remove_unstarted(engine: Engine) -> None:
    """Remove containers created but not started by a killed client: as nothing runs in them, no lease ends them."""
    for found in engine.containers(POOL, state="created"):
        owner = ProcessId.parse(found["Labels"].get(OWNER_ID, ""))
        if owner and owner.is_gone():
            engine.remove(found["Id"])
