"""Where the workloads run: processes, containers, the three hosts of the stand; what is broken there, what is left."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import skyward as sky
from scripts.stand.place import Stand
from skyward.nodes.run_directory import runtime_base, temporary_base
from tests.chaos.killers import LONG_STOP_S, Strike, container, cut, docker, kill, kill_sshd, processes, stop

LEASE_S = 20.0  # of the pools: what a cut link leaves on a host ends by then
GONE_S = 5.0  # within so many seconds of the end of a pool, nothing of it is there
IMAGE = sky.Image()


@dataclass(frozen=True)
class Place:
    """A kind of place for pools.

    Attributes:
        settings: of the pool.
        host: where this machine is reached from its nodes.
        strikes: what can be broken, given the token of a pool and a way to ask for its id.
        gone_s: within so many seconds of the end of a pool nothing is left of it.
        left: what is left of a pool there, besides processes and directories of this machine.
    """

    name: str
    settings: dict[str, Any]
    host: str
    strikes: Callable[[str, Callable[[], str]], list[Strike]]
    gone_s: float
    left: Callable[[str], list[str]]


def local() -> Place:
    """Processes of this machine."""
    settings = {"provider": sky.Local(), "nodes": 4}
    return Place("processes", settings, "127.0.0.1", lambda token, _: _common(token), GONE_S, lambda _: [])


def containers() -> Place:
    """Containers of this machine's engine."""

    def strikes(token: str, pool: Callable[[], str]) -> list[Strike]:
        by_engine = [container("kill", pool), container("stop", pool), container("pause", pool, (0.1, 2.0))]
        return [*_common(token), *by_engine]

    settings = {"provider": sky.Docker(), "nodes": 4, "image": IMAGE}
    return Place("containers", settings, "127.0.0.1", strikes, GONE_S, _containers)


def three_hosts(stand: Stand) -> Place:
    """The three hosts of the stand, reached by SSH."""
    facts = json.loads(stand.hosts_file.read_text())
    provider = sky.SSH(*facts["hosts"], key=facts["key"], known_hosts=facts["known_hosts"])

    def strikes(token: str, _: Callable[[], str]) -> list[Strike]:
        return [*_common(token), cut(stand.hosts), cut(stand.hosts), kill_sshd(stand.hosts)]

    def left(pool: str) -> list[str]:
        from tests.e2e.stand import left_on

        return [f"{what} on {host.name}" for host in stand.hosts for what in left_on(host, pool)]

    settings = {"provider": provider, "nodes": 3, "image": IMAGE}
    return Place("hosts", settings, stand.gateway, strikes, LEASE_S + 15, left)


def _common(token: str) -> list[Strike]:
    return [
        kill(token, "worker"),
        kill(token, "agent"),
        kill(token, "agent", signal.SIGTERM),
        stop(token, "worker"),
        stop(token, "agent"),
    ]


def long_stop(token: str) -> Strike:
    """An agent that is stopped for longer than a node may be silent."""
    return stop(token, "agent", (LONG_STOP_S, LONG_STOP_S))


def leftovers(place: Place, pool: str, token: str, before: tuple[int, int]) -> tuple[str, ...]:
    """What is left of a pool once it may be expected to be gone; `before` is `held()` before it was opened."""
    deadline = time.monotonic() + place.gone_s
    while (found := _look(place, pool, token, before)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return tuple(found)


def held() -> tuple[int, int]:
    """Descriptors and threads of this process."""
    return len(_descriptors()), threading.active_count()


def _look(place: Place, pool: str, token: str, before: tuple[int, int]) -> list[str]:
    found = [f"{process.role} process {process.pid}" for process in processes(token)]
    directories = [base / f"skyward-{pool}" for base in {runtime_base(), temporary_base()}]
    found += [f"directory {path}" for path in directories if path.exists()]
    found += place.left(pool)
    now = held()
    if now[0] > before[0]:
        found.append(f"{now[0] - before[0]} descriptors of the client ({', '.join(_descriptors())})")
    if now[1] > before[1]:
        found.append(f"{now[1] - before[1]} threads of the client ({', '.join(t.name for t in threading.enumerate())})")
    return found


def _descriptors() -> list[str]:
    """What this process has open, without the connections to engines that the Docker SDK keeps for the next request."""
    names = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            name = str(entry.readlink())
            if not (name.startswith("socket:") and _peer(int(entry.name)).endswith("docker.sock")):
                names.append(name)
        except OSError:  # it has just been closed
            continue
    return sorted(names)


def _peer(descriptor: int) -> str:
    with socket.socket(fileno=os.dup(descriptor)) as sock:
        try:
            return str(sock.getpeername())
        except OSError:  # it listens, or its peer is gone
            return ""


def _containers(pool: str) -> list[str]:
    return [f"container {name}" for name in docker("ps", "-aq", "--filter", f"label=skyward.pool={pool}").split()]
