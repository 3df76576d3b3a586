"""Nodes as the containers of a compose file: of one that is up, or of one that is up for as long as the pool is open.

They share a bridge network, on which each has an address. Nothing of them listens for the client: it reaches them
through the engine.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from skyward.engine import Images
from skyward.errors import ConfigError, PoolClosedError, ProviderError
from skyward.model.accelerator import Accelerator
from skyward.model.image import Image
from skyward.model.spec import Cluster
from skyward.providers.base import Host, Launch, Terms
from skyward.providers.compose_node import ComposeNode, Standby, Taken, take
from skyward.providers.compose_project import Project, project_name
from skyward.providers.containers import POOL, describe, remove_all

if TYPE_CHECKING:
    from skyward.build.events import Report

LEASE_S = 60.0


@dataclass(frozen=True, init=False)
class Compose:
    """The containers of a compose file such as `skyward up --nodes 3 --compose` writes.

    If the file is up, nodes are taken from its running containers and given back: what was up stays up, and runs its
    own image. If it is not, the pool brings it up with its own image, and down at its end.

    Attributes:
        file: the compose file.
        project: its name for compose; None for the one that compose would give it.

    Raises:
        ConfigError: there is no such file, or the name is not one.
    """

    file: Path
    project: str | None
    _pools: dict[str, _Pool] = field(repr=False, compare=False)

    def __init__(self, file: str | os.PathLike[str] = "compose.yaml", project: str | None = None) -> None:
        path = Path(file).expanduser().absolute()
        if not path.is_file():
            raise ConfigError(
                f"sky.Compose: there is no file {path}. `skyward up --nodes 3 --compose > compose.yaml` writes one."
            )
        if project is not None and not re.fullmatch(r"[a-z0-9][-_a-z0-9]*", project):
            raise ConfigError(
                f"sky.Compose: project={project!r} is not a name of a project: small letters, digits, - and _."
            )
        object.__setattr__(self, "file", path)
        object.__setattr__(self, "project", project)
        object.__setattr__(self, "_pools", {})

    @property
    def name(self) -> str:
        """Name of the provider."""
        return "compose"

    @property
    def lease_s(self) -> float:
        """Seconds a node outlives a client that is silent. One that is gone is noticed at once."""
        return LEASE_S

    def on(self, terms: Terms) -> Self:
        """The same provider.

        Raises:
            ConfigError: the terms ask for what the compose file decides, or for rented machines.
        """
        for name in ("machine", "allocation", "max_hourly_cost"):
            if getattr(terms, name) is not None:
                raise ConfigError(f"{name}= is for providers of rented machines; sky.Compose rents none.")
        for name, key in (("cpus", "cpu"), ("memory_gb", "memory")):
            if getattr(terms, name) is not None:
                raise ConfigError(f"{key}= is decided by {self.file} for the nodes of sky.Compose: limit them there.")
        return self

    def acquire(self, pool: str, nodes: int, accelerator: Accelerator | None) -> Sequence[Host]:
        """Take nodes if the file is up; if not, see that it can be brought up.

        Raises:
            ProviderError: too few nodes run or are free; the file cannot be brought up; an accelerator is asked for.
            EngineMissingError: no engine answers.
        """
        if accelerator is not None:
            raise ProviderError(f"sky.Compose gives nodes no accelerator; this pool asks for {accelerator.name}.")
        project = Project(self.file, self.project or project_name(self.file))
        self._pools[pool] = opened = _Pool(pool, project, nodes)
        if project.is_up():
            opened.take()
        else:
            project.check()
        return [ComposeHost(opened, node) for node in range(nodes)]

    def prepare(
        self,
        hosts: Sequence[Host],
        image: Image,
        cluster: Cluster,
        report: Report,
    ) -> str | None:
        """Bring the file up with this image, unless it is up: then its nodes run what they run, and None is returned.

        Raises:
            ImageError: the image cannot be had.
            ProviderError: compose failed, or the file has fewer nodes than asked for.
        """
        from skyward.build import ensure, plan_for
        from skyward.build.events import note
        from skyward.build.used import note_use
        from skyward.providers.images import EngineImages

        opened = next(host.pool for host in hosts if isinstance(host, ComposeHost))
        tag = None
        if not opened.taken:
            images = EngineImages(Images(opened.project.address))
            platform = image.platform or cluster.spec.platform
            plan = plan_for(image, images, python=cluster.spec.python, platform=platform)
            tag = ensure(plan, images, report, docker_host=opened.project.address.url)
            note_use(tag)
            with opened.project.alone():
                if not opened.project.is_up():
                    opened.bring_up(tag)
                opened.take()
        if opened.brought_up:
            return tag
        names = ", ".join(sorted({taken.standby.image for taken in opened.taken}))
        report(note(f"project {opened.project.name} is up and runs {names}; the pool's image is not used"))
        return None

    def release(self, pool: str) -> None:
        """Give nodes back, and bring the file down if this pool brought it up, whoever did that for it.

        Raises:
            ProviderError: compose failed; containers may be left, which end by their lease.
            EngineError: the engine is gone or refuses.
        """
        opened = self._pools.pop(pool, None)
        if opened:
            opened.close()
        else:
            remove_all(self._project().engine, pool)

    def find(self) -> Iterable[Mapping[str, Any]]:
        """Every container of the project that can be a node: pool that brought it up, name, state, image, id."""
        return describe([each for each in self._project().containers() if POOL in each["Labels"]])

    def _project(self) -> Project:
        return Project(self.file, self.project or project_name(self.file))


class _Pool:
    """What one pool has of a project."""

    def __init__(self, pool: str, project: Project, nodes: int) -> None:
        self.id, self.project, self._count = pool, project, nodes
        self.taken: list[Taken] = []
        self.brought_up = False
        self._started: set[int] = set()
        self._lock = threading.Lock()
        self._closed = False

    def bring_up(self, image: str) -> None:
        self.brought_up = True  # also what fails half-way is to be brought down
        self.project.up(SKYWARD_IMAGE=image, SKYWARD_POOL=self.id, SKYWARD_STANDBY_LEASE=f"{LEASE_S:g}")

    def take(self) -> None:
        """Take as many nodes as the pool has; none if there are not enough."""
        there = self.project.nodes()
        busy = []
        if len(there) >= self._count:
            for standby in there:
                taken = take(self.project.address, standby)
                if taken is None:
                    busy.append(standby)
                    continue
                self.taken.append(taken)
                if len(self.taken) == self._count:
                    return
        self._refuse(there, busy)

    def start(self, node: int, launch: Launch) -> ComposeNode:
        with self._lock:
            if self._closed:
                raise PoolClosedError(f"Pool {self.id} is ending; no node of it can be started.")
            if node in self._started:  # it was removed: it is free, and taken anew
                self.taken[node] = self._again(self.taken[node].standby)
            self._started.add(node)
            return ComposeNode(self.project.address, self.taken[node], launch)

    def _again(self, standby: Standby) -> Taken:
        taken = take(self.project.address, standby)
        if taken is None:
            raise ProviderError(f"Container {standby.name} was given back, and another client has taken it.")
        return taken

    def close(self) -> None:
        with self._lock:
            self._closed = True
        with ExitStack() as last:
            if self.brought_up:
                last.callback(self.project.down)
            for taken in self.taken:
                last.callback(taken.give_back)

    def _refuse(self, there: Sequence[Standby], busy: Sequence[Standby]) -> None:
        name, file = self.project.name, self.project.file
        if busy:
            raise ProviderError(
                f"The pool needs {self._count} nodes of project {name} ({file}); {len(there)} run, of which others "
                f"have taken {len(busy)}: {', '.join(each.name for each in busy)}. Wait for their pools to end."
            )
        more = f"`skyward up --nodes {self._count} --compose > {file.name}` writes a file with as many"
        if not self.brought_up:
            more += ", and `docker compose up --detach` starts what does not run"
        raise ProviderError(f"The pool needs {self._count} nodes; of project {name} ({file}) {len(there)} run. {more}.")


@dataclass(frozen=True, slots=True)
class ComposeHost:
    """A container of the project, as the host of one node. Which one is known once the image is prepared."""

    pool: _Pool
    node: int

    @property
    def name(self) -> str:
        """The container's name."""
        return self.pool.taken[self.node].standby.name

    @property
    def address(self) -> str:
        """Its IP address on the network that the nodes share."""
        return self.pool.taken[self.node].standby.address

    def claim_port(self) -> int:
        """A free port there; the container is this pool's alone."""
        return self.pool.taken[self.node].port

    def start(self, launch: Launch) -> ComposeNode:
        """Make the container the node.

        Raises:
            ProviderError: it has ended, or was taken by another client.
        """
        return self.pool.start(self.node, launch)
