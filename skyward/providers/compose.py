"""`sky.Compose`, and one pool's part of a compose file's project."""

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
    """The containers of a compose file, such as `skyward compose --nodes 3` writes.

    If the project is up, nodes are taken from its running containers and returned afterwards: it stays up, and runs its
    own image. Otherwise the pool brings it up with the pool's image, and down at the end.

    Attributes:
        file: the compose file.
        project: the project's name for compose; None for compose's default.

    Raises:
        ConfigError: the file does not exist, or the name is invalid.
    """

    name: ClassVar[str] = "compose"
    capabilities: ClassVar[Capabilities] = Capabilities(default_lease_s=LEASE_S)
    file: Path
    project: str | None

    def __init__(self, file: str | os.PathLike[str] = "compose.yaml", project: str | None = None) -> None:
        path = Path(file).expanduser().absolute()
        if not path.is_file():
            raise ConfigError(
                f"sky.Compose: there is no file {path}. `skyward compose --nodes 3 > compose.yaml` writes one."
            )
        if project is not None and not re.fullmatch(r"[a-z0-9][-_a-z0-9]*", project):
            raise ConfigError(
                f"sky.Compose: project={project!r} is not a name of a project: small letters, digits, - and _."
            )
        object.__setattr__(self, "file", path)
        object.__setattr__(self, "project", project)

    def check(self, request: PoolRequest) -> None:
        """Reject limits, which are set in the file, and rented machines.

        Raises:
            ConfigError: the request contains either.
        """
        super().check(request)
        for name, value in (("cpu", request.cpus), ("memory", request.memory_gb)):
            if value is not None:
                raise ConfigError(f"{name}= is decided by {self.file} for the nodes of sky.Compose: limit them there.")

    def open(self, request: PoolRequest) -> ComposeAllocation:
        """Return the allocation for a pool, which takes containers of the project."""
        return ComposeAllocation(self, request)

    def find(self) -> Sequence[Resource]:
        """Return every container of the project that can be a node, numbered in `node`."""
        found = describe(self.project_on_engine().node_containers())
        for number, each in enumerate(found):
            each["node"] = number
        return found

    def enter(self, node: Resource) -> NodeAccess:
        """Return access to a container through the engine. Its label does not identify the pool that has taken it."""
        return ContainerAccess(node, self.project_on_engine().address)

    def destroy(self, pool_id: str) -> None:
        """Bring the project down if this pool brought it up; without its file, remove the pool's containers.

        Raises:
            ProviderError: compose failed; containers that are left end when their lease expires.
            EngineError: the engine cannot be reached or refused.
        """
        project = self.project_on_engine()
        if not self.file.exists():
            remove_all(project.engine, pool_id)
            return
        with project.locked():  # waits for the pool's own `up`, which outlives a killed client
            if project.is_of(pool_id):
                project.down()

    def project_on_engine(self) -> Project:
        """Return the project, under the given name or compose's default.

        Raises:
            ProviderError: the folder's name yields no project name.
        """
        return Project(self.file, self.project or project_name(self.file))


