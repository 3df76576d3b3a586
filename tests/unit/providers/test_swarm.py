"""What a swarm is asked for, what is found to be wrong with one beforehand, and how it is named."""

from __future__ import annotations

import json
import re
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

import skyward as sky
from skyward.errors import ConfigError, ProviderError
from skyward.model.spec import Accelerator
from skyward.nodes.claimed import identities
from skyward.nodes.process_id import ProcessId
from skyward.providers.base import PoolRequest
from skyward.providers.swarm import service
from skyward.providers.swarm.manager import check_manager, gpus_for, room_for, usable_machines
from skyward.providers.swarm.service import ServiceSpec, TaskClaimer, View, Waiting, secret_text, service_spec
from skyward.wire.tls import Identity

GOLDEN = Path(__file__).parent / "golden"
OWNER = ProcessId(12, "345", "pid:[6]")
PLAIN = ServiceSpec(
    pool="cafe1234",
    nodes=3,
    image="registry.example/skyward@sha256:" + 64 * "0",
    platform="linux/amd64",
    secret="s3cr3t",
    managers=["10.0.0.1:2377", "10.0.0.2:2377"],
    lease_s=60.0,
    shm_bytes=1 << 30,
)


def machine(number: int, **changes: Any) -> dict[str, Any]:
    """A machine as a manager tells of it; it is well, unless something is changed."""
    known = {"state": "ready", "availability": "active", "address": f"10.0.0.{number}", "processor": "x86_64"}
    values = {**known, "cpus": 8, "memory_gb": 32, "resources": [], **changes}
    resources = {"NanoCPUs": values["cpus"] * 10**9, "MemoryBytes": values["memory_gb"] * 1024**3}
    return {
        "ID": f"id{number}",
        "Spec": {"Availability": values["availability"]},
        "Description": {
            "Hostname": f"machine{number}",
            "Platform": {"Architecture": values["processor"], "OS": "linux"},
            "Resources": {**resources, "GenericResources": values["resources"]},
        },
        "Status": {"State": values["state"], "Addr": values["address"]},
    }


def named(kind: str, *values: str) -> list[dict[str, Any]]:
    return [{"NamedResourceSpec": {"Kind": kind, "Value": value}} for value in values]


def counted(kind: str, number: int) -> list[dict[str, Any]]:
    return [{"DiscreteResourceSpec": {"Kind": kind, "Value": number}}]


