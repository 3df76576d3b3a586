"""Functions and a plugin of the tests of replaced nodes; nodes have no pytest to import."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import skyward as sky


def prepared() -> sky.Plugin:
    """Sets up each worker by itself."""

    @contextmanager
    def around_app(info: sky.InstanceInfo) -> Iterator[None]:
        os.environ["PREPARED_AS"] = str(info.node)
        yield

    return sky.Plugin.create("prepared").with_around_app(around_app)


@sky.compute
def place() -> tuple[int, int, int, str]:
    """Node, its agent's process, how many nodes it knows of, and as which node it was set up."""
    info = sky.instance_info()
    assert info is not None
    return info.node, os.getppid(), len(info.peers), os.environ["PREPARED_AS"]


@sky.compute
def begins(mark: str, seconds: float) -> int:
    """Leaves a mark when it begins, and says on which node it ran."""
    with (Path(tempfile.gettempdir()) / mark).open("a") as file:
        file.write("x")
    time.sleep(seconds)
    return place.local()[0]


@sky.compute
def ends_after(seconds: float) -> int:
    time.sleep(seconds)
    info = sky.instance_info()
    assert info is not None
    return info.node


@sky.compute
def marks(mark: str) -> int:
    path = Path(tempfile.gettempdir()) / mark
    return len(path.read_text()) if path.exists() else 0
