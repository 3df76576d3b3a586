"""Nodes as containers of the Docker engine on this machine: the default provider.

All nodes share the machine's network; each has a private directory in common with the client.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skyward.engine import Container, ContainerSpec, Engine, Images, Watch, find_engine
from skyward.errors import PoolClosedError, ProviderError
from skyward.model.accelerator import Accelerator
from skyward.model.image import Image
from skyward.model.spec import Cluster
from skyward.providers.base import Announcement, Exit, Host, Launch
from skyward.providers.gpus import check_engine_gpus, gpus_of_container
from skyward.providers.output import NodeOutput, node_exit, start_failure
from skyward.providers.owner import Owner
from skyward.providers.ports import PortClaim, claim_port
from skyward.providers.rundir import PoolDirectory, runtime_base, sweep_orphans
from skyward.wire.listen import dial

if TYPE_CHECKING:
    from skyward.build import ImageStore
    from skyward.build.events import Report

POOL, NODE, OWNER, OWNER_ID = "skyward.pool", "skyward.node", "skyward.owner", "skyward.owner-id"
RUN_DIR = "/run/skyward"  # where a container sees its node's directory
WORK_DIR = "/work"  # where functions run in images that name no directory of their own
COMMAND = ("/opt/venv/bin/python", "-m", "skyward.runner")
_log = logging.getLogger(__name__)
_END_NEWS_S = 2.0  # how long after the last byte of its output an engine may take to say how a container ended
_GIB = 1024**3


@dataclass(frozen=True)
class Docker:
    """Containers on this machine's Docker engine; the provider of pools that name none.

    Attributes:
        base_url: the engine's socket, as `unix:///path`; None for the engine that the docker CLI would use
            (`DOCKER_HOST`, the current context, the default socket).
    """

    base_url: str | None = None
    _pools: dict[str, _Pool] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def name(self) -> str:
        """Name of the provider."""
        return "docker"

    @property
    def lease_s(self) -> float:
        """Seconds a container outlives a client that is gone."""
        return 60.0

    @property
    def images(self) -> ImageStore:
        """The images of the engine, for resolving a base and building on it; connected to with the first question."""
        from skyward.providers.images import EngineImages  # brings the build room, which Local() never needs

        return EngineImages(Images(find_engine(self.base_url)))

    def acquire(self, pool: str, nodes: int, accelerator: Accelerator | None) -> Sequence[Host]:
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
        self._pools[pool] = opened = _Pool(pool, engine)
        return [DockerHost(opened)] * nodes

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

        engine, images = self._engine(), self.images
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
            _remove_all(self._engine(), pool)

    def find(self) -> Iterable[Mapping[str, Any]]:
        """Every container of every pool on the engine: pool, node, name, state, owner, image, id."""
        return [
            {
                "pool": found["Labels"][POOL],
                "node": int(found["Labels"].get(NODE, -1)),
                "name": found["Names"][0].lstrip("/") if found["Names"] else "",
                "state": found["State"],
                "owner": found["Labels"].get(OWNER, ""),
                "image": found["Image"],
                "id": found["Id"],
            }
            for found in self._engine().containers(POOL)
        ]

    def _engine(self) -> Engine:
        engine = Engine.connect(self.base_url)
        if sys.platform != "linux" or "Docker Desktop" in engine.product:
            raise ProviderError(
                f"The Docker engine at {engine.url} runs its containers in a virtual machine, where sky.Docker() "
                "cannot reach them: it needs an engine that runs on this machine itself. Use provider=sky.Local()."
            )
        return engine


class _Pool:
    """What a pool of this process holds here: directory, stream of events, ports; and a gate against late starts."""

    def __init__(self, pool: str, engine: Engine) -> None:
        self.id, self.engine = pool, engine
        self.directory = PoolDirectory.create(pool, runtime_base())
        self._ports: list[PortClaim] = []
        self._working_dirs: dict[str, str] = {}
        self._gate = threading.Condition()
        self._starting, self._closed = 0, False
        try:
            self.watch: Watch = engine.watch({POOL: pool})
        except BaseException:
            self.directory.remove()
            raise

    def working_dir(self, image: str) -> str:
        """The image's own, or an empty one: at / every top-level directory would be importable as a package."""
        if image not in self._working_dirs:
            config = (self.engine.image(image) or {}).get("Config") or {}
            self._working_dirs[image] = config.get("WorkingDir") or WORK_DIR
        return self._working_dirs[image]

    def claim_port(self) -> int:
        claim = claim_port()
        self._ports.append(claim)
        return claim.port

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Around each start, so that closing neither misses a container being made nor is followed by another."""
        with self._gate:
            if self._closed:
                raise PoolClosedError(f"Pool {self.id} is ending; no node of it can be started.")
            self._starting += 1
        try:
            yield
        finally:
            with self._gate:
                self._starting -= 1
                self._gate.notify_all()

    def close(self) -> None:
        with self._gate:
            self._closed = True
            self._gate.wait_for(lambda: self._starting == 0, timeout=30)
        with ExitStack() as last:
            last.callback(self.directory.remove)
            last.callback(self.watch.close)
            for claim in self._ports:
                last.callback(claim.release)
            _remove_all(self.engine, self.id)


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
        """A port that no other pool on this machine gets until this pool is released."""
        return self._pool.claim_port()

    def start(self, launch: Launch) -> DockerNode:
        """Start the container of one node.

        Raises:
            EngineError: the engine refuses; nothing is left.
        """
        if launch.image is None:
            raise ProviderError(
                f"Node {launch.node} of pool {launch.pool} has no image, and this provider runs images."
            )
        with self._pool.starting():
            working_dir = self._pool.working_dir(launch.image)
            directory = self._pool.directory.add(launch.node, launch.key)
            try:
                container = self._pool.engine.run(_container(launch, launch.image, directory, working_dir))
            except BaseException:
                shutil.rmtree(directory, ignore_errors=True)
                raise
        return DockerNode(self._pool, launch, container, directory)


class DockerNode:
    """A node in its container."""

    def __init__(self, pool: _Pool, launch: Launch, container: Container, directory: Path) -> None:
        self._pool, self._container, self._directory = pool, container, directory
        self._who = f"Node {launch.node} of pool {launch.pool} (container {launch.name})"
        self._output = NodeOutput(container.output(), launch.name)

    def wait_ready(self, timeout_s: float) -> Announcement:
        """Block until the runner has announced itself; see `Node`."""
        announcement = self._output.wait_announcement(timeout_s)
        if announcement:
            return announcement
        ended = self.wait_exit(_END_NEWS_S) if self._output.ended else None
        raise start_failure(self._who, ended, timeout_s, self._output.tail)

    def connect(self, address: str) -> socket.socket:
        """A connected, blocking socket to an address the node announced."""
        connected = dial(self._directory, address)
        connected.settimeout(None)
        return connected

    def wait_exit(self, timeout_s: float) -> Exit | None:
        """How the container ended, None if it still runs after `timeout_s`."""
        ending = self._pool.watch.ending(self._container.id, timeout_s)
        if ending is None:
            return None
        self._output.join(_END_NEWS_S)
        if ending.code is None:
            engine = self._pool.engine.url
            return Exit(
                code=None, text=f"is lost from sight: the Docker engine at {engine} is gone", log=self._output.tail
            )
        return node_exit(ending.code, oom=ending.oom, log=self._output.tail)

    def remove(self) -> None:
        """End the container at once, wait until it is gone, and remove the node's directory."""
        self._pool.engine.remove(self._container.id)
        self._output.join(_END_NEWS_S)
        shutil.rmtree(self._directory, ignore_errors=True)


