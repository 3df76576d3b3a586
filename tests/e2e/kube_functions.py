"""Functions that the tests of `sky.Kubernetes` send to nodes; nothing here is imported from pytest."""

from __future__ import annotations

import os
import time
from pathlib import Path

import skyward as sky


@sky.compute
def fill(gigabytes: float) -> int:
    """Use so much memory."""
    return len(bytearray(int(gigabytes * (1 << 30))))


@sky.compute
def end_worker() -> None:
    """End the process of the call."""
    os._exit(1)


@sky.compute
def write(megabytes: int) -> None:
    """Fill the working directory, and stay a while."""
    Path("filled").write_bytes(bytes(megabytes << 20))
    time.sleep(200.0)
