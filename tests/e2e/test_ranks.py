"""Two nodes with two ranks each: who they are, what they gather, which secrets they have, and how they fail."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import skyward as sky
from tests.e2e.conftest import IMAGE, provider_of
from tests.e2e.rank_functions import (
    alone,
    bootstraps,
    broken,
    first_process_says,
    is_killed_on,
    mesh,
    met,
    returns_on,
    total,
    variable,
    who,
)
from tests.printed import Printed

RANKS = range(4)
CANARY = "canary-4f1c-of-a-secret"
STOPPED_S = 45.0  # ranks that were not stopped would run for a minute or more; it takes 2 s on an idle machine


@pytest.fixture(scope="module")
def ranks(provider_name: str) -> Iterator[sky.ComputePool]:
    """Two nodes with two ranks each, a plugin that gathers while it is set up, and a secret."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKS_TOKEN", CANARY)
        pool = sky.ComputePool(
            provider_of(provider_name),
            nodes=2,
            image=IMAGE,
            worker=sky.Worker(per_node=2),
            plugins=[mesh()],
            secrets=["RANKS_TOKEN"],
        )
    with pool:
        yield pool


def test_every_rank_is_somebody_else(ranks: sky.ComputePool) -> None:
    """`@` reaches each once, in the order of the ranks; each is a process that knows its place."""
    places, pids, documents = zip(*(who() @ ranks), strict=True)

    assert [place.global_worker_index for place in places] == list(RANKS)
    assert [(place.node, place.worker) for place in places] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [place.is_head for place in places] == [True, False, False, False]
    assert {place.total_workers for place in places} == {4}
    assert len({(place.node, pid) for place, pid in zip(places, pids, strict=True)}) == 4
    assert [json.loads(document)["worker"] for document in documents] == [0, 1, 0, 1]
    assert (ranks.total_slots, ranks.instance_count, ranks.workers_per_instance) == (4, 2, 2)


def test_output_names_the_rank(ranks: sky.ComputePool, printed: Printed) -> None:
    """Two ranks of one node are told apart."""
    who() @ ranks

    assert sorted(printed.read().out.splitlines()) == [f"[rank {n}] rank {n} speaks" for n in RANKS]


def test_ranks_gather_while_they_are_set_up(ranks: sky.ComputePool) -> None:
    """All of them together, in both hooks; the node's bootstrap has run once, for both of its ranks."""
    assert met() @ ranks == [[[0, 10, 20, 30], [0, -1, -2, -3]]] * 4
    assert bootstraps() @ ranks == ["once\n"] * 4


def test_ranks_gather_in_a_call(ranks: sky.ComputePool) -> None:
    """Each gets what all have given."""
    assert total(100) @ ranks == [406] * 4


def test_secrets_reach_functions_and_nobody_else(
    ranks: sky.ComputePool, provider_name: str, containers: Callable[[str], list[Any]]
) -> None:
    """In every rank's environment; not in what the engine tells of the containers, nor in their first process."""
    assert variable("RANKS_TOKEN") @ ranks == [CANARY] * 4
    assert variable("MESH_TOKEN") @ ranks == ["of the plugin"] * 4
    assert first_process_says("RANKS_TOKEN") @ ranks == [False] * 4
    assert CANARY not in repr(ranks)
    if provider_name == "docker":
        shown = [json.dumps(container.attrs) for container in containers(ranks.id)]
        assert len(shown) == 2
        assert all("COMPUTE_POOL" in text and CANARY not in text for text in shown)
        assert not any(CANARY.encode() in container.logs() for container in containers(ranks.id))


def test_a_rank_that_returns_is_missed(ranks: sky.ComputePool) -> None:
    """The others hear who did not gather, instead of waiting for it."""
    with pytest.raises(sky.errors.PluginError, match=r"'without one'.*rank 1 \(node 0\) has returned without it"):
        returns_on(1) @ ranks

    assert total(0) @ ranks == [6] * 4


def test_a_call_for_one_rank_cannot_gather(ranks: sky.ComputePool) -> None:
    """It is told so at once, with what to write instead."""
    start = time.monotonic()
    with pytest.raises(sky.errors.PluginError, match=r"gather\('alone'\): alone\(\) runs on one rank only; call it w"):
        alone() >> ranks

    assert time.monotonic() - start < STOPPED_S


def test_a_dead_rank_is_the_error(provider_name: str) -> None:
    """With its node, rank and signal; the pool goes on with a fresh process in its place."""
    shape = sky.Worker(per_node=2)
    with sky.ComputePool(provider_of(provider_name), image=IMAGE, nodes=2, worker=shape) as pool:
        start = time.monotonic()
        with pytest.raises(sky.errors.WorkerLostError, match=r"node 0, rank 1 ended while.*SIGKILL") as caught:
            is_killed_on(1) @ pool

        assert time.monotonic() - start < STOPPED_S
        assert (caught.value.node, caught.value.rank, caught.value.signal) == (0, 1, 9)
        assert total(0) @ pool == [6] * 4
        assert [place.global_worker_index for place, _, _ in who() @ pool] == list(RANKS)


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ("raises", sky.errors.PluginError, "'broken': its around_app hook failed.*LookupError: no such device"),
        ("dies", sky.errors.WorkerLostError, "node 1, rank 3 ended while its plugins were set up.*SIGKILL"),
        (
            "hangs",
            sky.errors.PluginError,
            r"(?s)not set up on rank 3 \(node 1\) within 15 s; rank 0 .*'broken: address'.*rank 3 .*here:.*in enter",
        ),
    ],
)
def test_a_rank_that_is_not_set_up_fails_the_start(
    provider_name: str,
    containers: Callable[[str], list[Any]],
    how: str,
    error: type[Exception],
    words: str,
) -> None:
    """The other ranks wait for it in vain, which is said; no node is left."""
    start = time.monotonic()
    pool = sky.ComputePool(
        provider_of(provider_name),
        image=IMAGE,
        nodes=2,
        worker=sky.Worker(per_node=2),
        plugins=[broken(3, how)],
        provision_timeout=15.0 if how == "hangs" else 60.0,
    )
    with pytest.raises(error, match=words), pool:
        pytest.fail("the pool is open")

    assert time.monotonic() - start < STOPPED_S
    assert containers(pool.id) == []
    assert not [found for found in provider_of(provider_name).find() if found["pool"] == pool.id]
