"""Nodes that fail at the start or are lost later: others take their places, with their ranks, and calls go on."""

from __future__ import annotations

import os
import signal
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import skyward as sky
from skyward.errors import ProviderError, WorkerLostError
from skyward.nodes.local_host import LocalHost
from skyward.providers.base import PreemptionNotice
from tests.e2e.conftest import IMAGE, provider_of
from tests.e2e.failing_functions import members, ring
from tests.e2e.replacement_functions import begins, ends_after, marks, place, prepared

PATIENCE_S = 120.0  # for what is asserted to come at all
Containers = Callable[[str], list[Any]]


@pytest.fixture(scope="module")
def pool(provider_name: str) -> Iterator[sky.ComputePool]:
    """Two nodes, set up by a plugin."""
    settings: dict[str, Any] = {"image": IMAGE, "plugins": [prepared()], "display": "quiet"}
    with sky.ComputePool(provider_of(provider_name), nodes=2, **settings) as pool:
        yield pool


def kill(pool: sky.ComputePool, node: int, agent: int, containers: Containers) -> None:
    """End a node from outside, at once."""
    mine = [each for each in containers(pool.id) if each.labels["skyward.node"] == str(node)]
    if mine:
        mine[0].kill()
    else:
        os.kill(agent, signal.SIGKILL)


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_lost_node_is_replaced_and_calls_go_on(pool: sky.ComputePool, containers: Containers) -> None:
    """Its running call is lost, those that wait run once each; the new node has index, set-up and neighbours."""
    before = place() @ pool
    assert [(node, peers, set_up) for node, _, peers, set_up in before] == [(0, 2, "0"), (1, 2, "1")]
    names = [f"skyward-test-{uuid.uuid4().hex}" for _ in range(20)]
    try:
        calls = [begins(name, 0.2) > pool for name in names]
        calls[0].result(PATIENCE_S)
        kill(pool, 1, before[1][1], containers)
        outcomes = [call.exception(PATIENCE_S) for call in calls]
        lost = [error for error in outcomes if error is not None]
        assert all(isinstance(error, WorkerLostError) and error.node == 1 for error in lost)
        assert len(lost) <= 1
        if not containers(pool.id):
            assert [marks.local(name) for name in names] == [1] * len(names)
        after = place() @ pool
    finally:
        for name in names:  # of nodes that are processes of this machine
            (Path(tempfile.gettempdir()) / name).unlink(missing_ok=True)
    assert [(node, peers, set_up) for node, _, peers, set_up in after] == [(0, 2, "0"), (1, 2, "1")]
    assert after[0][1] == before[0][1]
    assert (pool.current_nodes(), pool.instance_count, pool.total_slots) == (2, 2, 2)


def test_the_head_is_replaced_too(pool: sky.ComputePool, containers: Containers) -> None:
    """The others learn its new address and port, between their calls."""

    @sky.compute
    def head() -> tuple[str, int]:
        info = sky.instance_info()
        assert info is not None
        return info.head_addr, info.head_port

    (one, other), agents = head() @ pool, place() @ pool
    assert one == other
    kill(pool, 0, agents[0][1], containers)
    wait_until(lambda: pool.current_nodes() < 2)
    one, other = head() @ pool
    assert one == other


def test_a_pool_opens_with_fewer_nodes_and_grows(
    provider_name: str, containers: Containers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that cannot be started is tried again while calls run on the others."""
    start, failures = LocalHost.start, [ProviderError("its disk is full."), ProviderError("its disk is still full.")]

    def fails_twice(self: Any, launch: Any) -> Any:
        if launch.node == 1 and failures:
            raise failures.pop(0)
        return start(self, launch)

    monkeypatch.setattr(LocalHost, "start", fails_twice)
    settings: dict[str, Any] = {"image": IMAGE, "plugins": [prepared()], "display": "quiet"}
    with sky.ComputePool(provider_of(provider_name), nodes=(1, 2), **settings) as pool:
        assert (place() >> pool)[0] == 0
        assert [node for node, *_ in place() @ pool] == [0, 1]  # waits for the other
        assert not failures
        assert pool.current_nodes() == 2
    assert containers(pool.id) == []


def test_a_group_finishes_its_call_before_a_node_of_it_is_taken_away() -> None:
    """Calls after that begin in a group with another node, made afresh; here the head goes."""
    with sky.ComputePool(sky.Local(), nodes=2, plugins=[ring()], display="quiet") as pool:
        before = [process for process, _, _ in members() @ pool]
        with ThreadPoolExecutor(1) as threads:
            last = threads.submit(lambda: ends_after(1.0) @ pool)
            wait_until(lambda: pool._group._under_way)
            host = pool._table.nodes[0].host
            pool._manager.preempted(PreemptionNotice(host=host, text="will be reclaimed", left_s=PATIENCE_S))
            answers = members() @ pool
            assert sorted(last.result(PATIENCE_S)) == [0, 1]
        pids = [process for process, _, _ in answers]
        assert not set(before) & set(pids)
        assert [met for _, _, met in answers] == [repr(list(enumerate(pids)))] * 2
        assert pool.current_nodes() == 2
