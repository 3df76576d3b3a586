"""What dies under a pool on SSH hosts, and clients that die: seen in time, named, survived, and nothing left."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import skyward as sky
from scripts.stand import faults
from scripts.stand.place import Host, Stand
from skyward.errors import ProviderError
from tests.e2e.dying import clients
from tests.e2e.stand import IMAGE, directories_on, left_on, wait_until
from tests.e2e.stand_functions import where, work, work_once
from tests.printed import Printed

Make = Callable[..., sky.SSH]
SEEN_S = 30.0  # the loss of a host is known by then
pytestmark = pytest.mark.usefixtures("clean")

FAULTS = {
    "link-down": (faults.link_down, faults.link_up, r"the SSH connection to root@\S+ ended \(Timeout"),
    "power-off": (faults.power_off, faults.power_on, r"the SSH connection to root@\S+ ended \(Timeout"),
    "kill-sshd": (
        faults.kill_sshd,
        faults.start_sshd,
        r"the SSH connection to root@\S+ ended \(.*(closed|reset|[Bb]roken pipe)",
    ),
    "kill-engine": (faults.kill_engine, faults.start_engine, r"the Docker engine on root@\S+ is gone"),
}


@pytest.fixture
def mended(stand: Stand) -> Iterator[Callable[[str, Host], None]]:
    """Does something to a host that is taken back at the end of the test."""
    done: list[tuple[str, Host]] = []

    def do(kind: str, host: Host) -> None:
        done.append((kind, host))
        FAULTS[kind][0](host)

    yield do
    for kind, host in done:
        FAULTS[kind][1](host)
        wait_until(lambda host=host: bool(host.run("docker", "ps", check=False)), 120)  # type: ignore[misc]


@pytest.mark.parametrize("kind", FAULTS)
def test_a_lost_host_is_named_and_replaced_by_the_third(
    kind: str, ssh: Make, stand: Stand, mended: Callable[[str, Host], None], printed: Printed
) -> None:
    """Forty calls over two hosts of which one goes: seen in time, one result each, and the third takes its place."""
    with sky.ComputePool(ssh(), nodes=2, image=IMAGE) as pool:
        calls = [work(number, 0.25) > pool for number in range(40)]
        once = work_once(-1, 0.01) > pool
        calls[0].result(60)
        with ThreadPoolExecutor() as threads:  # the fault itself may take a while
            done = threads.submit(mended, kind, stand.host(2))
            seen_s = wait_until(lambda: pool.current_nodes() == 1, SEEN_S + 5)
            done.result()
        assert seen_s < SEEN_S
        results = [call.result(60) for call in calls]
        assert [number for number, _ in results] == list(range(40))
        assert {host for _, host in results[-20:]} <= {"stand1", "stand3"}
        assert once.result(60)[0] == -1
        assert where() @ pool == ["stand1", "stand3"]
        lines = [line for line in printed.read().err.splitlines() if "Starting a replacement" in line]
        assert len(lines) == 1
        assert re.search(rf"node 1 on {stand.host(2).login}\S* .*{FAULTS[kind][2]}", lines[0])


def test_a_pool_opens_without_a_host_that_is_down(
    ssh: Make, stand: Stand, mended: Callable[[str, Host], None], caplog: pytest.LogCaptureFixture
) -> None:
    """If it needs no more than the others: one line names the host, which joins when it is back."""
    host = stand.host(3)
    mended("kill-sshd", host)
    with sky.ComputePool(ssh(), nodes=(2, 3), image=IMAGE, display="quiet") as pool:
        assert pool.current_nodes() == 2
        assert [line for line in caplog.messages if host.login in line and "is not in pool" in line]
        faults.start_sshd(host)
        assert where() @ pool == ["stand1", "stand2", "stand3"]
        assert pool.current_nodes() == 3
    with pytest.raises(ProviderError, match=host.login):
        faults.kill_sshd(host)
        sky.ComputePool(ssh(), nodes=3, image=IMAGE, display="quiet").__enter__()


@pytest.mark.parametrize("kind", ["link-down", "kill-sshd"])
def test_the_only_host_is_used_again_as_soon_as_it_is_back(
    kind: str, ssh: Make, stand: Stand, mended: Callable[[str, Host], None]
) -> None:
    """The earlier watchdog still waits for a silent client until its lease ends, and its container is there."""
    host = stand.host(1)
    with sky.ComputePool(ssh(1), nodes=1, image=IMAGE, display="quiet") as pool:
        (before,) = directories_on(host, pool.id)
        mended(kind, host)
        wait_until(lambda: pool.current_nodes() == 0, SEEN_S)
        FAULTS[kind][1](host)
        wait_until(lambda: pool.current_nodes() == 1, 120)
        assert (where() >> pool) == "stand1"
        (after,) = directories_on(host, pool.id)
        assert after != before
        assert len(host.run("docker", "ps", "-aq", "--filter", f"label=skyward.pool={pool.id}").split()) == 1
        time.sleep(4)  # the first watchdog notices, and ends nothing of the second's
        assert directories_on(host, pool.id) == [after]
        assert (where() >> pool) == "stand1"


def test_what_a_host_runs_ends_by_its_lease_when_nobody_can_tell_it(
    ssh: Make, stand: Stand, mended: Callable[[str, Host], None]
) -> None:
    """The link stays down: the host ends the pool by itself, and leaves nothing."""
    host = stand.host(1)
    with sky.ComputePool(ssh(1, 2), nodes=2, image=IMAGE, ttl=8, display="quiet") as pool:
        assert left_on(host)
        mended("link-down", host)
        wait_until(lambda: pool.current_nodes() == 1, SEEN_S)
        assert left_on(host)
        wait_until(lambda: not left_on(host), 120)


# clients that die ----------------------------------------------------------------------------------------------------

# Clients that open a pool, call once, and leave; each kills itself at one of these calls of its provider.
PROGRAM = """
import json, os, sys
import skyward as sky
from skyward.engine import Engine, client
from skyward.nodes import container as containers, ssh_host as machine
from skyward.ssh import watchdog as watchdog
from skyward.providers import ssh
from skyward.nodes.node import RunnerNode
from tests.e2e.dying import end_at_each
from tests.e2e.stand import IMAGE
from tests.e2e.stand_functions import where

