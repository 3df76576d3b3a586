"""Functions and a plugin that the tests of ranks send to nodes; nodes have no pytest to import."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import skyward as sky
from skyward.runtime.ranks import gather

_met: list[list[int]] = []  # what the hooks gathered, by order of their entry


def note(values: list[int]) -> None:
    """A function of the module, and so of the module's list: nested functions are sent with copies of what they use."""
    _met.append(values)


def place() -> sky.InstanceInfo:
    info = sky.instance_info()
    assert info is not None
    return info


def mesh() -> sky.Plugin:
    """A plugin whose hooks gather, and that notes what they saw."""

    @contextmanager
    def meet(info: sky.InstanceInfo) -> Iterator[None]:
        note(gather(info.global_worker_index * 10, name="mesh: app"))
        assert os.environ["MESH_TOKEN"] == "of the plugin"
        yield

    @contextmanager
    def meet_again(info: sky.InstanceInfo) -> Iterator[None]:
        note(gather(-info.global_worker_index, name="mesh: process", timeout_s=30))
        yield

    def bootstrap(_cluster: sky.Cluster) -> list[str]:
        return ["echo once >> bootstrapped"]

    plugin = sky.Plugin.create("mesh").with_around_app(meet).with_around_process(meet_again)
    return plugin.with_bootstrap(bootstrap).with_secrets(MESH_TOKEN="of the plugin")


@sky.compute
def met() -> list[list[int]]:
    return _met


@sky.compute
def bootstraps() -> str:
    return Path("bootstrapped").read_text()


@sky.compute
def who() -> tuple[sky.InstanceInfo, int, str]:
    print(f"rank {place().global_worker_index} speaks")
    return place(), os.getpid(), os.environ["COMPUTE_POOL"]


@sky.compute
def total(value: int) -> int:
    return sum(gather(place().global_worker_index + value, name="total"))


@sky.compute
def part() -> list[int]:
    return sky.shard(list(range(103)))


@sky.compute
def variable(name: str) -> str | None:
    return os.environ.get(name)


@sky.compute
def first_process_says(name: str) -> bool:
    """Whether the environment that the node was started with has a variable of this name."""
    environment = Path(f"/proc/{os.getppid()}/environ").read_bytes()
    return f"{name}=".encode() in environment


@sky.compute
def fails_on(rank: int) -> list[int]:
    if place().global_worker_index == rank:
        raise LookupError("no such shard")
    return gather(1, name="after the failure")


@sky.compute
def returns_on(rank: int) -> list[int]:
    return [] if place().global_worker_index == rank else gather(1, name="without one")


@sky.compute
def is_killed_on(rank: int) -> list[int]:
    if place().global_worker_index == rank:
        os.kill(os.getpid(), 9)
    return gather(1, name="without the dead")


@sky.compute
def alone() -> list[int]:
    return gather(1, name="alone")


def broken(rank: int, how: str) -> sky.Plugin:
    """A plugin that one rank does not get through: it raises, sleeps, or dies; the others gather."""

    @contextmanager
    def enter(info: sky.InstanceInfo) -> Iterator[None]:
        if info.global_worker_index == rank:
            if how == "raises":
                raise LookupError("no such device")
            if how == "dies":
                os.kill(os.getpid(), 9)
            time.sleep(600)
        gather(1, name="broken: address")
        yield

    return sky.Plugin.create("broken").with_around_app(enter)
