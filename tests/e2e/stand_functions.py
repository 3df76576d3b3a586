"""Functions that tests send to the stand's hosts; a module without pytest, since nodes have none to import."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import skyward as sky


@sky.compute
def where() -> str:
    return socket.gethostname()


@sky.compute
def places() -> dict[str, object]:
    """Which node it is, and where."""
    info = sky.instance_info()
    assert info
    return {"node": info.node, "host": socket.gethostname()}


@sky.compute(retries=3)
def work(number: int, seconds: float) -> tuple[int, str]:
    """Say which call it was and where it ran."""
    time.sleep(seconds)
    return number, socket.gethostname()


@sky.compute
def work_once(number: int, seconds: float) -> tuple[int, str]:
    """The same, for calls that may not run twice."""
    time.sleep(seconds)
    return number, socket.gethostname()


@sky.compute
def wait(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


@sky.compute
def task_secret() -> str:
    """What a task of a swarm has been given by the engine."""
    return Path("/run/secrets/skyward").read_text()
