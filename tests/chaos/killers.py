"""What is killed, stopped and cut under a pool, each second something else, chosen by a seed.

The processes of a pool are found by a variable of their environment, wherever they run: containers and the stand's
hosts are processes of this machine too.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

from scripts.stand import faults
from scripts.stand.place import Host
from tests.chaos.history import Fault

VARIABLE = "CHAOS_TOKEN"
STOPPED_S = (0.1, 2.0)  # how long something is stopped; shorter than the silence after which a node is given up
LONG_STOP_S = 12.0  # longer than that
CUT_S = (0.2, 6.0)


class Process(NamedTuple):
    """A process of a pool, as this machine numbers it: its agent, a worker, or another."""

    pid: int
    role: str


def processes(token: str) -> list[Process]:
    """All processes of the pool with this token."""
    wanted = f"{VARIABLE}={token}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if wanted not in (entry / "environ").read_bytes().split(b"\0"):
                continue
            command = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:  # it has just ended, or is none of ours
            continue
        role = next((r for name, r in ((b"skyward.runner.worker", "worker"), (b"skyward.runner", "agent"))
                     if name in command), "other")  # fmt: skip
        found.append(Process(int(entry.name), role))
    return found


class Strike(NamedTuple):
    """A kind of fault: how it begins, with a name of the victim; how it is taken back, if it lasts."""

    kind: str
    begin: Callable[[random.Random], tuple[str, Callable[[], None] | None, float] | None]


def kill(token: str, role: str, number: signal.Signals = signal.SIGKILL) -> Strike:
    """End a random process of this role."""

    def begin(chance: random.Random) -> tuple[str, None, float] | None:
        victim = _choose(chance, token, role)
        if victim is None or not _signal(victim.pid, number):
            return None
        return str(victim.pid), None, 0.0

    return Strike(f"{number.name} {role}", begin)


def stop(token: str, role: str, lasts_s: tuple[float, float] = STOPPED_S) -> Strike:
    """Stop a random process of this role for a while."""

    def begin(chance: random.Random) -> tuple[str, Callable[[], None], float] | None:
        victim = _choose(chance, token, role)
        try:
            handle = None if victim is None else os.pidfd_open(victim.pid)
        except ProcessLookupError:  # it has just ended
            handle = None
        if victim is None or handle is None:
            return None
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGSTOP)

        def go_on() -> None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGCONT)
            os.close(handle)

        return str(victim.pid), go_on, chance.uniform(*lasts_s)

    return Strike(f"stop {role}", begin)


def container(command: str, pool: Callable[[], str], lasts_s: tuple[float, float] | None = None) -> Strike:
    """Do something to a random container of the pool, by its engine: kill, stop, or pause for a while."""

    def begin(chance: random.Random) -> tuple[str, Callable[[], None] | None, float] | None:
        found = docker("ps", "-q", "--filter", f"label=skyward.pool={pool()}").split()
        if not found:
            return None
        victim = chance.choice(sorted(found))
        docker(command, victim)
        if lasts_s is None:
            return victim, None, 0.0

        def go_on() -> None:
            docker("un" + command, victim)

        return victim, go_on, chance.uniform(*lasts_s)

    return Strike(f"{command} container", begin)


def cut(hosts: Sequence[Host]) -> Strike:
    """Pull the cable of a random host for a while."""

    def begin(chance: random.Random) -> tuple[str, Callable[[], None], float]:
        host = chance.choice(hosts)
        faults.link_down(host)
        return host.name, lambda: faults.link_up(host), chance.uniform(*CUT_S)

    return Strike("cut link", begin)


def kill_sshd(hosts: Sequence[Host]) -> Strike:
    """Kill a random host's sshd with its connections, and start it again."""

    def begin(chance: random.Random) -> tuple[str, Callable[[], None], float]:
        host = chance.choice(hosts)
        faults.kill_sshd(host)
        return host.name, lambda: faults.start_sshd(host), chance.uniform(0.1, 1.0)

    return Strike("kill sshd", begin)


class Killer:
    """Strikes every `interval_s` seconds while a `with` block runs, in a thread of its own; its end takes all back.

    While `may_strike` says no, it leaves faults out.

    Attributes:
        faults: what was done.
    """

    def __init__(self, strikes: Sequence[Strike], seed: str, interval_s: float, may_strike: Callable[[], bool]) -> None:
        self.faults: list[Fault] = []
        self._strikes, self._interval_s, self._may_strike = strikes, interval_s, may_strike
        self._chance = random.Random(seed)
        self._pending: list[tuple[float, Callable[[], None]]] = []
        self._over = threading.Event()
        self._threads = ThreadPoolExecutor(1, "chaos-killer")

    def __enter__(self) -> Self:
        self._work = self._threads.submit(self._run)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._threads.shutdown()
        self._work.result()

    def _run(self) -> None:
        try:
            following = time.monotonic() + self._interval_s
            while not self._over.wait(0.01):
                self._take_back(time.monotonic())
                if time.monotonic() >= following:
                    following += self._interval_s
                    if self._may_strike():
                        self._strike()
        finally:
            self._take_back(float("inf"))

    def _strike(self) -> None:
        strike = self._chance.choice(self._strikes)
        at = time.monotonic()
        done = strike.begin(self._chance)
        if done is None:  # there is no such process at this moment
            return
        victim, back, lasts_s = done
        self.faults.append(Fault(strike.kind, victim, at, lasts_s))
        if back is not None:
            self._pending.append((time.monotonic() + lasts_s, back))

    def _take_back(self, until: float) -> None:
        due = [item for item in self._pending if item[0] <= until]
        self._pending = [item for item in self._pending if item[0] > until]
        for _, back in due:
            back()


def docker(*words: str) -> str:
    """What a docker command prints; a container may have ended meanwhile, and then it prints nothing."""
    command = os.environ.get("SKYWARD_DOCKER_CLI", "docker")
    return subprocess.run([command, *words], capture_output=True, text=True, check=False).stdout


def _choose(chance: random.Random, token: str, role: str) -> Process | None:
    found = [process for process in processes(token) if process.role == role]
    return chance.choice(sorted(found)) if found else None


def _signal(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
