"""The service of a pool and its secret, as the engine takes them: one task per node, in its machine's network. Pure.

The secret holds an identity for each task, made for this pool alone. They are certificates, because the TLS of Python's
standard library takes pre-shared keys only from 3.13 on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from skyward.model.rights import DEFAULT
from skyward.nodes.container import COMMAND, OWNER, OWNER_ID, POOL
from skyward.nodes.process_id import USER, ProcessId, current_user
from skyward.runner.entry.swarm_task import SECRET, SLOT_VAR, TASK_VAR
from skyward.wire.tls import Identity

_GIB = 1024**3
_SECOND = 10**9  # the engine counts in nanoseconds
_STOP_S = 12  # a runner that is asked to end takes 5 s for its workers
_AGAIN_S = 1  # a task that failed is started again after this time


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
    file = {"Name": SECRET.name, "UID": "0", "GID": "0", "Mode": 0o444}
    return {
        "Image": spec.image,
        "Command": [COMMAND[0], "-m", "skyward.runner.entry.swarm_task"],
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
