"""The service of a pool, with one task per node, and its secret: as the engine takes them, and found by their labels.

The tasks are in their machine's network. The secret holds an identity for each, made for this pool alone: certificates,
because the TLS of Python's standard library takes pre-shared keys only from 3.13 on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from skyward.errors import EngineError
from skyward.model.resource import Resource
from skyward.model.rights import DEFAULT
from skyward.nodes.container import COMMAND, OWNER, OWNER_ID, POOL
from skyward.nodes.process_id import USER, ProcessId, current_user
from skyward.providers.swarm.manager import Document, SwarmApi
from skyward.runner.entry.claimed import SLOT_VAR, TASK_SECRET, TASK_VAR
from skyward.system import time
from skyward.wire.tls import Identity

_GIB = 1024**3
_SECOND = 10**9  # the engine counts in nanoseconds
_STOP_S = 12  # a runner that is asked to end takes 5 s for its workers
_AGAIN_S = 1  # a task that failed is started again after this time
_TASKS_S = 20.0  # until the tasks of a removed service are gone; the engine kills them after 12 s
_SETTLE_S = 2.0
_LOOK_S = 0.05
_FRESH_S = 120.0  # a secret this young may be one whose service is just being made


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSpec:
    """A pool's service.

    Attributes:
        pool: its identifier.
        nodes: number of tasks.
        image: what they run, by digest.
        platform: OCI platform of that image.
        secret: id of the pool's secret.
        managers: addresses of the swarm's managers, as `host:port`.
        lease_s: how long a task waits for its client.
        shm_bytes: size of /dev/shm.
        gpus: kind of the generic resource and how many of it a node needs; None for no GPU.
        cpus: CPUs of a node, reserved and the most that it gets; None for as many as there are.
        memory_gb: the same for memory.
        user: the user of the tasks' programs, "user:group" by name or number; None for the user that the image names.
        privileges: capabilities that they can have, as of `Rights`.
    """

    pool: str
    nodes: int
    image: str
    platform: str
    secret: str
    managers: Sequence[str]
    lease_s: float
    shm_bytes: int
    gpus: tuple[str, int] | None = None
    cpus: float | None = None
    memory_gb: float | None = None
    user: str | None = None
    privileges: tuple[str, ...] | Literal["default"] = ()


def name_of(pool: str) -> str:
    """Name of a pool's service and of its secret."""
    return f"skyward-{pool}"


def of_slot(tasks: Sequence[Document], slot: int) -> list[Document]:
    """The tasks that a slot has had, the one of now last."""
    return sorted((task for task in tasks if task.get("Slot") == slot), key=lambda task: str(task["CreatedAt"]))


def labels_of(pool: str, owner: ProcessId) -> dict[str, str]:
    """Labels of service and secret. Containers have none of them: the engine would only replace a removed one."""
    return {POOL: pool, USER: current_user(), OWNER: owner.for_people, OWNER_ID: owner.text}


def secret_text(tasks: Sequence[Identity]) -> str:
    """The pool's secret, as a template of which the engine gives each task only its own part.

    https://docs.docker.com/reference/cli/docker/service/create/#create-services-using-templates
    """
    parts = [
        f'{{{{if eq .Task.Slot "{slot}"}}}}{json.dumps(asdict(identity))}{{{{end}}}}'
        for slot, identity in enumerate(tasks, 1)
    ]
    return "".join(parts)


def service_spec(spec: ServiceSpec, owner: ProcessId) -> dict[str, Any]:
    """The service, as the engine's interface takes it."""
    return {
        "Name": name_of(spec.pool),
        "Labels": labels_of(spec.pool, owner),
        "Mode": {"Replicated": {"Replicas": spec.nodes}},
        "TaskTemplate": {
            "ContainerSpec": _container(spec),
            "Resources": _resources(spec),
            # what ends with status 0 has done what it should: it stays ended
            "RestartPolicy": {"Condition": "on-failure", "Delay": _AGAIN_S * _SECOND, "MaxAttempts": 0},
            "Placement": {"Platforms": [_platform(spec.platform)]},
            "Networks": [{"Target": "host"}],
        },
    }


