"""What is asked of a pool (nodes, ranks, accelerators, volumes), and what is refused."""

from __future__ import annotations

import pytest

import skyward as sky
from skyward.errors import ConfigError
from skyward.model.spec import Volume, Worker, fits, volumes_of


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


@pytest.mark.parametrize(
    ("text", "name", "count", "cuda"), [("a100:4", "A100", 4, True), ("MI300X", "MI300X", 1, False)]
)
def test_known_names_say_what_they_are(text: str, name: str, count: int, cuda: bool) -> None:
    """In any spelling, with a number after a colon."""
    found = sky.Accelerator.of(text)
    assert found is not None
    assert (found.name, found.count, found.cuda) == (name, count, cuda)


@pytest.mark.parametrize(
    ("name", "shown", "expected"),
    [
        ("A100", "NVIDIA A100-SXM4-80GB", True),
        ("A100", "NVIDIA A100 80GB PCIe", True),
        ("A100-80GB", "NVIDIA A100 80GB PCIe", True),
        ("A100-80GB", "NVIDIA A100-SXM4-40GB", False),
        ("A100", "NVIDIA H100 80GB HBM3", False),
        ("A10", "NVIDIA A10G", False),
        ("T4", "Tesla T4", True),
        ("RTX4090", "NVIDIA GeForce RTX 4090", True),
        ("RTX4090", "NVIDIA GeForce RTX 3090", False),
        ("A6000", "NVIDIA RTX A6000", True),
        ("A100", "NVIDIA GeForce RTX 2080 Ti", True),
        ("A100", "", True),
    ],
)
def test_what_the_driver_shows_is_compared_with_what_is_asked_for(name: str, shown: str, expected: bool) -> None:
    """Only what is certainly another GPU does not fit."""
    assert fits(sky.Accelerator(name), shown) is expected


@pytest.mark.parametrize(
    ("value", "volumes"),
    [
        ([], ()),
        ((), ()),
        (None, ()),
        (Volume("data", "/data"), (Volume("data", "/data"),)),
        ([Volume("data", "/data", "x", False)], (Volume("data", "/data", "x", False),)),
        ({"/data": "s3://data/train/7"}, (Volume("data", "/data", "train/7"),)),
        ({"/data": "s3://data"}, (Volume("data", "/data"),)),
    ],
)
def test_volumes_are_named_in_several_ways(value: object, volumes: tuple[Volume, ...]) -> None:
    assert volumes_of(value) == volumes


def test_providers_whose_nodes_may_not_mount_refuse_volumes() -> None:
    """When the pool is made; no volumes are refused by none."""
    sky.ComputePool(sky.Local(), volumes=[])
    with pytest.raises(ConfigError, match=r"sky\.Local nodes cannot mount volumes"):
        sky.ComputePool(sky.Local(), volumes=[sky.Volume("data", "/data")])
    with pytest.raises(ConfigError, match=r"^sky\.Local nodes cannot mount volumes"):
        sky.ComputePool([sky.Docker(), sky.Local()], volumes=[sky.Volume("data", "/data")])
