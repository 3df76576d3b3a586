"""Clients of local containers that are killed, at each call of the provider in turn: nothing outlives the lease."""

from __future__ import annotations

import pytest

import skyward as sky
from skyward.providers.rundir import pool_directories
from tests.e2e.stand import run_program
from tests.waiting import wait_until

# A program that opens a pool, calls once, and leaves; it kills itself at the n-th provider call, before or after it.
PROGRAM = """
import os
import skyward as sky
from skyward.engine import Engine, client
from skyward.providers import containers, docker
from skyward.providers.rundir import PoolDirectory
from tests.e2e.dying import die_at
from tests.e2e.stand import IMAGE
from tests.e2e.stand_functions import where

CALLS = [
    (docker.Docker, "acquire"), (docker.Docker, "prepare"), (docker.Docker, "release"),
    (docker.DockerHost, "claim_port"), (docker.DockerHost, "start"), (PoolDirectory, "remove"),
    (containers.PoolContainers, "run"), (client, "create"), (client, "attach"),
    (containers.ContainerNode, "wait_ready"), (containers.ContainerNode, "connect"),
    (containers.ContainerNode, "remove"), (containers.PoolContainers, "close"),
]

number, when = os.environ["CLIENT_DIES"].split()
die_at(*CALLS[int(number)], when)
pool = sky.ComputePool(sky.Docker(), nodes=2, image=IMAGE, display="quiet", ttl=3)
print(pool.id, flush=True)
with pool:
    where() @ pool
"""
CALLS = 13


def pools_of_ended_clients(when: str, status: int) -> set[str]:
    """Let a client end at each call in turn."""
    pools = set()
    for number in range(CALLS):
        client = run_program(PROGRAM, CLIENT_DIES=f"{number} {when}")
        output, _ = client.communicate(timeout=120)
        assert client.returncode == status, f"call {number} was never made: {output}"
        pools.add(output.split()[0])
    assert len(pools) == CALLS
    return pools


def left_of(pools: set[str]) -> set[str]:
    """States of the containers of these pools."""
    return {str(about["state"]) for about in sky.Docker().find() if about["pool"] in pools}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_client_killed_at_any_provider_call_leaves_nothing(when: str) -> None:
    """What was started ends by its lease; what was only made, and the directories, go with the next pool."""
    pools = pools_of_ended_clients(when, -9)
    wait_until(lambda: left_of(pools) <= {"created"})
    with sky.ComputePool(sky.Docker(), image=sky.Image(), display="quiet"):
        pass
    wait_until(lambda: not left_of(pools))
    assert not {directory.pool for directory in pool_directories()} & pools


def test_ctrl_c_in_any_provider_call_leaves_nothing() -> None:
    """The client itself takes everything away before it ends, wherever it is."""
    pools = pools_of_ended_clients("in", -2)
    assert not left_of(pools)
    assert not {directory.pool for directory in pool_directories()} & pools