CALLS = [
    (ssh.SshAllocation, "acquire"), (ssh.SshAllocation, "prepare"), (ssh.SshAllocation, "release"),
    (watchdog.Watchdog, "facts"),
    (watchdog.Watchdog, "go"), (watchdog.Watchdog, "port"), (watchdog.Watchdog, "add"), (watchdog.Watchdog, "drop"),
    (watchdog.Watchdog, "end"), (machine.Machine, "start"), (containers.PoolContainers, "start"), (client, "create"),
    (client, "attach"), (RunnerNode, "wait_ready"), (RunnerNode, "connect"), (RunnerNode, "remove"),
    (Engine, "remove"), (containers.PoolContainers, "close"),
]

facts = json.loads(os.environ["STAND_HOSTS"])
hosts = facts.pop("hosts")

def run(tell):
    pool = sky.ComputePool(sky.SSH(*hosts, **facts), nodes=3, image=IMAGE, display="quiet")
    tell(pool.id)
    with pool:
        where() @ pool

end_at_each(CALLS, sys.argv[1], run)
"""
CALLS = 18


def sweep(stand: Stand, when: str, status: int) -> Iterator[str]:
    """Let a client end at each call; the pool of each as soon as it has ended."""
    for client in clients(PROGRAM, when, status, STAND_HOSTS=stand.hosts_file.read_text()):
        yield client.pool


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_client_killed_at_any_provider_call_leaves_nothing(when: str, ssh: Make, stand: Stand) -> None:
    """At each call in turn: after the watchdogs have noticed, `find` is empty on every host, and so are their disks."""
    with sky.ComputePool(ssh(), nodes=3, image=IMAGE, display="quiet"):
        pass  # the image is there
    assert len(list(sweep(stand, when, -9))) == CALLS
    wait_until(lambda: not any(left_on(host) for host in stand.hosts), 60)
    assert list(ssh().find()) == []


def test_ctrl_c_in_any_provider_call_leaves_nothing(ssh: Make, stand: Stand) -> None:
    """The client itself takes everything away before it ends, wherever it is."""
    with sky.ComputePool(ssh(), nodes=3, image=IMAGE, display="quiet"):
        pass  # the image is there
    pools = []
    for pool in sweep(stand, "in", -2):
        pools.append(pool)
        assert {host.name: left_on(host, pool) for host in stand.hosts} == {host.name: [] for host in stand.hosts}
    assert len(pools) == CALLS


def test_destroy_from_another_process_needs_no_memory(ssh: Make, stand: Stand) -> None:
    """A provider that did not make the pool ends it; one whose host is down says so, in a table."""
    with sky.ComputePool(ssh(), nodes=3, image=IMAGE, display="quiet") as pool:
        ssh().destroy(pool.id)
        assert list(ssh().find()) == []
        wait_until(lambda: pool.current_nodes() == 0, 60)
    faults.kill_sshd(stand.host(2))
    try:
        with pytest.raises(ProviderError, match="cannot be used"):
            ssh().destroy(pool.id)
        with pytest.raises(ProviderError, match=stand.host(2).login):
            list(ssh().find())
    finally:
        faults.start_sshd(stand.host(2))
