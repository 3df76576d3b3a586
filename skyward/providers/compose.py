"""`sky.Compose`, and what one pool has of a compose file's project."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from skyward.errors import ConfigError, PoolClosedError, ProviderError
from skyward.model.parameters import suggesting
from skyward.model.resource import Resource
from skyward.nodes.access import ContainerAccess, NodeAccess
from skyward.nodes.container import describe, remove_all
from skyward.nodes.node import Host, Launch, RunnerNode
from skyward.nodes.process_id import current_user
from skyward.providers.base import Allocation, Capabilities, PoolRequest, Provider
from skyward.providers.compose_project import (
    GPUS,
    USER_VAR,
    ComposeProcess,
    Project,
    Standby,
    Taken,
    project_name,
    take,
)
from skyward.providers.reaper import Reaper
from skyward.system import threading
from skyward.system.futures import ThreadPoolExecutor

LEASE_S = 60.0
_AT_ONCE = 16


@suggesting("sky.Compose")
@dataclass(frozen=True, init=False)
class Compose(Provider):
    """The containers of a compose file such as `skyward up --nodes 3 --compose` writes.

    If the file is up, nodes are taken from its running containers and given back: what was up stays up, and runs its
    own image. If it is not, the pool brings it up with its own image, and down at its end.

    Attributes:
        file: the compose file.
        project: its name for compose; None for the one that compose would give it.

    Raises:
        ConfigError: there is no such file, or the name is not one.
    """

    name: ClassVar[str] = "compose"
    capabilities: ClassVar[Capabilities] = Capabilities(default_lease_s=LEASE_S)
    file: Path
    project: str | None

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

    def check(self, request: PoolRequest) -> None:
        """Refuse limits, which the file sets, and rented machines.

        Raises:
            ConfigError: the request asks for either.
        """
        super().check(request)
        for name, value in (("cpu", request.cpus), ("memory", request.memory_gb)):
            if value is not None:
                raise ConfigError(f"{name}= is decided by {self.file} for the nodes of sky.Compose: limit them there.")

    def open(self, request: PoolRequest) -> ComposeAllocation:
        """The containers that a pool takes."""
        return ComposeAllocation(self, request)

    def find(self) -> Sequence[Resource]:
        """Every container of the project that can be a node, with its number there as `node`."""
        found = describe(self.project_on_engine().node_containers())
        for number, each in enumerate(found):
            each["node"] = number
        return found

    def enter(self, node: Resource) -> NodeAccess:
        """A way into a container, through the engine. The pool that has taken it is not known by its label."""
        return ContainerAccess(node, self.project_on_engine().address)

    def destroy(self, pool_id: str) -> None:
        """Bring the file down if it is this pool that brought it up; if the file is gone, remove the pool's nodes.

        Raises:
            ProviderError: compose failed; containers may be left, which end by their lease.
            EngineError: the engine is gone or refuses.
        """
        project = self.project_on_engine()
        if not self.file.exists():
            remove_all(project.engine, pool_id)
            return
        with project.locked():  # until the pool's own `up` has ended, which outlives a client that is killed
            if project.is_of(pool_id):
                project.down()

    def project_on_engine(self) -> Project:
        """The project, under the name that compose gives it.

        Raises:
            ProviderError: the folder's name gives none.
        """
        return Project(self.file, self.project or project_name(self.file))


class ComposeAllocation(Allocation):
    """The containers that one pool has taken of a project, and whether it has brought the project up."""

    def __init__(self, provider: Compose, request: PoolRequest) -> None:
        super().__init__(request)
        self._provider = provider
        self.taken: list[Taken] = []
        self._image: str | None = None  # what this pool has brought the project up with
        self._reaper: Reaper | None = None  # there is one if this pool is to bring the project down
        self._started: set[int] = set()
        self._lock = threading.Lock()

    @cached_property
    def project(self) -> Project:
        """The project, on its engine."""
        return self._provider.project_on_engine()

    def acquire(self) -> Sequence[Host]:
        """Take nodes if the file is up; if not, check that it can be brought up.

        Raises:
            ProviderError: too few nodes run, are free or have the GPUs; the file cannot be brought up.
            EngineMissingError: no engine answers.
        """
        request, file = self.request, self._provider.file
        if request.gpus and GPUS not in file.read_text(errors="replace"):
            raise ProviderError(
                f"The nodes of {file} have no GPUs (no service has the label {GPUS}); this pool asks for "
                f"{request.gpus} on each. {self._command_for_more()}."
            )
        if self.project.is_up():
            self._take()
        else:
            self.project.check()
        return [ComposeHost(self, node) for node in range(request.nodes)]

    def prepare(self, hosts: Sequence[Host]) -> str | None:  # noqa: ARG002 - the project is there for all of them
        """Bring the file up with the pool's image, unless it is up: then its nodes run what they run, and it is None.

        Raises:
            ImageError: the image cannot be had.
            ProviderError: compose failed, or the file has fewer nodes than asked for.
        """
        from skyward.builder.events import note
        from skyward.delivery.deliver import ImageTarget, deliver

        request, project = self.request, self.project
        if not self.taken:
            target = ImageTarget(engine=project.address)
            delivered = deliver(request.image, request.cluster, target, request.report)
            with project.locked() as lock:
                if not project.is_up():
                    self._bring_up(delivered.tag, delivered.user, lock)
                self._take()
        if self._image is not None:
            return self._image
        names = ", ".join(sorted({taken.standby.image for taken in self.taken}))
        request.report(note(f"project {project.name} is up and runs {names}; the pool's image is not used"))
        if volumes := sorted({volume for taken in self.taken for volume in taken.volumes}):
            kept = note(f"what is written to {', '.join(volumes)} stays for the next pool: volumes are not cleaned")
            request.report(kept)
        return None

    def _bring_up(self, image: str, user: str, lock: int) -> None:
        # before anything is made, so that what failed half-way is removed, also if this process is killed
        self._reaper = Reaper(self._provider, self.request.pool_id)
        self._image = image
        names = {"SKYWARD_IMAGE": image, "SKYWARD_POOL": self.request.pool_id, "SKYWARD_USER": current_user()}
        if user and not os.environ.get(USER_VAR):
            names[USER_VAR] = user  # the image's own
        self.project.up(lock, **names, SKYWARD_STANDBY_LEASE=f"{LEASE_S:g}")

    def _take(self) -> None:
        """Take as many nodes as the pool has; none if there are not enough."""
        wanted, running = self.request.nodes, self._with_gpus()
        left = running if len(running) >= wanted else []
        busy: list[Standby] = []
        while left and (missing := wanted - len(self.taken)):
            busy += self._try(left[:missing])
            left = left[missing:]
        if len(self.taken) < wanted:
            self._refuse(running, busy)

    def _try(self, standbys: Sequence[Standby]) -> list[Standby]:
        """Take these side by side; those that others have. An error is raised when all have been tried."""
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="skyward-take") as threads:
            tries = [threads.submit(take, self.project.address, standby) for standby in standbys]
        taken = [each.result() for each in tries if each.exception() is None]
        self.taken += filter(None, taken)
        for each in tries:
            each.result()
        return [standby for standby, each in zip(standbys, taken, strict=True) if each is None]

    def replace(self, lost: Host | None) -> Host:
        """Take a container of the project that no pool has; the lost one's too, if it is back.

        Raises:
            ProviderError: none is free.
            PoolClosedError: the pool has ended, or another client has ended it.
        """
        gone = lost.node if isinstance(lost, ComposeHost) else None
        with self._lock:
            self.check_open()
            if self._image is not None and not self.project.is_of(self.request.pool_id):
                raise PoolClosedError(
                    f"Pool {self.request.pool_id} was ended by another client: project {self.project.name} is down."
                )
            if gone is not None:
                self.taken[gone].give_back()
            held = {each.standby.container for number, each in enumerate(self.taken) if number != gone}
            for standby in self._with_gpus():
                if standby.container not in held and (taken := take(self.project.address, standby)) is not None:
                    self.taken.append(taken)
                    return ComposeHost(self, len(self.taken) - 1)
        raise ProviderError(
            f"No running container of project {self.project.name} ({self.project.file}) is free to become a node."
        )

    def start(self, number: int, launch: Launch) -> RunnerNode:
        """Make a container the node.

        Raises:
            ProviderError: it has ended, or was taken by another client.
        """
        with self._lock:
            self.check_open()
            if number in self._started:  # its node was removed, which has given the container back
                self.taken[number] = self._take_again(self.taken[number].standby)
            self._started.add(number)
            return RunnerNode(launch, ComposeProcess(self.project.address, self.taken[number], launch))

    def _take_again(self, standby: Standby) -> Taken:
        taken = take(self.project.address, standby)
        if taken is None:
            raise ProviderError(f"Container {standby.name} was given back, and another client has taken it.")
        return taken

    def release(self) -> None:
        """Give the nodes back, and bring the project down if this pool has brought it up.

        Raises:
            ProviderError: compose failed; the reaper tries again, and containers end by their lease.
            EngineError: the engine is gone or refuses.
        """
        with self._lock, ExitStack() as last:  # after whoever was just taking one
            if self._reaper is not None:
                last.callback(self._reaper.relieve, self.project.down)
            for taken in self.taken:
                last.callback(taken.give_back)

    def _with_gpus(self) -> list[Standby]:
        """The running containers that have as many GPUs as a node of the pool."""
        return [each for each in self.project.nodes() if each.gpus >= self.request.gpus]

    def _refuse(self, running: Sequence[Standby], busy: Sequence[Standby]) -> None:
        name, file, wanted, gpus = self.project.name, self.project.file, self.request.nodes, self.request.gpus
        if busy:
            raise ProviderError(
                f"The pool needs {wanted} nodes of project {name} ({file}); {len(running)} run, of which others "
                f"have taken {len(busy)}: {', '.join(each.name for each in busy)}. Wait for their pools to end."
            )
        more = self._command_for_more()
        if self._reaper is None:
            more += ", and `docker compose up --detach` starts what does not run"
        having = f" with {gpus} GPUs each" if gpus else ""
        raise ProviderError(
            f"The pool needs {wanted} nodes{having}; of project {name} ({file}) {len(running)} run. {more}."
        )

    def _command_for_more(self) -> str:
        nodes, gpus, file = self.request.nodes, self.request.gpus, self._provider.file
        options = f" --gpus {gpus}" if gpus else ""
        return f"`skyward up --nodes {nodes} --compose{options} > {file.name}` writes a file with as many"


@dataclass(frozen=True, slots=True)
class ComposeHost:
    """A container of the project, as the host of one node. Which one is known once the image is prepared.

    Attributes:
        allocation: the pool's.
        node: its index among the containers that the pool has taken.
    """

    allocation: ComposeAllocation
    node: int

    @property
    def name(self) -> str:
        """The container's name."""
        return self.allocation.taken[self.node].standby.name

    @property
    def address(self) -> str:
        """Its IP address on the network that the nodes share."""
        return self.allocation.taken[self.node].standby.address

    def claim_port(self) -> int:
        """A free port there; no other pool has the container."""
        return self.allocation.taken[self.node].port

    def start(self, launch: Launch) -> RunnerNode:
        """Make the container the node.

        Raises:
            ProviderError: it has ended, or was taken by another client.
        """
        return self.allocation.start(self.node, launch)
