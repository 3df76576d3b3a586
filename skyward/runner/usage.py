"""Measurement of the resources that a node uses: CPUs, memory, network and GPUs.

CPUs and memory are read from cgroups (v2 or v1) and /proc: of the cgroup if the node is a container, else of the
process tree of the node's agent. GPUs are those that NVIDIA's driver reports through its program nvidia-smi.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from skyward.runner.children import cgroup_folders
from skyward.runner.config import GPUS_VAR
from skyward.system import time

_SHORTEST_S = 0.25  # shortest interval for which a rate is computed
_LONGEST_S = 10.0
_CGROUPS = Path("/sys/fs/cgroup")
_PROC = Path("/proc")
_FIELDS = "index,uuid,name,utilization.gpu,memory.used,memory.total"
_ASK_S = 20.0
_MIB = 1 << 20


class _Sample(NamedTuple):
    at: float  # monotonic
    cpu_s: float
    received: int
    sent: int


class UsageMeter:
    """Measures the resource usage of this node; for one thread at a time.

    Args:
        of_processes: whether the node consists of plain processes on its machine, not of a container.
        cgroups, proc: the kernel's file systems.
    """

    def __init__(self, *, of_processes: bool, cgroups: Path = _CGROUPS, proc: Path = _PROC) -> None:
        self._proc = proc
        self._last: _Sample | None = None
        source = None if of_processes else _cgroup(cgroups, proc)
        self._source: Callable[[], tuple[float, int]] = source.read if source else self._read_tree
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        self._limit = min(machine, (source and source.limit()) or machine)

    def measure(self) -> dict[str, Any]:
        """Return the current usage; waits at most 0.25 s, not at all if the last measurement is 0.25 to 10 s old.

        Returns:
            `cores` in use, `cpu_s` used so far, `memory` and `memory_limit` in bytes, `received` and
            `sent` bytes so far of all interfaces but loopback, both per second as `received_rate` and `sent_rate`, and
            `gpus`, each with `name`, `utilization` (0 to 1), `memory` and `memory_limit`.
        """
        before = self._last
        now = time.monotonic()
        if before is None or now - before.at > _LONGEST_S:
            before, _ = self._sample()
        if (left := before.at + _SHORTEST_S - now) > 0:
            time.sleep(left)
        last, memory = self._sample()
        self._last = last
        span = last.at - before.at
        return {
            "cores": max(0.0, last.cpu_s - before.cpu_s) / span,  # the sum falls when a process ends
            "cpu_s": last.cpu_s,
            "memory": memory,
            "memory_limit": self._limit,
            "received": last.received,
            "sent": last.sent,
            "received_rate": max(0, last.received - before.received) / span,
            "sent_rate": max(0, last.sent - before.sent) / span,
            "gpus": [{"name": gpu.name, **gpu.figures} for gpu in gpus(os.environ.get(GPUS_VAR))],
        }

    def _sample(self) -> tuple[_Sample, int]:
        cpu_s, memory = self._source()
        received, sent = _network(self._proc)
        return _Sample(time.monotonic(), cpu_s, received, sent), memory

    def _read_tree(self) -> tuple[float, int]:
        """Return CPU seconds and bytes of memory of this process and all its running descendants."""
        ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
        cpu_s, memory, left = 0.0, 0, [os.getpid()]
        while left:
            folder = self._proc / str(left.pop())
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                pages = int((folder / "statm").read_text().split()[1])
                left += map(int, _children(folder))
            except (OSError, IndexError):
                continue  # it has just ended
            cpu_s += sum(map(int, fields[11:15])) / ticks  # including children that have been waited for
            memory += pages * page
        return cpu_s, memory


# CPUs, memory, network ------------------------------------------------------------------------------------------------


class _V2:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self) -> tuple[float, int]:
        used = int((self._folder / "memory.current").read_text())
        cache = _fields(self._folder / "memory.stat").get("inactive_file", 0)
        return _fields(self._folder / "cpu.stat")["usage_usec"] / 1e6, max(0, used - cache)

    def limit(self) -> int | None:
        text = (self._folder / "memory.max").read_text().strip()
        return None if text == "max" else int(text)


class _V1:
    def __init__(self, cpu: Path, memory: Path) -> None:
        self._cpu, self._memory = cpu, memory

    def read(self) -> tuple[float, int]:
        used = int((self._memory / "memory.usage_in_bytes").read_text())
        cache = _fields(self._memory / "memory.stat").get("total_inactive_file", 0)
        return int((self._cpu / "cpuacct.usage").read_text()) / 1e9, max(0, used - cache)

    def limit(self) -> int | None:
        return int((self._memory / "memory.limit_in_bytes").read_text())


def _cgroup(root: Path, proc: Path) -> _V2 | _V1 | None:
    """Return the cgroup of this process; None if it cannot be determined."""
    candidates: list[_V1 | _V2] = [_V2(folder) for folder in cgroup_folders("", proc / "self/cgroup", root)]
    cpu = cgroup_folders("cpuacct", proc / "self/cgroup", root)
    memory = cgroup_folders("memory", proc / "self/cgroup", root)
    candidates += map(_V1, cpu, memory)
    return next((each for each in candidates if _can_read(each)), None)


def _can_read(source: _V2 | _V1) -> bool:
    try:
        source.read()
        source.limit()
    except (OSError, KeyError, ValueError):
        return False
    return True


def _fields(path: Path) -> dict[str, int]:
    """Parse a file whose lines each have a name and a number."""
    return {name: int(value) for name, _, value in (line.partition(" ") for line in path.read_text().splitlines())}


def _children(folder: Path) -> Iterator[str]:
    """Yield the child processes of all threads of a process."""
    for task in (folder / "task").iterdir():
        yield from (task / "children").read_text().split()


def _network(proc: Path) -> tuple[int, int]:
    """Return the bytes received and sent by all interfaces except loopback."""
    received = sent = 0
    try:
        lines = (proc / "net/dev").read_text().splitlines()[2:]
    except OSError:
        return 0, 0
    for line in lines:
        name, _, figures = line.partition(":")
        if name.strip() != "lo":
            numbers = figures.split()
            received, sent = received + int(numbers[0]), sent + int(numbers[8])
    return received, sent


# GPUs -----------------------------------------------------------------------------------------------------------------


def listed(visible: str) -> list[str]:
    """Return the GPUs named in a `CUDA_VISIBLE_DEVICES`, up to the first -1 or empty entry, which ends the list."""
    names = [name.strip() for name in visible.split(",")]
    end = next((place for place, name in enumerate(names) if name in ("", "-1")), len(names))
    return names[:end]


class Gpu(NamedTuple):
    """A GPU as NVIDIA's driver reports it.

    Attributes:
        called: its entry in `CUDA_VISIBLE_DEVICES`; its index if that is not set.
        name: of its model.
        figures: `utilization` (0 to 1), `memory` and `memory_limit` in bytes; None if unknown.
    """

    called: str
    name: str
    figures: dict[str, float | None]


def gpus(visible: str | None = None, program: str = "nvidia-smi") -> list[Gpu]:
    """Return the GPUs that this process sees; none without a driver.

    Args:
        visible: value of `CUDA_VISIBLE_DEVICES` that selects some of them, by index or by the beginning of their UUIDs:
            as in CUDA, everything after the first entry that matches no GPU is ignored. None for all.
        program: NVIDIA's, which comes with the driver.
    """
    command = [program, f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_ASK_S).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    there = [[field.strip() for field in line.split(",")] for line in answer.splitlines()]
    if visible is None:
        return [_gpu(fields[0], fields) for fields in there]
    found = []
    for called in listed(visible):
        fields = next((each for each in there if called == each[0] or each[1].startswith(called)), None)
        if fields is None:
            break
        found.append(_gpu(called, fields))
    return found


def _gpu(called: str, fields: list[str]) -> Gpu:
    use, memory, limit = (float(text) if text.replace(".", "").isdigit() else None for text in fields[3:])
    figures = {
        "utilization": None if use is None else use / 100,
        "memory": None if memory is None else int(memory) * _MIB,
        "memory_limit": None if limit is None else int(limit) * _MIB,
    }
    return Gpu(called, fields[2], figures)
