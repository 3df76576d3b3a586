"""Nodes as the containers of a compose file: of one that is up, or of one that is up for as long as the pool is open.

They share a bridge network, on which each has an address. Nothing of them listens for the client: it reaches them
through the engine.
"""

from __future__ import annotations

import os
import re
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
from skyward.providers.compose_file import USER_VAR
from skyward.providers.compose_node import ComposeNode, Standby, Taken, take
from skyward.providers.compose_project import GPUS, Project, project_name
from skyward.providers.containers import POOL, describe, remove_all
from skyward.providers.heir import Heir
from skyward.providers.owner import current_user
from skyward.providers.signed import refuse_unsigned
from skyward.system import threading
from skyward.system.futures import ThreadPoolExecutor

if TYPE_CHECKING:
    from skyward.build.events import Report

LEASE_S = 60.0
_AT_ONCE = 16


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

    def acquire(
        self,
        pool: str,
        nodes: int,
        accelerator: Accelerator | None,
        at_least: int | None = None,  # noqa: ARG002 - all or none
    ) -> Sequence[Host]:
        """Take nodes if the file is up; if not, see that it can be brought up.

        Raises:
            ProviderError: too few nodes run, are free or have the GPUs; the file cannot be brought up.
            EngineMissingError: no engine answers.
        """
        gpus = accelerator.count if accelerator else 0
        if gpus and GPUS not in self.file.read_text(errors="replace"):
            raise ProviderError(
                f"The nodes of {self.file} have no GPUs (no service has the label {GPUS}); this pool asks for "
                f"{gpus} on each. {_writes(nodes, gpus, self.file)}."
            )
        project = Project(self.file, self.project or project_name(self.file))
        self._pools[pool] = opened = _Pool(pool, project, nodes, gpus)
        if project.is_up():
            opened.take()
        else:
            project.check()
        return [ComposeHost(opened, node) for node in range(nodes)]

    def replace(self, pool: str, lost: Host | None, accelerator: Accelerator | None) -> Host:  # noqa: ARG002
        """A container of the project that no pool has; the lost one's too, if it is back.

        Raises:
            ProviderError: none is free.
            PoolClosedError: the pool has ended.
        """
        opened = self._pools.get(pool)
        if opened is None:
            raise PoolClosedError(f"Pool {pool} has ended; no node of it can be started.")
        return ComposeHost(opened, opened.take_another(lost.node if isinstance(lost, ComposeHost) else None))

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
        refuse_unsigned(image, "from the engine that builds it")
        from skyward.build import ensure, plan_for
        from skyward.build.events import note
        from skyward.build.used import note_use
        from skyward.providers.images import EngineImages

        opened = next(host.pool for host in hosts if isinstance(host, ComposeHost))
        tag = opened.image
        if not opened.taken:
            images = EngineImages(Images(opened.project.address))
            platform = image.platform or cluster.spec.platform
            plan = plan_for(image, images, python=cluster.spec.python, platform=platform)
            tag = ensure(plan, images, report, docker_host=opened.project.address.url)
            note_use(tag)
            opened.image = tag
            with opened.project.alone() as lock:
                if not opened.project.is_up():
                    opened.bring_up(tag, plan.user, lock)
                opened.take()
        if opened.brought_up:
            return tag
        names = ", ".join(sorted({taken.standby.image for taken in opened.taken}))
        report(note(f"project {opened.project.name} is up and runs {names}; the pool's image is not used"))
        if volumes := sorted({volume for taken in opened.taken for volume in taken.volumes}):
            report(note(f"what is written to {', '.join(volumes)} stays for the next pool: volumes are not cleaned"))
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

    def __init__(self, pool: str, project: Project, nodes: int, gpus: int) -> None:
        self.id, self.project, self._count, self._gpus = pool, project, nodes, gpus
        self.taken: list[Taken] = []
        self.image: str | None = None  # what it brought the project up with
        self._heir: Heir | None = None
        self._started: set[int] = set()
        self._lock = threading.Lock()
        self._closed = False

    @property
    def brought_up(self) -> bool:
        """Whether it is this pool that is to bring the project down."""
        return self._heir is not None

    def bring_up(self, image: str, user: str, lock: int) -> None:
        # from here on it is brought down, also what failed half-way, and if need be without this process
        self._heir = Heir("skyward.providers.compose_heir", self.id, str(self.project.file), self.project.name)
        names = {"SKYWARD_IMAGE": image, "SKYWARD_POOL": self.id, "SKYWARD_USER": current_user()}
        if user and not os.environ.get(USER_VAR):
            names[USER_VAR] = user  # the image's own
        self.project.up(lock, **names, SKYWARD_STANDBY_LEASE=f"{LEASE_S:g}")

    def take(self) -> None:
        """Take as many nodes as the pool has; none if there are not enough."""
        there = self._having_gpus()
        left = there if len(there) >= self._count else []
        busy: list[Standby] = []
        while left and (missing := self._count - len(self.taken)):
            busy += self._try(left[:missing])
            left = left[missing:]
        if len(self.taken) < self._count:
            self._refuse(there, busy)

    def _try(self, standbys: Sequence[Standby]) -> list[Standby]:
        """Take these side by side; those that others have. An error is raised when all have been tried."""
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="skyward-take") as threads:
            tries = [threads.submit(take, self.project.address, standby) for standby in standbys]
        taken = [each.result() for each in tries if each.exception() is None]
        self.taken += filter(None, taken)
        for each in tries:
            each.result()
        return [standby for standby, each in zip(standbys, taken, strict=True) if each is None]

    def take_another(self, lost: int | None) -> int:
        """Take one more in the place of a lost one; its index in `taken`."""
        with self._lock:
            if self._closed:
                raise PoolClosedError(f"Pool {self.id} is ending; no container is taken for it.")
            if lost is not None:
                self.taken[lost].give_back()
            held = {each.standby.container for number, each in enumerate(self.taken) if number != lost}
            for standby in self._having_gpus():
                if standby.container not in held and (taken := take(self.project.address, standby)) is not None:
                    self.taken.append(taken)
                    return len(self.taken) - 1
        raise ProviderError(
            f"No container of project {self.project.name} ({self.project.file}) that runs is free to become a node."
        )

    def start(self, node: int, launch: Launch) -> ComposeNode:
        with self._lock:
            if self._closed:
                raise PoolClosedError(f"Pool {self.id} is ending; no node of it can be started.")
            if node in self._started:  # it was removed: it is free, and taken anew
                self.taken[node] = self._again(self.taken[node].standby)
            self._started.add(node)
            return ComposeNode(self.project.address, self.taken[node], launch)

    def _having_gpus(self) -> list[Standby]:
        return [each for each in self.project.nodes() if each.gpus >= self._gpus]

    def _again(self, standby: Standby) -> Taken:
        taken = take(self.project.address, standby)
        if taken is None:
            raise ProviderError(f"Container {standby.name} was given back, and another client has taken it.")
        return taken

    def close(self) -> None:
        with self._lock:
            self._closed = True
        with ExitStack() as last:
            if self._heir is not None:
                last.callback(self._heir.relieve, self.project.down)
            for taken in self.taken:
                last.callback(taken.give_back)

    def _refuse(self, there: Sequence[Standby], busy: Sequence[Standby]) -> None:
        name, file = self.project.name, self.project.file
        if busy:
            raise ProviderError(
                f"The pool needs {self._count} nodes of project {name} ({file}); {len(there)} run, of which others "
                f"have taken {len(busy)}: {', '.join(each.name for each in busy)}. Wait for their pools to end."
            )
        more = _writes(self._count, self._gpus, file)
        if not self.brought_up:
            more += ", and `docker compose up --detach` starts what does not run"
        having = f" with {self._gpus} GPUs each" if self._gpus else ""
        raise ProviderError(
            f"The pool needs {self._count} nodes{having}; of project {name} ({file}) {len(there)} run. {more}."
        )


def _writes(nodes: int, gpus: int, file: Path) -> str:
    options = f" --gpus {gpus}" if gpus else ""
    return f"`skyward up --nodes {nodes} --compose{options} > {file.name}` writes a file with as many"


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
