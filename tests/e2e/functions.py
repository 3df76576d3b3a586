"""Functions the end-to-end tests send to nodes; a module of their own, since nodes have no pytest to import."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import skyward as sky


@sky.compute
def double(x: int) -> int:
    return x * 2


@sky.compute
async def double_later(x: int, seconds: float = 0.0) -> int:
    await asyncio.sleep(seconds)
    if x < 0:
        raise ValueError(f"{x} is below 0")
    return x * 2


@sky.compute
def where() -> tuple[int, int]:
    info = sky.instance_info()
    assert info is not None
    return info.node, os.getpid()


@sky.compute
def slow(x: int, seconds: float) -> int:
    time.sleep(seconds)
    return x


@sky.compute
def count(n: int) -> Generator[int, None, str]:
    yield from range(n)
    return f"{n} items"


@sky.compute
def endless(name: str = "") -> Iterator[int]:
    """Yields the thread that it runs in, for ever."""
    try:
        while True:
            yield threading.get_ident()
    finally:
        print("closed", name)


@sky.compute
def greet(name: str, *, greeting: str = "hello") -> str:
    return f"{greeting} {name}"


@sky.compute
def place() -> dict[str, Any]:
    info = sky.instance_info()
    assert info is not None
    return {
        "node": info.node,
        "total": info.total_nodes,
        "head": info.is_head,
        "addr": info.head_addr,
        "port": info.head_port,
        "gpus": info.accelerators,
        "peers": [peer.node for peer in info.peers],
        "job": info.job_id,
        "env": "COMPUTE_POOL" in os.environ,
    }


@sky.compute
def lengths(names: list[str]) -> dict[str, int]:
    """How long the values of variables are, which it does not print."""
    return {name: len(os.environ.get(name, "")) for name in names}


@sky.compute
def files_beside(*names: str) -> list[str]:
    """The files with these names, or in folders of these names, in the directory of `sys.path` that has the first."""
    root = next(Path(place) for place in sys.path if (Path(place) / names[0]).exists())
    files = [path.relative_to(root) for path in root.rglob("*") if path.is_file()]
    return sorted(file.as_posix() for file in files if file.parts[0] in names)


@sky.compute
def positive(number: int) -> int:
    """Fails for others."""
    if number <= 0:
        raise ValueError(f"{number} is not positive")
    return number


@sky.compute
def appended(items: list[int]) -> list[int]:
    """What it changes is its own."""
    items.append(1)
    return items


@sky.compute
def sleeping_node(seconds: float) -> int:
    """The node that has slept."""
    time.sleep(seconds)
    info = sky.instance_info()
    assert info is not None
    return info.node