class ComposeAllocation(Allocation):
    """The containers of a project that one pool has taken, and whether the pool has brought the project up."""

    def __init__(self, provider: Compose, request: PoolRequest) -> None:
        super().__init__(request)
        self._provider = provider
        self.taken: list[Taken] = []
        self._image: str | None = None  # the image with which this pool has brought the project up
        self._reaper: Reaper | None = None  # set if this pool is to bring the project down
        self._lock = threading.Lock()

    @cached_property
    def project(self) -> Project:
        """The project and its engine."""
        return self._provider.project_on_engine()

    def acquire(self) -> Sequence[Host]:
        """Take nodes if the project is up; otherwise check that it can be brought up.

        Raises:
            ProviderError: too few nodes run, are free or have the GPUs; or the project cannot be brought up.
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
            self.project.command  # noqa: B018 - searches for the command, and caches the result
        return [ComposeHost(self, node) for node in range(request.nodes)]

    def prepare(self, hosts: Sequence[Host]) -> str | None:  # noqa: ARG002 - the project is shared by all of them
        """Bring the project up with the pool's image; return None if it is up already and runs its own images.

        Raises:
            ImageError: the image cannot be provided.
            ProviderError: compose failed, or the file has too few nodes.
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
        # before anything is created, so that a partial failure is cleaned up even if this process is killed
        self._reaper = Reaper(self._provider, self.request.pool_id)
        self._image = image
        names = {"SKYWARD_IMAGE": image, "SKYWARD_POOL": self.request.pool_id, "SKYWARD_USER": current_user()}
        if user and not os.environ.get(USER_VAR):
            names[USER_VAR] = user  # the image's own
        self.project.up(lock, **names, SKYWARD_STANDBY_LEASE=f"{LEASE_S:g}")

    def _take(self) -> None:
        """Take as many nodes as the pool has."""
        wanted, running = self.request.nodes, self._with_gpus()
        left = running if len(running) >= wanted else []
        while left and (missing := wanted - len(self.taken)):
            self._try(left[:missing])
            left = left[missing:]
        if len(self.taken) < wanted:
            self._refuse(running)

    def _try(self, standbys: Sequence[Standby]) -> None:
        """Take those that no other client holds, in parallel. Errors are raised once all have been tried."""
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="skyward-take") as threads:
            tries = [threads.submit(take, self.project.address, standby) for standby in standbys]
        self.taken += [taken for each in tries if not each.exception() and (taken := each.result())]
        for each in tries:
            each.result()

    def replace(self, lost: Host | None) -> Host:
        """Take a container of the project that no pool holds, possibly the lost one if it runs again.

        Raises:
            ProviderError: no container is free.
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
        """Turn a container into the node.

        Raises:
            ProviderError: it has ended.
        """
        with self._lock:
            self.check_open()
            return RunnerNode(launch, ComposeProcess(self.project.address, self.taken[number], launch))

    def release(self) -> None:
        """Release the nodes, and bring the project down if this pool brought it up.

        Raises:
            ProviderError: compose failed; the reaper tries again, and leases end the containers.
            EngineError: the engine cannot be reached or refused.
        """
        with self._lock, ExitStack() as last:  # waits for a thread that is taking one
            if self._reaper is not None:
                last.callback(self._reaper.relieve, self.project.down)
            for taken in self.taken:
                last.callback(taken.give_back)

    def _with_gpus(self) -> list[Standby]:
        """Return the running containers with enough GPUs for a node of the pool."""
        return [each for each in self.project.nodes() if each.gpus >= self.request.gpus]

    def _refuse(self, running: Sequence[Standby]) -> None:
        wanted, gpus = self.request.nodes, self.request.gpus
        having = f" with {gpus} GPUs each" if gpus else ""
        needs = f"The pool needs {wanted} nodes{having} of project {self.project.name} ({self.project.file})"
        if len(running) >= wanted:
            raise ProviderError(
                f"{needs}; {len(running)} run, of which others have taken {len(running) - len(self.taken)}. Wait for "
                "their pools to end."
            )
        start = "" if self._reaper else ", and `docker compose up --detach` starts what does not run"
        raise ProviderError(f"{needs}; {len(running)} run. {self._command_for_more()}{start}.")

    def _command_for_more(self) -> str:
        nodes, gpus, file = self.request.nodes, self.request.gpus, self._provider.file
        options = f" --gpus {gpus}" if gpus else ""
        return f"`skyward compose --nodes {nodes}{options} > {file.name}` writes a file with as many"


@dataclass(frozen=True, slots=True)
class ComposeHost:
    """A container of the project, as the host of one node. It is known once the image is prepared.

    Attributes:
        allocation: the pool's allocation.
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
        """Return a free port of the container, which no other pool holds."""
        return self.allocation.taken[self.node].port

    def start(self, launch: Launch) -> RunnerNode:
        """Turn the container into the node.

        Raises:
            ProviderError: it has ended.
        """
        return self.allocation.start(self.node, launch)
