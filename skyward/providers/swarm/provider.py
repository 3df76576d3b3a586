"""`sky.Swarm`: nodes as tasks of one service in an existing Docker Swarm, and a pool's allocation there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, ClassVar

from skyward.engine import Engine, find_engine
from skyward.engine.container import shm_bytes
from skyward.errors import EngineError, ProviderError
from skyward.model.parameters import suggesting
from skyward.model.resource import Resource
from skyward.model.rights import Rights
from skyward.model.ssh import existing_file
from skyward.nodes.access import ContainerAccess, NodeAccess
from skyward.nodes.claimed import ClaimedHost, end, identities
from skyward.nodes.container import OWNER, POOL, user_of
from skyward.nodes.node import Host, Launch, RunnerNode
from skyward.nodes.process_id import USER, ProcessId
from skyward.nodes.run_directory import PoolDirectory, private_directory, runtime_base, sweep_orphans
from skyward.providers.base import Allocation, Capabilities, PoolRequest, Provider
from skyward.providers.reaper import Reaper
from skyward.providers.swarm.manager import (
    Document,
    Manager,
    ManagerAddress,
    SwarmApi,
    check_manager,
    gpus_for,
    room_for,
    usable_machines,
)
from skyward.providers.swarm.service import (
    ClaimedTask,
    ServiceSpec,
    SwarmProcess,
    TaskClaimer,
    labels_of,
    name_of,
    of_slot,
    secret_text,
    service_spec,
)
from skyward.runner.entry.claimed import STOP
from skyward.ssh.connection import handed_hosts
from skyward.system import threading, time

if TYPE_CHECKING:
    from skyward.delivery.deliver import Delivered

_GIB = 1024**3
_TASKS_S = 20.0  # until the tasks of a removed service have ended; the engine kills them after 12 s
_SETTLE_S = 2.0
_LOOK_S = 0.05
_FRESH_S = 120.0  # the service of a younger secret may not have been created yet
_TASK = "com.docker.swarm.task.id"  # label that the engine sets on containers of tasks


@suggesting("sky.Swarm")
@dataclass(frozen=True)
class Swarm(Provider):
    """Tasks of a service of a Docker Swarm: `sky.Swarm("ssh://user@manager", registry="registry.example.com/skyward")`.

    The swarm's engine places the tasks, pulls their image and replaces lost ones, on another machine if necessary.

    Attributes:
        engine: engine of one of the swarm's managers: `ssh://user@host`, `unix:///path` of its socket on this machine,
            or None for the engine that the docker command would use (`DOCKER_HOST` may name one by SSH).
        key: file of the private key for SSH; None for the keys of the SSH agent and configuration.
        known_hosts: file of the only host keys to trust, also for jump hosts; None for those that the SSH configuration
            trusts.
        registry: repository from which the machines pull images, such as "registry.example.com/team/skyward". None if
            the swarm consists of this machine only.
        user: the user that functions run as, by name or number, optionally with a group ("app", "1000:100"). None for
            the user set in the image, or its user skyward if it sets none.
        privileges: capabilities(7) that their programs can have, or "default"; see `sky.Docker`.
        manager: address of the manager.
        rights: the values of user and privileges.

    Raises:
        ConfigError: a value is invalid.
    """

    name: ClassVar[str] = "swarm"
    capabilities: ClassVar[Capabilities] = Capabilities(default_lease_s=60.0)
    engine: str | None = None
    _: KW_ONLY
    key: str | os.PathLike[str] | None = None
    known_hosts: str | os.PathLike[str] | None = None
    registry: str | None = None
    user: str | None = None
    privileges: Sequence[str] = ()
    manager: ManagerAddress = field(init=False, repr=False)
    rights: Rights = field(init=False, repr=False)

    def __post_init__(self) -> None:
        handed = handed_hosts()  # a detached run's manager has its own files
        for name in ("key", "known_hosts"):
            file = None if handed else existing_file("sky.Swarm", name, getattr(self, name))
            object.__setattr__(self, name, file)
        if self.registry is not None:
            from skyward.builder.registry.reference import parse_reference

            parse_reference(self.registry)
        object.__setattr__(self, "manager", ManagerAddress.of(self.engine, self.key, self.known_hosts))
        object.__setattr__(self, "rights", Rights.of("sky.Swarm", self.user, self.privileges))
        object.__setattr__(self, "privileges", self.rights.privileges)

    def open(self, request: PoolRequest) -> SwarmAllocation:
        """Return the allocation for a pool, which creates its service."""
        return SwarmAllocation(self, request)

    def find(self) -> Sequence[Resource]:
        """Return every task of every pool in the swarm: pool, node, name, state, owner, image, id, host.

        Raises:
            ProviderError: the manager cannot be reached, or is not a manager.
            EngineError: the manager refused.
        """
        with self._connected() as manager:
            check_manager(manager.api.url, manager.api.info())
            return list(described(manager.api))

    def enter(self, node: Resource) -> NodeAccess:
        """Return access to a task on the manager's own machine; other machines' engines cannot be reached through it.

        Raises:
            ProviderError: the task is on another machine, which a pool of `sky.SSH` could enter.
        """
        with ExitStack() as last:
            manager = last.enter_context(self._connected())
            engine = Engine.at(manager.engine, {})
            found = engine.containers(f"{_TASK}={node['id']}", state="running")
            if not found:
                raise ProviderError(
                    f"Task {node['name']} runs on {node.get('host') or 'no machine'}, whose engine cannot be asked "
                    f"through the manager at {self.manager.name}: only tasks on the manager's own machine can be "
                    "entered. Run the command on that machine, or with sky.SSH."
                )
            there = Resource(**{**node, "id": found[0]["Id"]})
            return ContainerAccess(there, manager.engine, last.pop_all().close)

    def destroy(self, pool_id: str) -> None:
        """Remove a pool's service with its tasks, and its secret, whichever client created them.

        Raises:
            ProviderError: the manager cannot be reached; the tasks' leases end them.
            EngineError: the manager refused.
        """
        with self._connected() as manager:
            clear(manager.api, pool_id)

    @contextmanager
    def _connected(self) -> Iterator[Manager]:
        with private_directory() as folder, closing(Manager(self.manager, folder)) as manager:
            yield manager


class SwarmAllocation(Allocation):
    """One pool's part of a swarm: the connection to its manager, service and secret, and the claimed tasks."""

    def __init__(self, provider: Swarm, request: PoolRequest) -> None:
        super().__init__(request)
        self._provider, self._registry, self._rights = provider, provider.registry, provider.rights
        self._service_image: str | None = None  # once the service exists
        self._hosts: list[ClaimedHost[ClaimedTask]] = []  # including those that have been replaced
        self._given_up: set[str] = set()  # ids of tasks that must not be claimed again
        self._lock = threading.Lock()
        self._directory: PoolDirectory | None = None
        self._manager: Manager | None = None
        self._reaper: Reaper | None = None

    @property
    def manager(self) -> Manager:
        """The connection to the manager, set by `acquire`."""
        assert self._manager
        return self._manager

    def acquire(self) -> Sequence[Host]:
        """Check that the swarm has room for the nodes. `prepare` determines their machines.

        Raises:
            ProviderError: the manager cannot be reached or is not one; no machine fits; too few have the GPUs.
            EngineMissingError: no engine answers.
        """
        request = self.request
        sweep_orphans()
        self._directory = directory = PoolDirectory.create(request.pool_id, runtime_base())
        self._manager = manager = Manager(self._provider.manager, directory.path)
        info = manager.api.info()
        check_manager(manager.api.url, info)
        nodes = manager.api.nodes()
        if self._registry is None and (len(nodes) > 1 or self._provider.manager.host):
            raise ProviderError(
                f"The machines of a swarm get images from a registry: give sky.Swarm one that all {len(nodes)} of them "
                "reach, as registry='registry.example.com/team/skyward'."
            )
        usable = usable_machines(nodes, request.platform)
        self._possible, self._gpus = room_for(usable, request), None
        if request.accelerator is not None:
            kind, self._possible = gpus_for(usable, self._possible, request.fewest, request.accelerator)
            self._gpus = (kind, request.gpus)
        self._managers = [str(each["Addr"]) for each in info["Swarm"]["RemoteManagers"]]
        self._shm_bytes = self._shm(usable)
        self._hosts = [ClaimedHost(self) for _ in range(self._possible)]
        return list(self._hosts)

    def _shm(self, nodes: Sequence[Document]) -> int:
        own = self.request.memory_gb
        return shm_bytes(int(own * _GIB) if own else min(n["Description"]["Resources"]["MemoryBytes"] for n in nodes))

    def prepare(self, hosts: Sequence[Host]) -> str | None:  # noqa: ARG002 - one service for all of them
        """Push the image to the registry unless it is there, create the service, and claim its tasks.

        Raises:
            ImageError: the image cannot be provided.
            ProviderError: the engine finds no machine for a task.
            NodeStartError: tasks fail.
        """
        from skyward.delivery.deliver import ImageTarget, deliver

        request = self.request
        if self._service_image is None:  # otherwise a host has been replaced, and the service exists
            engine = find_engine() if self._registry else self.manager.engine
            target = ImageTarget(engine=engine, registry=self._registry)
            delivered = deliver(request.image, request.cluster, target, request.report)
            self._create_service(delivered)
            self._service_image = delivered.reference
        return self._service_image

    def _create_service(self, delivered: Delivered) -> None:
        """Create secret and service, and claim the tasks."""
        request, api, owner = self.request, self.manager.api, ProcessId.of(os.getpid())
        pool = request.pool_id
        own, theirs = identities("Swarm", pool, request.nodes)
        with self._lock:
            self.check_open()
            sweep(api)
            self._reaper = Reaper(self._provider, pool)
            secret = api.create_secret(name_of(pool), secret_text(theirs), labels_of(pool, owner))
            spec = ServiceSpec(
                pool=pool,
                nodes=request.nodes,
                image=delivered.reference,
                platform=request.image.platform or request.platform,
                secret=secret,
                managers=self._managers,
                lease_s=request.lease_s,
                shm_bytes=self._shm_bytes,
                gpus=self._gpus,
                cpus=request.cpus,
                memory_gb=request.memory_gb,
                user=user_of(self._rights, delivered.user),
                privileges=self._rights.privileges,
            )
            api.create_service(service_spec(spec, owner), delivered.auth)
        contexts = {slot: identity.context(server=False) for slot, identity in enumerate(own, 1)}
        self._claimer = TaskClaimer(self.manager, contexts, pool, request.report, self.ended)
        claims = self._claimer.claim(range(1, request.nodes + 1), self._possible)
        with self._lock:
            for host, slot in zip(self._hosts, sorted(claims), strict=True):
                host.claimed = claims[slot]

    def replace(self, lost: Host | None) -> Host:
        """Wait for the engine's new task in the slot of a lost one, on whichever machine, and claim it.

        For a node that has never had a task, it may be in any slot without a claimed one.

        Raises:
            ProviderError: the engine finds no machine.
            NodeStartError: tasks fail.
            PoolClosedError: the pool has ended, or another client has ended it.
        """
        with self._lock:
            self.check_open()
            if isinstance(lost, ClaimedHost) and lost.claimed:
                slots = [lost.claimed.slot]
                self._given_up.add(lost.claimed.task)
            else:
                of_nodes = {task.slot for task in self._tasks()}
                slots = [slot for slot in range(1, self.request.nodes + 1) if slot not in of_nodes]
        if not slots:
            raise ProviderError(
                f"The service of pool {self.request.pool_id} has {self.request.nodes} tasks, and all of them are nodes."
            )
        (task,) = self._claimer.claim(slots, 1, self._given_up).values()
        host = ClaimedHost(self, task)
        with self._lock:
            if self.ended.is_set():
                task.claim.session.close()
            self.check_open()
            self._hosts.append(host)
        return host

    def _tasks(self) -> list[ClaimedTask]:
        """Return the tasks that this pool has claimed."""
        return [host.claimed for host in self._hosts if host.claimed]

    def start(self, host: ClaimedHost[ClaimedTask], launch: Launch) -> RunnerNode:
        """Turn a task into the node."""
        with self._lock:
            self.check_open()
            assert host.claimed
            return RunnerNode(launch, SwarmProcess(self.manager, self._claimer, host.claimed, launch))

    def release(self) -> None:
        """Remove the service with its tasks, and the secret; the reaper continues with what could not be removed.

        Raises:
            EngineError: the manager refuses or does not answer; the tasks' leases end them.
        """
        with self._lock:  # waits for a thread that is creating the service
            tasks = self._tasks()
        with ExitStack() as last:
            if self._directory is not None:
                last.callback(self._directory.remove)
            if self._manager is not None:
                last.callback(self._manager.close)
            for task in tasks:
                last.callback(task.claim.session.close)
                end(task.claim.session, STOP)
            if self._reaper is not None:
                self._reaper.relieve(self._clear)

    def _clear(self) -> None:
        settle(self.manager.api, self.request.pool_id)
        clear(self.manager.api, self.request.pool_id)