def _container(launch: Launch, image: str, directory: Path, working_dir: str) -> ContainerSpec:
    owner = Owner.of(os.getpid())
    return ContainerSpec(
        image=image,
        command=COMMAND,
        name=launch.name,
        labels={POOL: launch.pool, NODE: str(launch.node), OWNER: owner.for_people, OWNER_ID: owner.text},
        env={
            **launch.env,
            "COMPUTE_POOL": launch.compute_pool,
            "SKYWARD_RUNNER": launch.runner,
            "SKYWARD_RUN_DIR": RUN_DIR,
        },
        mounts=((directory, RUN_DIR),),
        working_dir=working_dir,
        gpus=gpus_of_container(launch),
        cpus=launch.cpus,
        memory_bytes=None if launch.memory_gb is None else int(launch.memory_gb * _GIB),
    )


def _remove_unstarted(engine: Engine) -> None:
    """Containers a killed client had created but not started: no lease ends them, because nothing runs in them."""
    for found in engine.containers(POOL, state="created"):
        owner = Owner.parse(found["Labels"].get(OWNER_ID, ""))
        if owner and owner.is_gone():
            engine.remove(found["Id"])


def _remove_all(engine: Engine, pool: str) -> None:
    """Remove all containers of a pool, several at a time; the first failure is raised when all have been tried."""
    found = engine.containers(f"{POOL}={pool}")
    if not found:
        return
    with ThreadPoolExecutor(min(8, len(found)), thread_name_prefix="skyward-remove") as threads:
        tries = [threads.submit(engine.remove, container["Id"]) for container in found]
    failures = [error for error in (t.exception() for t in tries) if error]
    for error in failures:
        _log.warning("A container of pool %s could not be removed: %s", pool, error)
    if failures:
        raise failures[0]
