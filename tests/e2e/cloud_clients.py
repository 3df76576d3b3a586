"""Clients of clouds in processes of their own, which tests end in the middle of a call of the cloud's API."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

StartClients = Callable[[str], subprocess.Popen[bytes]]
_ZYGOTE = """
import os, secrets, sys
import skyward as sky
from skyward.providers.base import PoolRequest
from skyward.providers.cloud import allocation
from tests.e2e.stand import IMAGE
{first}
class Launched(Exception):
    pass
def raise_launched(*_):
    raise Launched
while os.read(0, 1) == b"n":
    pid = os.fork()
    if pid == 0:
        os.write(1, b"%d\\n" % os.getpid())
        os.read(0, 1)
        provider = {provider}
        if sys.argv[1] == "machines":
            allocation.wait_ready = raise_launched
            settings = dict(machine={machine!r}, allocation="on-demand", lease_s=3)
            opened = provider.open(PoolRequest(pool_id=secrets.token_hex(4), **settings))
            try:
                opened.acquire()
            except Launched:
                opened.close()
            os._exit(0)
        settings = dict(image=IMAGE, machine={machine!r}, allocation="on-demand", display="quiet", ttl=3)
        with sky.ComputePool(provider, **settings) as pool:
            os.write(1, b"open\\n")
            os.read(0, 1)
        os._exit(0)
    os.waitpid(pid, 0)
    os.write(1, b"gone\\n")
"""


class Observed(Protocol):
    """An API that tells of each call when it has been carried out: its name, and the TCP port that it came from."""

    on_call: Callable[[str, int], None]


@contextmanager
def clients_of(provider: str, machine: str, first: str) -> Iterator[StartClients]:
    """Start processes that make clients: "n" starts one, which prints its process id and waits for a byte.

    With "pool" a client opens a pool, prints "open", and waits again. With "machines" it rents and returns machines
    without waiting until they are ready: its calls of the cloud are the same.

    Args:
        provider: the expression that makes it.
        machine: the type to rent.
        first: a statement that imports what all clients need.
    """
    started: list[subprocess.Popen[bytes]] = []
    program = _ZYGOTE.format(provider=provider, machine=machine, first=first)

    def start(what: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", program, what]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def say(process: subprocess.Popen[bytes], word: bytes) -> None:
    assert process.stdin
    process.stdin.write(word)


def hear(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout
    return process.stdout.readline().decode().strip()


def calls_until(
    cloud: Observed, zygote: subprocess.Popen[bytes], is_due: Callable[[Sequence[str]], bool], end: signal.Signals
) -> list[str]:
    """Run a client, and signal it when the calls that have been carried out are such; the calls that it made."""
    say(zygote, b"n")
    pid = int(hear(zygote))
    seen: list[str] = []

    def at(name: str, port: int) -> None:
        if _has_socket(pid, port):
            seen.append(name)
            if is_due(seen):
                os.kill(pid, end)

    cloud.on_call = at
    say(zygote, b"g")
    assert hear(zygote) == "gone"
    return seen


def _has_socket(pid: int, port: int) -> bool:
    """Whether a process has a TCP connection from this port."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    inodes = {f"socket:[{line.split()[9]}]" for line in lines if line.split()[1].endswith(f":{port:04X}")}
    try:
        return any(str(entry.readlink()) in inodes for entry in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:  # it has just ended, or closed one of its files
        return False


def reapers_of(provider: str, endpoint: str) -> list[int]:
    """The reapers of clients that use this endpoint of a provider."""
    words = ["pgrep", "-f", f"skyward.providers.reaper {provider}"]
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split() if endpoint in _environment(int(pid))]


def _environment(pid: int) -> str:
    """The environment of a process; "" if it has just ended."""
    try:
        return Path(f"/proc/{pid}/environ").read_text(errors="replace")
    except OSError:
        return ""
