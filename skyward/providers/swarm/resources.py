"""The services and secrets of pools in a swarm: found and removed by their labels, whoever made them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from skyward.errors import EngineError
from skyward.model.resource import Resource
from skyward.nodes.container import OWNER, POOL
from skyward.nodes.process_id import USER
from skyward.providers.swarm.api import Document, SwarmApi
from skyward.providers.swarm.claims import of_slot
from skyward.providers.swarm.service import name_of
from skyward.system import time

_TASKS_S = 20.0  # until the tasks of a removed service are gone; the engine kills them after 12 s
_SETTLE_S = 2.0
_LOOK_S = 0.05
_FRESH_S = 120.0  # a secret this young may be one whose service is just being made


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
