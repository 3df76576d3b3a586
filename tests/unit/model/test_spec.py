"""How many ranks a node gets, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from skyward.errors import ConfigError
from skyward.model.instance import InstanceInfo
from skyward.model.spec import Accelerator, Worker


@pytest.mark.parametrize(
    ("worker", "ranks", "processes", "slots"),
    [
        (Worker(), 1, 1, 1),
        (Worker(concurrency=4), 1, 1, 4),
        (Worker(concurrency=4, executor="process"), 1, 4, 1),
        (Worker(per_node=3), 3, 3, 1),
        (Worker(per_node=3, concurrency=2), 3, 3, 2),
    ],
)
def test_the_shape_of_a_node(worker: Worker, ranks: int, processes: int, slots: int) -> None:
    """Processes for calls at once are one rank; ranks are processes of their own, each with its slots."""
    on_node = worker.on(None)

    assert (on_node.ranks, on_node.processes, on_node.slots) == (ranks, processes, slots)


def test_one_rank_per_gpu() -> None:
    """As many as the accelerator has devices on a node."""
    assert Worker(per_node="gpu").on(Accelerator.of("A100:4")).ranks == 4


def test_one_rank_per_gpu_needs_gpus() -> None:
    """The error says what is missing and what to give instead."""
    with pytest.raises(ConfigError, match=r"no accelerator.*accelerator='A100:8'"):
        Worker(per_node="gpu").on(None)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "2", "cpu", None, True])
def test_ranks_are_a_whole_number_or_gpu(wrong: Any) -> None:
    """Anything else is refused with what was found."""
    with pytest.raises(ConfigError, match="per_node is the number of ranks"):
        Worker(per_node=wrong)


@pytest.mark.parametrize("ranks", [2, "gpu"])
def test_ranks_and_processes_for_calls_exclude_each_other(ranks: Any) -> None:
    """Processes that share one rank are not several ranks."""
    with pytest.raises(ConfigError, match="choose one"):
        Worker(executor="process", concurrency=2, per_node=ranks)


def test_a_place_is_one_of_the_ranks() -> None:
    """Rank and world follow from node and worker; the head is the first rank alone."""
    places = [
        InstanceInfo(node=n, total_nodes=2, head_addr="h", head_port=1, worker=w, workers_per_node=2)
        for n in range(2)
        for w in range(2)
    ]

    assert [place.global_worker_index for place in places] == [0, 1, 2, 3]
    assert {place.total_workers for place in places} == {4}
    assert [place.is_head for place in places] == [True, False, False, False]


def test_an_impossible_worker_is_refused() -> None:
    """A document that names a worker its node does not have was not made by a pool."""
    place = InstanceInfo(node=0, total_nodes=1, head_addr="h", head_port=1, worker=2, workers_per_node=2)

    with pytest.raises(ConfigError, match="worker 2 of 2"):
        InstanceInfo.from_json(place.to_json())