# resources of pools in a swarm, found and removed by label, whichever client created them -----------------------------


def clear(api: SwarmApi, pool: str) -> None:
    """Remove a pool's services, wait until their tasks have ended, and remove its secrets. Idempotent.

    Raises:
        EngineError: the manager refuses or does not answer.
    """
    label = f"{POOL}={pool}"
    services = api.labelled("service", label)
    names = [str(service["Spec"]["Name"]) for service in services]
    for service in services:
        api.remove("service", str(service["ID"]))
    deadline = time.monotonic() + _TASKS_S
    while any(_ending(api, name) for name in names) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)  # leases end the tasks on lost machines
    for secret in api.labelled("secret", label):
        api.remove("secret", str(secret["ID"]))


def settle(api: SwarmApi, pool: str) -> None:
    """Wait for tasks that are ending: removing one meanwhile takes the engine 4 s instead of 0.3.

    Raises:
        EngineError: the manager refuses or does not answer.
    """
    deadline = time.monotonic() + _SETTLE_S
    while time.monotonic() < deadline:
        if all(task["Status"]["State"] != "running" for task in api.tasks(name_of(pool))):
            return
        time.sleep(_LOOK_S)


def _ending(api: SwarmApi, name: str) -> bool:
    """Return whether tasks of a removed service are left on machines that are up."""
    tasks = api.tasks(name)
    if not tasks:
        return False
    up = {node["ID"] for node in api.nodes() if node["Status"]["State"] == "ready"}
    return any(task.get("NodeID") in up for task in tasks)