# the service ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["plain", "gpus"])
def test_the_service_is_the_one_on_file(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every word of it; a change of it is seen here first."""
    monkeypatch.setattr("socket.gethostname", lambda: "client")
    monkeypatch.setattr("pwd.getpwuid", lambda _: SimpleNamespace(pw_name="ann"))
    wanted = PLAIN if name == "plain" else replace(PLAIN, gpus=("NVIDIA-GPU", 2), cpus=1.5, memory_gb=4)

    spec = service_spec(wanted, OWNER)

    file = GOLDEN / f"service-{name}.json"
    assert json.dumps(spec, indent=2) + "\n" == file.read_text()


@pytest.mark.parametrize(
    ("given", "user", "privileges", "capabilities", "forbidden"),
    [
        ({}, None, (), ([], ["ALL"]), True),
        ({"user": "1000:100"}, "1000:100", (), ([], ["ALL"]), True),
        ({}, None, ("SYS_PTRACE",), (["SYS_PTRACE"], ["ALL"]), False),
        ({}, None, "default", ([], []), False),
    ],
)
def test_tasks_have_the_rights_that_were_asked_for(
    given: dict[str, Any], user: str | None, privileges: Any, capabilities: tuple[list[str], ...], *, forbidden: bool
) -> None:
    """Whether none can be gained is told to the task as well, since engines before 25 cannot say so of a service."""
    spec = service_spec(replace(PLAIN, **given, privileges=privileges), OWNER)

    found = spec["TaskTemplate"]["ContainerSpec"]
    assert found.get("User") == user
    assert (found.get("CapabilityAdd", []), found.get("CapabilityDrop", [])) == capabilities
    assert found.get("Privileges") == ({"NoNewPrivileges": True} if forbidden else None)
    assert json.loads(found["Env"][0].partition("=")[2])["gains_privileges"] is not forbidden


def test_a_manager_is_named_by_a_text() -> None:
    with pytest.raises(ConfigError, match=r"sky\.Swarm: a manager is named by a string such as .*; found 3"):
        sky.Swarm(3)  # type: ignore[arg-type]


def test_a_wrong_user_or_privilege_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"sky\.Swarm: privileges names 'SYS_PTRACER'.*SYS_PTRACE meant"):
        sky.Swarm("unix:///engine", privileges=["sys_ptracer"])
    with pytest.raises(ConfigError, match=r"sky\.Swarm: user is a string"):
        sky.Swarm("unix:///engine", user=1000)  # type: ignore[arg-type]
    assert sky.Swarm("unix:///engine", user="app").rights.user == "app"


def test_no_key_is_in_the_service() -> None:
    """What knows it is the secret alone; all private keys differ, and each side trusts one certificate only."""
    client, tasks = identities("Swarm", "cafe1234", 3)

    assert [side.peer for side in client] == [task.certificate for task in tasks]
    assert {task.peer for task in tasks} == {client[0].certificate}
    assert len({side.private_key for side in (client[0], *tasks)}) == 4
    assert "PRIVATE" not in json.dumps(service_spec(PLAIN, OWNER))
    assert client[0].private_key not in repr(client)


def test_the_secret_has_one_part_for_each_slot() -> None:
    """Each part stands in a condition on the task's slot, which the engine evaluates."""
    _, tasks = identities("Swarm", "cafe1234", 3)

    parts = re.findall(r'\{\{if eq \.Task\.Slot "(\d+)"\}\}(.*?)\{\{end\}\}', text := secret_text(tasks))

    assert {slot: Identity(**json.loads(part)) for slot, part in parts} == dict(zip("123", tasks, strict=True))
    assert text.count("PRIVATE KEY") == 2 * 3


# what is wrong with a swarm -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("swarm", "said"),
    [
        ({"LocalNodeState": "inactive"}, "its state is 'inactive'. Start one with `docker swarm init`"),
        ({}, "its state is 'inactive'"),
        ({"LocalNodeState": "error", "Error": "no quorum"}, "its state is 'error' (no quorum)"),
        ({"LocalNodeState": "locked"}, "`docker swarm unlock`"),
        (
            {"LocalNodeState": "active", "RemoteManagers": [{"Addr": "10.0.0.1:2377"}]},
            "is a worker of its swarm; services are made on a manager. Name one: sky.Swarm('ssh://user@host') with "
            "10.0.0.1 as host.",
        ),
    ],
)
def test_an_engine_that_is_no_manager_is_refused(swarm: dict[str, Any], said: str) -> None:
    """With what it is, and what to do."""
    with pytest.raises(ProviderError) as caught:
        check_manager("unix:///engine", {"Swarm": swarm})
    assert said in str(caught.value)


def test_only_machines_that_can_run_tasks_count() -> None:
    """Those that are down, drained or of another kind are left out; if that is all of them, it is said of each."""
    well = [machine(1), machine(2)]
    bad = [machine(3, state="down"), machine(4, availability="drain"), machine(5, processor="aarch64")]

    assert usable_machines([*well, *bad], "linux/amd64") == well
    assert usable_machines([*well, *bad], "linux/arm64/v8") == [bad[2]]
    with pytest.raises(ProviderError, match="machine3 is down; machine4 is drain; machine5 is linux/arm64"):
        usable_machines(bad, "linux/amd64")


def test_a_machine_at_a_public_address_is_refused() -> None:
    """Nothing of skyward's listens there. A manager is known by what it tells others, not by how it sees itself."""
    manager = {**machine(1, address="0.0.0.0"), "ManagerStatus": {"Addr": "10.0.0.1:2377"}}
    assert usable_machines([manager], "linux/amd64") == [manager]
    with pytest.raises(ProviderError, match=r"machine1 is in its swarm by 8\.8\.8\.8, an address of the public"):
        usable_machines([machine(1, address="8.8.8.8")], "linux/amd64")


