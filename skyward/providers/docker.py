"""Nodes as containers of the Docker engine on this machine: the default provider.

All nodes share the machine's network; each has a private directory in common with the client.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from skyward.engine import Engine, Images, find_engine
from skyward.errors import PoolClosedError, ProviderError
from skyward.model.accelerator import Accelerator
from skyward.model.image import Image
from skyward.model.rights import Rights
from skyward.model.spec import Cluster
from skyward.providers.base import Host, Launch
from skyward.providers.containers import OWNER_ID, POOL, ContainerNode, PoolContainers, describe, dismiss_all
from skyward.providers.gpus import check_engine_gpus, gpus_of_container
from skyward.providers.owner import Owner
from skyward.providers.ports import PortClaim, claim_port
from skyward.providers.rundir import PoolDirectory, runtime_base, share, sweep_orphans
from skyward.providers.signed import refuse_unsigned
from skyward.system import socket
from skyward.wire.listen import dial

if TYPE_CHECKING:
    from skyward.build import ImageStore
    from skyward.build.events import Report


@dataclass(frozen=True)
class Docker:
    """Containers on this machine's Docker engine; the provider of pools that name none.

    Attributes:
        base_url: the engine's socket, as `unix:///path`; None for the engine that the docker CLI would use
            (`DOCKER_HOST`, the current context, the default socket).
        user: whom functions run as, by name or number, with a group if wanted ("app", "1000:100"). None for the user
            that the image names; where it names none, the caller's own, or for root the image's user skyward.
        privileges: capabilities(7) that their programs can have, such as ["SYS_PTRACE"]: root has them, other users get
            them by programs such as sudo. None by default, and then none can be gained. "default" for what Docker
            gives by itself.

    Raises:
        ConfigError: a value is wrong.
    """

    can_mount: ClassVar[bool] = True
    base_url: str | None = None
    user: str | None = None
    privileges: Sequence[str] = ()
    _pools: dict[str, _Pool] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "privileges", self._rights.privileges)

    @property
    def name(self) -> str:
        """Name of the provider."""
        return "docker"

    @property
    def _rights(self) -> Rights:
        return Rights.of("sky.Docker", self.user, self.privileges)

    @property
    def lease_s(self) -> float:
        """Seconds a container outlives a client that is gone."""
        return 60.0

    @property
    def images(self) -> ImageStore:
        """The images of the engine, for resolving a base and building on it; connected to with the first question."""
        from skyward.providers.images import EngineImages  # brings the build room, which Local() never needs

        return EngineImages(Images(find_engine(self.base_url)))

    def acquire(
        self,
        pool: str,
        nodes: int,
        accelerator: Accelerator | None,
        at_least: int | None = None,  # noqa: ARG002 - all or none
    ) -> Sequence[Host]:
        """Give this machine, once for each node.

        Raises:
            EngineMissingError: no engine answers.
            EngineError: it gives containers no GPU, and an accelerator is asked for.
            ProviderError: the engine does not share this machine's kernel, or has fewer GPUs than asked for.
        """
        engine = self._engine()
        if accelerator is not None:
            check_engine_gpus(engine, nodes, accelerator)
        sweep_orphans()
        _remove_unstarted(engine)
        self._pools[pool] = opened = _Pool(pool, engine, self._rights)
        return [DockerHost(opened)] * nodes

    def replace(self, pool: str, lost: Host | None, accelerator: Accelerator | None) -> Host:  # noqa: ARG002
        """Give this machine once more.

        Raises:
            PoolClosedError: the pool has ended.
        """
        return DockerHost(self._opened(pool))

    def prepare(
        self,
        hosts: Sequence[Host],  # noqa: ARG002 - all of them are this one machine
        image: Image,
        cluster: Cluster,
        report: Report,
    ) -> str | None:
        """Compile the image and build it unless the engine has it.

        Raises:
            ImageError: the base cannot be had, or the build fails.
        """
        from skyward.build import ensure, plan_for
        from skyward.build.used import note_use
        from skyward.providers.images import EngineImages

        refuse_unsigned(image, "from the engine that builds it")
        engine = self._engine()
        images = EngineImages(Images(find_engine(self.base_url)), report)
        platform = image.platform or cluster.spec.platform
        plan = plan_for(image, images, python=cluster.spec.python, platform=platform)
        tag = ensure(plan, images, report, docker_host=engine.url)
        note_use(tag)
        return tag

    def release(self, pool: str) -> None:
        """End and remove every container of the pool, whoever started it, and what else the pool holds here.

        Raises:
            EngineError: the engine is gone or refuses; containers may be left, which end by their lease.
        """
        opened = self._pools.pop(pool, None)
        if opened:
            opened.close()
        else:
            dismiss_all(self._engine(), pool)

    def find(self) -> Iterable[Mapping[str, Any]]:
        """Every container of every pool on the engine: pool, node, name, state, owner, image, id."""
        return describe(self._engine().containers(POOL))

    def _opened(self, pool: str) -> _Pool:
        opened = self._pools.get(pool)
        if opened is None:
            raise PoolClosedError(f"Pool {pool} has ended; no node of it can be started.")
        return opened

    def _engine(self) -> Engine:
        engine = Engine.connect(self.base_url)
        if sys.platform != "linux" or "Docker Desktop" in engine.product:
            raise ProviderError(
                f"The Docker engine at {engine.url} runs its containers in a virtual machine, where sky.Docker() "
                "cannot reach them: it needs an engine that runs on this machine itself. Use provider=sky.Local()."
            )
        return engine


class _Pool:
    """What a pool of this process holds here: directory, containers, ports."""

    def __init__(self, pool: str, engine: Engine, rights: Rights) -> None:
        self.directory = PoolDirectory.create(pool, runtime_base())
        self._port: PortClaim | None = None
        try:
            client = (os.geteuid(), os.getegid())
            self.containers = PoolContainers(pool, engine, rights, client, self.directory.keep)
        except BaseException:
            self.directory.remove()
            raise

    def claim_port(self) -> int:
        earlier, self._port = self._port, claim_port()
        if earlier is not None:
            earlier.release()  # that of a head that has been replaced
        return self._port.port

    def close(self) -> None:
        with ExitStack() as last:
            last.callback(self.directory.remove)
            if self._port is not None:
                last.callback(self._port.release)
            self.containers.close()


@dataclass(frozen=True, slots=True)
class DockerHost:
    """The machine at hand, as a host of one pool's nodes."""

    _pool: _Pool

    @property
    def name(self) -> str:
        """The machine's name."""
        return socket.gethostname()

    @property
    def address(self) -> str:
        """Loopback: all nodes are in this machine's own network."""
        return "127.0.0.1"

    def claim_port(self) -> int:
        """A port that no other pool on this machine gets until this one is released or claims another."""
        return self._pool.claim_port()

    def start(self, launch: Launch) -> ContainerNode:
        """Start the container of one node.

        Raises:
            EngineError: the engine refuses; nothing is left.
        """
        containers = self._pool.containers
        with containers.starting():
            directory = self._pool.directory.add(launch.node, launch.key)
            try:
                share(directory, containers.owner_of(launch))
                container = containers.run(launch, directory, gpus_of_container(launch))
            except BaseException:
                shutil.rmtree(directory, ignore_errors=True)
                raise
        return ContainerNode(containers, launch, container, _SharedDirectory(directory))


@dataclass(frozen=True, slots=True)
class _SharedDirectory:
    """A node's directory, which the client sees as well."""

    path: Path

    def dial(self, address: str) -> socket.socket:
        return dial(self.path, address)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def is_gone(self) -> bool:
        return False  # it is this machine

    def why_gone(self) -> str:
        return ""


def _remove_unstarted(engine: Engine) -> None:
    """Containers a killed client had created but not started: no lease ends them, because nothing runs in them."""
    for found in engine.containers(POOL, state="created"):
        owner = Owner.parse(found["Labels"].get(OWNER_ID, ""))
        if owner and owner.is_gone():
            engine.remove(found["Id"])