def sweep(api: SwarmApi) -> None:
    """Remove services whose tasks have all ended by their lease, and secrets without a service.

    Raises:
        EngineError: the manager refuses or does not answer.
    """
    living = set()
    for service in api.labelled("service", POOL):
        pool = str(service["Spec"]["Labels"][POOL])
        living.add(pool)
        slots = range(1, _replicas(service) + 1)
        tasks = api.tasks(str(service["Spec"]["Name"]))
        histories = [of_slot(tasks, slot) for slot in slots]
        if all(history and history[-1]["Status"]["State"] == "complete" for history in histories):
            clear(api, pool)
    for secret in api.labelled("secret", POOL):
        if secret["Spec"]["Labels"][POOL] not in living and _age_s(secret) > _FRESH_S:
            try:
                api.remove("secret", str(secret["ID"]))
            except EngineError:
                continue  # a service that was just created uses it


def described(api: SwarmApi) -> Iterator[Resource]:
    """Yield all pools' resources in the format of `Provider.find`: each service by its slots, secrets without service.

    Raises:
        EngineError: the manager refuses or does not answer.
    """
    machines = {node["ID"]: str(node["Description"]["Hostname"]) for node in api.nodes()}
    living = set()
    for service in api.labelled("service", POOL):
        spec = service["Spec"]
        living.add(spec["Labels"][POOL])
        tasks = api.tasks(str(spec["Name"]))
        image = str(spec["TaskTemplate"]["ContainerSpec"]["Image"])
        for slot in range(1, _replicas(service) + 1):
            task = next(reversed(of_slot(tasks, slot)), None)
            yield _resource(
                service,
                node=slot - 1,
                name=f"{spec['Name']}.{slot}",
                state=task["Status"]["State"] if task else "new",
                image=image,
                ident=str(task["ID"]) if task else "",
                host=machines.get(task.get("NodeID", ""), "") if task else "",
            )
    for secret in api.labelled("secret", POOL):
        if secret["Spec"]["Labels"][POOL] not in living:
            yield _resource(secret, node=-1, name=str(secret["Spec"]["Name"]), state="secret", ident=str(secret["ID"]))


def _resource(
    owned: Document, *, node: int, name: str, state: str, ident: str, image: str = "", host: str = ""
) -> Resource:
    """Return the resource for one node of a service or secret."""
    labels = owned["Spec"]["Labels"]
    return Resource(
        pool=labels[POOL],
        node=node,
        name=name,
        state=state,
        owner=labels.get(OWNER, ""),
        user=labels.get(USER, ""),
        image=image,
        id=ident,
        host=host,
    )


def _replicas(service: Document) -> int:
    return int(service["Spec"]["Mode"]["Replicated"]["Replicas"])


def _age_s(document: Document) -> float:
    created = datetime.fromisoformat(str(document["CreatedAt"])[:19]).replace(tzinfo=UTC)
    return (datetime.now(UTC) - created).total_seconds()
