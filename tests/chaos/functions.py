"""What the workloads run on nodes; a module without pytest, since nodes have none to import.

A run tells the collector of its begin before it does anything else, over a TCP connection of its process: the kernel
delivers what has been written even when the process is killed the moment after, and once a cut link is there again.
"""

from __future__ import annotations

import itertools
import os
import socket
import threading
import time
import zlib

import skyward as sky
from tests.chaos.history import ALWAYS

Address = tuple[str, int]
_PROCESS = f"{os.getpid()}-{os.urandom(3).hex()}"  # pids repeat between containers
_lock = threading.Lock()
_sequence = itertools.count()
_journals: dict[Address, socket.socket] = {}
_CONNECT_S = 20.0
QUIET = 50  # calls whose number this divides print nothing; the client cancels some of these


def model(number: int, data: bytes) -> int:
    """What a call returns."""
    return zlib.crc32(data, number & 0xFFFFFFFF)


def _run(number: int, collector: Address, milliseconds: float, data: bytes) -> tuple[int, bytes]:
    _tell(collector, f"B {number}")
    if number % QUIET:  # the others may be interrupted between the number of a line and the line
        with _lock:
            print(f"chaos {_PROCESS} {next(_sequence)} {number}")
    time.sleep(milliseconds / 1000)
    answer = model(number, data), data[::-1]
    _tell(collector, f"E {number}")
    return answer


def _tell(collector: Address, what: str) -> None:
    line = f"{what} {_PROCESS} {time.monotonic():.6f}\n".encode()
    with _lock:
        journal = _journals.get(collector)
        if journal is None:
            journal = _journals[collector] = socket.create_connection(collector, _CONNECT_S)
            journal.settimeout(None)
        journal.sendall(line)


@sky.compute
def once(number: int, collector: Address, milliseconds: float, data: bytes) -> tuple[int, bytes]:
    """A call that may not run twice."""
    return _run(number, collector, milliseconds, data)


@sky.compute(retries=2)
def thrice(number: int, collector: Address, milliseconds: float, data: bytes) -> tuple[int, bytes]:
    """A call that may run again, and may be lost."""
    return _run(number, collector, milliseconds, data)


@sky.compute(retries=ALWAYS)
def always(number: int, collector: Address, milliseconds: float, data: bytes) -> tuple[int, bytes]:
    """A call that must get a result."""
    return _run(number, collector, milliseconds, data)
