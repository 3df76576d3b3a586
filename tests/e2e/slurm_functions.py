"""Functions that the tests of `sky.Slurm` send to nodes; nothing here is imported from pytest."""

from __future__ import annotations

import os
import socket
import time

import skyward as sky


@sky.compute
def where() -> tuple[str, int]:
    """The machine, and the number of the user."""
    return socket.gethostname(), os.getuid()


@sky.compute
def variables() -> dict[str, str]:
    """The environment of calls."""
    return dict(os.environ)


@sky.compute
def echo(data: bytes) -> bytes:
    """The same bytes."""
    return data


@sky.compute
def work(seconds: float) -> str:
    """Take so long; then the machine."""
    time.sleep(seconds)
    return socket.gethostname()


@sky.compute
def fill(gigabytes: float) -> int:
    """Take memory, and stay a while."""
    taken = bytearray(int(gigabytes * 2**30))
    for place in range(0, len(taken), 4096):
        taken[place] = 1
    time.sleep(30)
    return len(taken)