def _container(spec: ServiceSpec) -> dict[str, Any]:
    settings = {
        "pool": spec.pool,
        "lease_s": spec.lease_s,
        "managers": list(spec.managers),
        "gains_privileges": bool(spec.privileges),
    }
    env = {TASK_VAR: json.dumps(settings), SLOT_VAR: "{{.Task.Slot}}"}
    if spec.gpus:  # what the engine reserves it does not hand over; the runtime does
        env |= {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    file = {"Name": TASK_SECRET.name, "UID": "0", "GID": "0", "Mode": 0o444}
    return {
        "Image": spec.image,
        "Command": [COMMAND[0], "-m", "skyward.runner.entry.claimed", "task"],
        "Env": [f"{name}={value}" for name, value in env.items()],
        "Init": True,
        **_rights(spec),
        "StopGracePeriod": _STOP_S * _SECOND,
        "Secrets": [{"SecretID": spec.secret, "SecretName": name_of(spec.pool), "File": file}],
        "Mounts": [{"Type": "tmpfs", "Target": "/dev/shm", "TmpfsOptions": {"SizeBytes": spec.shm_bytes}}],
    }


def _rights(spec: ServiceSpec) -> dict[str, Any]:
    """User and capabilities: none can be had or gained beyond those asked for."""
    rights: dict[str, Any] = {} if spec.user is None else {"User": spec.user}
    if spec.privileges == DEFAULT:
        return rights
    rights["CapabilityDrop"] = ["ALL"]
    if spec.privileges:
        rights["CapabilityAdd"] = list(spec.privileges)
    else:  # known from API 1.44 on (engine 25), skipped by older ones; there the task's program does it for its own
        rights["Privileges"] = {"NoNewPrivileges": True}
    return rights


def _resources(spec: ServiceSpec) -> dict[str, Any]:
    """The limits are reserved as well, so that no machine is given more than it has."""
    limits: dict[str, Any] = {}
    if spec.cpus is not None:
        limits["NanoCPUs"] = int(spec.cpus * 1e9)
    if spec.memory_gb is not None:
        limits["MemoryBytes"] = int(spec.memory_gb * _GIB)
    reserved = dict(limits)
    if spec.gpus:
        kind, count = spec.gpus
        reserved["GenericResources"] = [{"DiscreteResourceSpec": {"Kind": kind, "Value": count}}]
    return {"Limits": limits, "Reservations": reserved}


def _platform(platform: str) -> Mapping[str, str]:
    system, _, processor = platform.partition("/")
    return {"OS": system, "Architecture": processor.partition("/")[0]}


def clear(api: SwarmApi, pool: str) -> None:
    """Remove a pool's services, wait until their tasks are gone, and remove its secrets. Idempotent.

    Raises:
        EngineError: the manager refuses or does not answer.
    """
    label = f"{POOL}={pool}"
    names = [str(service["Spec"]["Name"]) for service in api.services(label)]
    for service in api.services(label):
        api.remove_service(str(service["ID"]))
    deadline = time.monotonic() + _TASKS_S
    while any(_ending(api, name) for name in names) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)  # what a machine that is gone still has ends by its lease
    for secret in api.secrets(label):
        api.remove_secret(str(secret["ID"]))


def settle(api: SwarmApi, pool: str) -> None:
    """Wait for tasks that are just ending: the engine takes 4 s to remove one meanwhile, else 0.3.

    Raises:
        EngineError: the manager refuses or does not answer.
    """
    deadline = time.monotonic() + _SETTLE_S
    while time.monotonic() < deadline:
        if all(task["Status"]["State"] != "running" for task in api.tasks(name_of(pool))):
            return
        time.sleep(_LOOK_S)


def _ending(api: SwarmApi, name: str) -> bool:
    """Whether tasks of a removed service are left on machines that are up."""
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
    for service in api.services(POOL):
        pool = str(service["Spec"]["Labels"][POOL])
        living.add(pool)
        slots = range(1, _replicas(service) + 1)
        tasks = api.tasks(str(service["Spec"]["Name"]))
        histories = [of_slot(tasks, slot) for slot in slots]
        if all(history and history[-1]["Status"]["State"] == "complete" for history in histories):
            clear(api, pool)
    for secret in api.secrets(POOL):
        if secret["Spec"]["Labels"][POOL] not in living and _age_s(secret) > _FRESH_S:
            try:
                api.remove_secret(str(secret["ID"]))
            except EngineError:
                continue  # a service that has just been made uses it


def described(api: SwarmApi) -> Iterator[Resource]:
    """What there is of all pools, in the form of `Provider.find`: each service by its slots, secrets without service.

    Raises:
        EngineError: the manager refuses or does not answer.
    """
    machines = {node["ID"]: str(node["Description"]["Hostname"]) for node in api.nodes()}
    living = set()
    for service in api.services(POOL):
        spec = service["Spec"]
        living.add(spec["Labels"][POOL])
        tasks = api.tasks(str(spec["Name"]))
        image = str(spec["TaskTemplate"]["ContainerSpec"]["Image"])
        for slot in range(1, _replicas(service) + 1):
            task = next(reversed(of_slot(tasks, slot)), None)
            yield {
                "pool": spec["Labels"][POOL],
                "node": slot - 1,
                "name": f"{spec['Name']}.{slot}",
                "state": task["Status"]["State"] if task else "new",
                "owner": spec["Labels"].get(OWNER, ""),
                "user": spec["Labels"].get(USER, ""),
                "image": image,
                "id": str(task["ID"]) if task else "",
                "host": machines.get(task.get("NodeID", ""), "") if task else "",
            }
    for secret in api.secrets(POOL):
        labels, name = secret["Spec"]["Labels"], str(secret["Spec"]["Name"])
        if labels[POOL] not in living:
            yield Resource(
                pool=labels[POOL],
                node=-1,
                name=name,
                state="secret",
                owner=labels.get(OWNER, ""),
                user=labels.get(USER, ""),
                image="",
                id=str(secret["ID"]),
                host="",
            )


def _replicas(service: Document) -> int:
    return int(service["Spec"]["Mode"]["Replicated"]["Replicas"])


def _age_s(document: Document) -> float:
    created = datetime.fromisoformat(str(document["CreatedAt"])[:19]).replace(tzinfo=UTC)
    return (datetime.now(UTC) - created).total_seconds()
