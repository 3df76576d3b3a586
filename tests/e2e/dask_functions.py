"""Functions of the tests of Dask, as the nodes import them."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import skyward as sky


def where(_: object = None) -> int:
    """The node that a task runs on."""
    time.sleep(0.05)  # so that one worker does not take all of them
    info = sky.instance_info()
    return -1 if info is None else info.node


@sky.compute
def secret_is_there() -> list[str]:
    """What of a private key a function finds in its environment."""
    return [name for name, value in os.environ.items() if "PRIVATE KEY" in value]


@sky.compute
def end_process() -> None:
    """End the worker, and Dask's with it."""
    os._exit(3)


def listening() -> list[str]:
    """Addresses on which the TCP sockets of this process listen, in /proc's notation."""
    held = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the one that lists them
            held.add(str(descriptor.readlink()))
    found = []
    for table in ("tcp", "tcp6"):
        with open(f"/proc/net/{table}", encoding="ascii") as lines:
            for line in list(lines)[1:]:
                fields = line.split()
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in held:
                    found.append(fields[1].partition(":")[0])
    return found
