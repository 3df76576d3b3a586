"""A soak: what client, agents and workers hold after a tenth of many calls and pools, and at the end of them.

Run as a program in a fresh process, `python -m tests.chaos.soak SCALE`, it prints its figures and what has grown, as
JSON. SCALE 1 is 1,000,000 calls, 100 pools, and 10,000 each of exceptions, half-read generators and cancelled futures.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, NamedTuple

import skyward as sky
from tests.chaos import functions
from tests.chaos.killers import VARIABLE, processes
from tests.chaos.workload import Result

GROWTH = 1.05  # of memory, from a tenth to the end
WARM_UP_KB = 1024  # more than that, where the tenth is so short that pages and caches are still being filled
CALLS, POOLS, EACH = 1_000_000, 100, 10_000
BATCH = 2000  # calls of one gather
_SETTLE_S = 5.0  # how long threads and descriptors that are just ending may take
_WAIT_S = 60.0


class Usage(NamedTuple):
    """What a process holds: resident memory in KiB, descriptors, threads."""

    memory: int
    descriptors: int
    threads: int


def usage(pid: int) -> Usage:
    """Of a process of this machine."""
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.count(":") == 1
    )
    return Usage(int(status["VmRSS"].split()[0]), len(list(Path(f"/proc/{pid}/fd").iterdir())), int(status["Threads"]))


def grown(names: dict[int, str], early: dict[int, Usage], late: dict[int, Usage], slack: int = 0) -> list[str]:
    """What has grown by 5 % or more, memory by `slack` KiB besides; each process must still be the one it was."""
    found = [f"the {names[pid]} has ended" for pid in early if pid not in late]
    for pid in early.keys() & late.keys():
        for what, before, after in zip(Usage._fields, early[pid], late[pid], strict=True):
            if after > (before * GROWTH + slack if what == "memory" else before):
                found.append(f"the {names[pid]}'s {what} grew from {before} to {after}")
    return found


class Soak:
    """Does things many times, and compares what is held after a tenth of them with what is held at the end."""

    def __init__(self, token: str, slack: int) -> None:
        self._token, self._slack = token, slack
        self.figures: dict[str, Any] = {}
        self.broken: list[str] = []

    def many(self, what: str, count: int, do: Callable[[int], None]) -> None:
        """Do `count` of something: `do` is given how many to do at once."""
        began = time.monotonic()
        do(max(1, count // 10))
        names = {os.getpid(): "client", **{p.pid: f"{p.role}" for p in processes(self._token)}}
        early = self._measure(names)
        do(count - max(1, count // 10))
        late = self._settled(names, early)
        self.broken += [f"After {count} {what}: {text}." for text in grown(names, early, late, self._slack)]
        self.figures[what] = {
            "count": count,
            "seconds": round(time.monotonic() - began, 1),
            **{
                role: {
                    field: [sum(u[i] for pid, u in at.items() if names[pid] == role) for at in (early, late)]
                    for i, field in enumerate(Usage._fields)
                }
                for role in dict.fromkeys(names.values())
            },
        }

    def _measure(self, names: dict[int, str]) -> dict[int, Usage]:
        gc.collect()
        if sys.platform == "linux":
            ctypes.CDLL(None).malloc_trim(0)  # what glibc keeps of freed memory differs by megabytes from pool to pool
        found = {}
        for pid in names:
            try:
                found[pid] = usage(pid)
            except OSError:  # it has ended
                continue
        return found

    def _settled(self, names: dict[int, str], early: dict[int, Usage]) -> dict[int, Usage]:
        """What is held at the end, by one look at memory; threads and descriptors get a while to end."""
        late = self._measure(names)
        deadline = time.monotonic() + _SETTLE_S
        while _without_memory(grown(names, early, late, self._slack)) and time.monotonic() < deadline:
            time.sleep(0.1)
            now = self._measure(names)
            late = {pid: held._replace(memory=late[pid].memory) for pid, held in now.items() if pid in late}
        return late


def _without_memory(found: list[str]) -> list[str]:
    return [text for text in found if "'s memory grew" not in text]


def calls(pool: sky.ComputePool, count: int) -> None:
    """Calls that do nothing, in gathers."""
    while count > 0:
        size = min(count, BATCH)
        assert len(sky.gather(*(functions.nothing() for _ in range(size))) >> pool) == size
        count -= size


def exceptions(pool: sky.ComputePool, count: int) -> None:
    """Calls that raise."""
    for start in range(0, count, 100):
        futures = [functions.fails(number) > pool for number in range(start, min(count, start + 100))]
        for number, future in enumerate(futures, start):
            assert str(future.exception(_WAIT_S)) == f"number {number}"


def generators(pool: sky.ComputePool, count: int) -> None:
    """Streams of which a part is read, some closed and some forgotten."""
    for number in range(count):
        stream = functions.counts(number) >> pool
        assert [next(stream) for _ in range(3)] == [number, number + 1, number + 2]
        if number % 10:
            stream.close()  # type: ignore[attr-defined]
        del stream


def cancelled(pool: sky.ComputePool, count: int) -> None:
    """Calls in the background that are cancelled: while they run, and before."""
    for start in range(0, count, 100):
        futures: list[Future[Any]] = [functions.waits(60) > pool for _ in range(min(100, count - start))]
        time.sleep(0.001)
        for future in futures:
            assert future.cancel()
    done, _ = wait([functions.nothing() > pool for _ in range(10)], _WAIT_S)
    assert len(done) == 10


def pools(token: str, count: int) -> None:
    """Pools that are opened, used once and closed."""
    for _ in range(count):
        with sky.ComputePool(sky.Local(), env={VARIABLE: token}, display="quiet") as pool:
            assert functions.nothing() >> pool is None


def soak(scale: float) -> Result:
    """Everything, in this process, which should be a fresh one."""
    token = os.urandom(8).hex()
    made = Soak(token, 0 if scale >= 1 else WARM_UP_KB)
    each = int(EACH * scale)
    with sky.ComputePool(sky.Local(), nodes=2, env={VARIABLE: token}, display="quiet") as pool:
        made.many("calls", int(CALLS * scale), lambda count: calls(pool, count))
        made.many("exceptions", each, lambda count: exceptions(pool, count))
        made.many("half-read generators", each, lambda count: generators(pool, count))
        made.many("cancelled futures", each, lambda count: cancelled(pool, count))
    made.many("pools", int(POOLS * scale), lambda count: pools(token, count))
    made.broken += [f"Process {p.pid} ({p.role}) was left." for p in processes(token)]
    return Result(made.figures, made.broken)


def run(scale: float) -> Result:
    """The soak in a fresh process."""
    command = [sys.executable, "-m", "tests.chaos.soak", str(scale)]
    # One arena, which gives back at once what is freed: else what glibc keeps for itself goes up and down by megabytes.
    # Nodes of this machine inherit both.
    glibc = {"MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": "0"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env={**os.environ, **glibc})
    if done.returncode:
        return Result({}, [f"The soak ended with status {done.returncode}."])
    return Result(**json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    print(json.dumps(soak(float(sys.argv[1]))._asdict()))
