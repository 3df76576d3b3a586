"""Clients of local containers that are killed, at each call of the provider in turn: nothing outlives the lease."""

from __future__ import annotations

import pytest

import skyward as sky
from skyward.nodes.run_directory import pool_directories
from tests.e2e.dying import clients
from tests.waiting import wait_until

# Clients that open a pool, call once, and leave; each kills itself at one of these calls of its provider.
PROGRAM = """
import sys
import skyward as sky
from skyward.engine import Engine, client
from skyward.nodes import container as containers
from skyward.providers import docker
from skyward.nodes.run_directory import PoolDirectory
from skyward.nodes.local_host import LocalHost
from skyward.nodes.node import RunnerNode
from tests.e2e.dying import end_at_each
from tests.e2e.stand import IMAGE
from tests.e2e.stand_functions import where

CALLS = [
    (docker.DockerAllocation, "acquire"), (docker.DockerAllocation, "prepare"), (docker.DockerAllocation, "release"),
    (LocalHost, "claim_port"), (LocalHost, "start"), (PoolDirectory, "remove"),
    (containers.PoolContainers, "start"), (client, "create"), (client, "attach"),
    (RunnerNode, "wait_ready"), (RunnerNode, "connect"), (RunnerNode, "remove"), (containers.PoolContainers, "close"),
]

def run(tell):
    pool = sky.ComputePool(sky.Docker(), nodes=2, image=IMAGE, display="quiet", ttl=3)
    tell(pool.id)
    with pool:
        where() @ pool

end_at_each(CALLS, sys.argv[1], run)
"""
CALLS = 13


def pools_of_ended_clients(when: str, status: int) -> set[str]:
    """Let a client end at each call."""
    pools = {client.pool for client in clients(PROGRAM, when, status)}
    assert len(pools) == CALLS
    return pools


def left_of(pools: set[str]) -> set[str]:
    """States of the containers of these pools."""
    return {str(about["state"]) for about in sky.Docker().find() if about["pool"] in pools}


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
