"""Pools on a Docker Swarm of the stand's hosts: placed by the engine, reached through a manager, gone in the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest

import skyward as sky
from examples import digits
from scripts.stand import faults
from scripts.stand.place import Host, Stand
from skyward.cli.main import main
from skyward.delivery.deliver import ImageTarget, deliver
from skyward.engine import find_engine
from skyward.errors import PoolError, ProviderError, WorkerLostError
from skyward.testing.client import CALLS
from skyward.testing.provider import ProviderConformance
from tests.e2e.rights_functions import rights, writable
from tests.e2e.stand import run_program, wait_until
from tests.e2e.stand_functions import places, task_secret, where, work
from tests.e2e.test_runs import authorized, check, detached, fetched
from tests.e2e.test_runs import home as home

IMAGE = digits.IMAGE  # for all of these tests, since each host has to fetch it
REGISTRY = os.environ.get("SKYWARD_REGISTRY", "")
LONG_S = 60.0  # nothing here is about this time
pytestmark = pytest.mark.usefixtures("left_nothing")

Make = Callable[..., sky.Swarm]
PROGRAM = """
import sys, time
import skyward as sky
from tests.e2e.test_swarm import IMAGE
provider = sky.Swarm(sys.argv[1] if sys.argv[1:] else {engine!r}, registry={registry!r})
with sky.ComputePool(provider, nodes=2, image=IMAGE, display="quiet", ttl=8) as pool:
    print("open", pool.id, flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def swarm(stand: Stand) -> Iterator[Stand]:
    """The three hosts as one swarm, of which the first is the manager. A machine that is gone is soon known to be."""
    first, *others = stand.hosts
    first.run("docker", "swarm", "init", "--advertise-addr", first.address, "--dispatcher-heartbeat", "1s")
    try:
        token = first.run("docker", "swarm", "join-token", "-q", "worker").strip()
        for host in others:
            words = ("--token", token, "--advertise-addr", host.address, f"{first.address}:2377")
            host.run("docker", "swarm", "join", *words)
        wait_until(lambda: all_ready(stand), LONG_S)
        yield stand
    finally:
        with ThreadPoolExecutor() as threads:
            list(threads.map(lambda host: host.run("docker", "swarm", "leave", "--force", check=False), stand.hosts))


@pytest.fixture(scope="module")
def three_managers(swarm: Stand) -> Stand:
    """The same, from here on with three managers."""
    swarm.host(1).run("docker", "node", "promote", "stand2", "stand3")
    words = ("docker", "info", "--format", "{{.Swarm.ControlAvailable}} {{.Swarm.Managers}}")
    wait_until(lambda: all(host.run(*words).split() == ["true", "3"] for host in swarm.hosts), LONG_S)
    wait_until(lambda: all_ready(swarm), LONG_S)
    return swarm


def all_ready(swarm: Stand) -> bool:
    """Whether the engine would put tasks on all machines: it spreads them over those that it knows to be ready."""
    return swarm.host(1).run("docker", "node", "ls", "--format", "{{.Status}}").split() == ["Ready"] * 3


@pytest.fixture(scope="module")
def repository(stand: Stand) -> Iterator[str]:
    """A repository with the image, at the registry that the hosts reach.

    It is pushed to the registry's other address, on loopback, of which every engine here thinks well. The hosts keep
    what they have fetched until they are taken away.
    """
    if stand.registry is None or not REGISTRY:
        pytest.skip("`make engine` has made no registry here")
    path = f"skyward/test-{uuid.uuid4().hex[:8]}"
    cluster = sky.ComputePool(display="quiet")._settings.cluster
    deliver(IMAGE, cluster, ImageTarget(engine=find_engine(), registry=f"http://{REGISTRY}/{path}"), print)
    yield f"http://{stand.registry}/{path}"
    words = ["docker", "images", "--format", "{{.Repository}}:{{.Tag}}", f"{REGISTRY}/{path}"]
    names = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    subprocess.run(["docker", "rmi", *names], capture_output=True, check=bool(names))


@pytest.fixture
def left_nothing(swarm: Stand) -> Iterator[None]:
    """Asserts that the swarm has no service and no secret in the end, and no machine a container of one."""
    yield
    try:
        wait_until(lambda: not left(swarm), LONG_S)
    except AssertionError:
        pytest.fail(f"left: {left(swarm)}")


def left(swarm: Stand) -> list[str]:
    """What there is of services."""
    first = swarm.host(1)
    found = first.run("docker", "service", "ls", "-q").split() + first.run("docker", "secret", "ls", "-q").split()
    for host in swarm.hosts:
        found += host.run("docker", "ps", "-aq", "--filter", "label=com.docker.swarm.service.name").split()
    return found


@pytest.fixture
def by_ssh(swarm: Stand, repository: str) -> Make:
    """A provider that reaches a manager, and the nodes behind it, through SSH."""

    def make(number: int = 1, **settings: Any) -> sky.Swarm:
        facts = json.loads(swarm.hosts_file.read_text())
        where = {"key": facts["key"], "known_hosts": facts["known_hosts"], "registry": repository}
        return sky.Swarm(f"ssh://{swarm.host(number).login}", **{**where, **settings})

    return make


@pytest.fixture
def beside(swarm: Stand, repository: str) -> Make:
    """A provider on the manager's own machine, as it were: its engine's socket, and no SSH."""
    return lambda **settings: sky.Swarm(socket_of(swarm.host(1)), **{"registry": repository, **settings})


def socket_of(host: Host) -> str:
    return f"unix:///proc/{host.init}/root/run/docker.sock"


def demo(pool: sky.ComputePool) -> list[dict[str, Any]]:
    """Train on handwritten digits, each node on its part."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return digits.train(x / 16, y) @ pool


class TestConformance(ProviderConformance):
    """The provider keeps the contract."""

    settings: ClassVar[Mapping[str, Any]] = {"image": IMAGE}
    enters_all = False  # but those on the manager's own machine
    calls = tuple(call for call in CALLS if call != "replace")  # for which the client would end a node as below

    @pytest.fixture(autouse=True)
    def _swarm(self, beside: Make, swarm: Stand) -> None:
        self._make, self._stand = beside, swarm

    def provider(self) -> sky.Swarm:
        return self._make()

    def lose(self, pool: sky.ComputePool) -> None:
        """Kill a container: a runner that is asked to end ends with status 0, and its task is not started again."""
        machine = self._stand.host(int(pool._table.nodes[0].host.name.removeprefix("stand")))
        label = f"label=com.docker.swarm.service.name=skyward-{pool.id}"
        machine.run("docker", "kill", machine.run("docker", "ps", "-q", "--filter", label).split()[0])
        wait_until(lambda: pool.current_nodes() < 2, LONG_S)


# detached runs --------------------------------------------------------------------------------------------------------


def test_a_detached_run_goes_on_at_the_manager(home: Path, swarm: Stand, repository: str, left_nothing: None) -> None:
    """Its driver is a container there; what started it is killed; at the end neither key nor container is left."""
    cluster = sky.ComputePool(display="quiet")._settings.cluster
    pushed = f"http://{REGISTRY}/{repository.removeprefix('http://').partition('/')[2]}"
    deliver(sky.Image(), cluster, ImageTarget(engine=find_engine(), registry=pushed), print)
    facts = json.loads(swarm.hosts_file.read_text())
    first = swarm.host(1)
    files = f"key={facts['key']!r}, known_hosts={facts['known_hosts']!r}"
    run = detached(f"sky.Swarm('ssh://{first.login}', {files}, registry={repository!r})")
    assert f"skyward-run-{run}" in authorized(first)

    place = f"/root/.local/state/skyward/runs/{run}"
    wait_until(lambda: "end.json" in first.run("ls", place), 240)
    wait_until(lambda: not first.run("docker", "ps", "-aq", "--filter", f"label=skyward.run={run}"), 30)

    check(fetched(first, place, home))
    assert "skyward-run-" not in authorized(first)


# with one manager -----------------------------------------------------------------------------------------------------


def test_the_demo_runs_on_all_machines(by_ssh: Make, swarm: Stand, capsys: pytest.CaptureFixture[str]) -> None:
    """One node on each, which listens at its address in the swarm only; keys are in a secret, and seen nowhere."""
    first = swarm.host(1)
    with sky.ComputePool(by_ssh(), nodes=3, image=IMAGE) as pool:
        results = demo(pool)
        assert {result["host"] for result in results} == {"stand1", "stand2", "stand3"}
        assert sum(result["samples"] for result in results) == 1797
        for found in rights() @ pool:
            assert (found["uid"], found["name"], found["home"]) == (10001, "skyward", "/home/skyward")
            assert (int(found["CapBnd"], 16), found["NoNewPrivs"], found["cwd"]) == (0, "1", "/work")
        assert writable() @ pool == [[]] * 3
        name = f"skyward-{pool.id}"
        seen = first.run("docker", "service", "inspect", name) + first.run("docker", "secret", "inspect", name)
        assert not any(node._key.hex() in seen for node in pool._table.nodes)
        assert "PRIVATE KEY" not in seen
        parts = [json.loads(part) for part in task_secret() @ pool]
        assert len({part["private_key"] for part in parts}) == len({part["certificate"] for part in parts}) == 3
        assert len({part["peer"] for part in parts}) == 1
        assert f'"skyward.pool": "{pool.id}"' in seen
        listening = first.run("sh", "-c", "cat /proc/net/tcp | grep ' 0A '").split("\n")
        own = [line.split()[1] for line in listening if line and 20_000 <= int(line.split()[1][-4:], 16) < 30_000]
        assert [address.partition(":")[0] for address in own] == [hexadecimal(first.address)]
        facts = json.loads(swarm.hosts_file.read_text())
        files = ["--key", facts["key"], "--known-hosts", facts["known_hosts"]]
        capsys.readouterr()
        assert main(["ps", "--swarm", f"ssh://{first.login}", *files]) == 0
        rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith(pool.id)]
        assert [row.split()[1] for row in rows] == ["0", "1", "2"]
        assert all("running" in row for row in rows)


def hexadecimal(address: str) -> str:
    """An address as the kernel lists it."""
    return "".join(f"{int(part):02X}" for part in reversed(address.split(".")))


def test_another_client_ends_a_pool(beside: Make, swarm: Stand) -> None:
    """By its label alone; the pool's own client is told so by its next call."""
    with pytest.raises((PoolError, WorkerLostError)):  # noqa: SIM117
        with sky.ComputePool(beside(), nodes=2, image=IMAGE, display="quiet") as pool:
            assert main(["down", pool.id, "--swarm", socket_of(swarm.host(1))]) == 0
            assert not swarm.host(1).run("docker", "service", "ls", "-q")
            where() @ pool


def test_a_killed_client_leaves_nothing(beside: Make, swarm: Stand) -> None:
    """What it was is cleared by its reaper."""
    client = opened(beside(), swarm)
    client.kill()
    client.communicate()
    wait_until(lambda: not left(swarm), LONG_S)


def test_what_a_client_and_its_reaper_leave_ends_by_its_lease(beside: Make, swarm: Stand) -> None:
    """Tasks end, and no other is started for them; the next pool removes service and secret."""
    client = opened(beside(), swarm)
    (reaper,) = children(client.pid)
    os.kill(reaper, signal.SIGKILL)
    client.kill()
    client.communicate()
    first = swarm.host(1)
    running = ("docker", "ps", "-q", "--filter", "label=com.docker.swarm.service.name")
    wait_until(lambda: not any(host.run(*running).strip() for host in swarm.hosts), LONG_S)
    (old,) = first.run("docker", "service", "ls", "-q").split()
    tasks = ("docker", "service", "ps", "--format", "{{.CurrentState}}", old)
    wait_until(lambda: [line.split()[0] for line in first.run(*tasks).splitlines()] == ["Complete"] * 2, LONG_S)
    with sky.ComputePool(beside(), image=IMAGE, display="quiet"):
        assert old not in first.run("docker", "service", "ls", "-q").split()


def opened(provider: sky.Swarm, swarm: Stand) -> subprocess.Popen[str]:
    """A client with a pool of two nodes that is open."""
    client = run_program(PROGRAM.format(engine=socket_of(swarm.host(1)), registry=provider.registry))
    assert client.stdout
    said = client.stdout.readline()
    assert said.startswith("open"), said + client.stdout.read()
    return client


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


# what is refused before anything is made ------------------------------------------------------------------------------


def refusal(provider: sky.Swarm, **settings: Any) -> str:
    """What a pool that cannot start says."""
    with (
        pytest.raises(ProviderError) as caught,
        sky.ComputePool(provider, **{"image": IMAGE, "display": "quiet", **settings}),
    ):
        raise AssertionError("the pool started")
    return str(caught.value)


def test_an_engine_that_is_no_manager_is_refused(by_ssh: Make, swarm: Stand) -> None:
    """A worker says who is one."""
    assert f"with {swarm.host(1).address} as host" in refusal(by_ssh(2))


def test_what_the_swarm_does_not_have_is_refused(beside: Make) -> None:
    """GPUs that no machine offers; more memory than there is; another processor's image; no way for images."""
    assert "no machine of the swarm says that it has GPUs" in refusal(beside(), accelerator="A100")
    assert "do not fit on the swarm's machines" in refusal(beside(), memory_gb=100_000)
    assert "No machine of the swarm can run an image for linux/arm64" in refusal(beside(), architecture="arm64")
    assert "get images from a registry" in refusal(beside(registry=None))


# with three managers --------------------------------------------------------------------------------------------------


def test_the_demo_runs_with_three_managers(by_ssh: Make, three_managers: Stand) -> None:
    """Through any of them."""
    with sky.ComputePool(by_ssh(2), nodes=3, image=IMAGE, display="quiet") as pool:
        results = demo(pool)
    assert {result["host"] for result in results} == {"stand1", "stand2", "stand3"}
    assert sum(result["samples"] for result in results) == 1797


def test_tasks_that_are_lost_come_back_as_the_same_nodes(beside: Make, three_managers: Stand) -> None:
    """One is killed, then the machine of another is switched off; nodes keep their numbers, and no call is lost."""
    lost = three_managers.host(3)
    with sky.ComputePool(beside(), nodes=3, image=IMAGE, display="quiet") as pool:
        assert [place["node"] for place in places() @ pool] == [0, 1, 2]
        (victim,) = lost.run("docker", "ps", "-q", "--filter", "label=com.docker.swarm.service.name").split()
        lost.run("docker", "kill", victim)
        wait_until(lambda: pool.current_nodes() < 3, LONG_S)
        done = pool.run_parallel(work(number, 0.1) for number in range(12))
        assert [number for number, _ in done] == [*range(12)]
        wait_until(lambda: pool.current_nodes() == 3, LONG_S)
        before = places() @ pool
        assert [place["node"] for place in before] == [0, 1, 2]
        calls = [work(number, 0.2) > pool for number in range(30)]
        calls[0].result(LONG_S)
        try:
            with ThreadPoolExecutor() as threads:  # the fault itself may take a while
                off = threads.submit(faults.power_off, lost)
                wait_until(lambda: pool.current_nodes() < 3, LONG_S)
                off.result()
            assert sorted(call.result(LONG_S)[0] for call in calls) == [*range(30)]
            wait_until(lambda: pool.current_nodes() == 3, LONG_S)
            after = places() @ pool
            assert [place["node"] for place in after] == [0, 1, 2]
            assert {place["host"] for place in after} == {"stand1", "stand2"}
            stayed = [place for place in before if place["host"] != "stand3"]
            assert [place for place in after if place in before] == stayed
        finally:
            faults.power_on(lost)