def test_nodes_are_as_many_as_fit() -> None:
    """All, if nothing is asked of a machine; as many as at least are needed, or it is refused with what there is."""
    machines = [machine(1), machine(2, cpus=4)]

    def room(nodes: int, at_least: int, **limits: float) -> int:
        return room_for(machines, PoolRequest(pool_id="p", nodes=nodes, at_least=at_least, **limits))  # type: ignore[arg-type]

    assert room(100, 100) == 100
    assert room(9, 1, cpus=3) == 3
    with pytest.raises(ProviderError, match=r"4 nodes with 3 of CPUs each do not fit .* machine1 8, machine2 4"):
        room(4, 4, cpus=3)
    with pytest.raises(ProviderError, match="1 nodes with 33 GiB of memory each"):
        room(1, 1, memory_gb=33)


def test_gpus_are_the_resource_with_their_name_or_the_one_that_says_gpu() -> None:
    """Named one by one, or counted."""
    two, four = machine(1, resources=named("NVIDIA-GPU", "GPU-1", "GPU-2")), machine(2, resources=counted("A100", 4))

    assert gpus_for([two, four], 2, 2, Accelerator("A100", 2)) == ("A100", 2)
    assert gpus_for([two, four], 2, 1, Accelerator("T4")) == ("NVIDIA-GPU", 2)
    assert gpus_for([two, four], 3, 1, Accelerator("T4", 2)) == ("NVIDIA-GPU", 1)


def test_gpus_that_are_not_there_are_refused() -> None:
    """None at all, too few, or of a kind that is no GPU."""
    with pytest.raises(ProviderError, match=r"They offer disk\. Tell each engine .*node-generic-resources"):
        gpus_for([machine(1, resources=counted("disk", 2))], 1, 1, Accelerator("A100"))
    with pytest.raises(ProviderError, match="Of gpu the swarm's machines have: machine1 1, machine2 0"):
        gpus_for([machine(1, resources=counted("gpu", 1)), machine(2)], 2, 2, Accelerator("A100"))
    with pytest.raises(ProviderError, match="Trainium is something else"):
        gpus_for([machine(1)], 1, 1, Accelerator("Trainium"))


# how it is named ------------------------------------------------------------------------------------------------------


def test_a_manager_is_named_by_ssh_by_its_socket_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the docker command takes it: what DOCKER_HOST says counts where nothing is given."""
    monkeypatch.setenv("DOCKER_HOST", "ssh://me@far:2222")
    assert sky.Swarm().manager.name == "me@far:2222"
    assert sky.Swarm("unix:///engine").manager.url == "unix:///engine"
    monkeypatch.setenv("DOCKER_HOST", "unix:///other")
    assert sky.Swarm().manager.name == "this machine"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"engine": "manager1"}, "a manager is named as 'ssh://user@host'"),
        ({"engine": "ssh://me:secret@far"}, "holds a password"),
        ({"engine": "ssh://far", "key": "no-such-file"}, "key names the file .*no-such-file, which does not exist"),
        ({"engine": "unix:///engine", "key": __file__}, "are for a manager that is reached by SSH"),
        ({"registry": "Not A Name"}, "Not A Name"),
    ],
)
def test_wrong_values_are_refused_at_once(given: dict[str, str], said: str) -> None:
    """Before anything is asked of anybody."""
    with pytest.raises(ConfigError, match=said):
        sky.Swarm(**given)


def test_it_rents_nothing() -> None:
    """Prices and types of machines mean nothing to it."""
    with pytest.raises(ConfigError, match=r"max_hourly_cost= is for .*; sky\.Swarm rents none"):
        sky.ComputePool(sky.Swarm("unix:///engine"), max_hourly_cost=1)


def test_a_task_that_has_ended_with_status_0_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The swarm starts no other, as after `docker stop`."""
    monkeypatch.setattr(service, "_PLACE_S", -1.0)
    claimer = TaskClaimer(Mock(), {}, "p", lambda _: None, threading.Event())
    task = {"ID": "t", "Slot": 1, "CreatedAt": "1", "Status": {"State": "complete"}, "DesiredState": "running"}
    view = View(tasks={1: [task]}, machines={}, given_up=())

    error = claimer._trouble(view, 1, Waiting(time.monotonic()))

    assert "node 0 of pool p has ended with status 0" in str(error)
