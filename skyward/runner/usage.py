"""Measurement of the resources that a node uses: CPUs, memory, network and GPUs.

CPUs and memory are read from cgroups (v2 or v1) and /proc: of the cgroup if the node is a container, else of the
process tree of the node's agent. GPUs are those that NVIDIA's driver reports through its library NVML.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from skyward.runner.config import GPUS_VAR
from skyward.system import time

_SHORTEST_S = 0.25  # shortest interval for which a rate is computed
_LONGEST_S = 10.0
_CGROUPS = Path("/sys/fs/cgroup")
_PROC = Path("/proc")
_LIBRARY = "libnvidia-ml.so.1"
_TEXT_BYTES = 96


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
        self._gpus: Gpus | None = None
        source = None if of_processes else _cgroup(cgroups, proc)
        self._source: Callable[[], tuple[float, int]] = source.read if source else self._read_tree
        self._limit = min(filter(None, (source.limit() if source else None, _machine_memory(proc))), default=None)

    def measure(self) -> dict[str, Any]:
        """Return the current usage; waits at most 0.25 s, not at all if the last measurement is 0.25 to 10 s old.

        Returns:
            `cores` in use, `cpu_s` used so far, `memory` and `memory_limit` in bytes (None: unknown), `received` and
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
        if self._gpus is None:
            self._gpus = Gpus(visible=os.environ.get(GPUS_VAR))  # those of the node: a container shows no others anyway
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
            "gpus": self._gpus.read(),
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
    """Return the cgroup of this process; None if it cannot be determined.

    A container may see its own cgroup at the root of the mount while /proc reports its path on the host, so both are
    tried.
    """
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
        split = [line.split(":", 2) for line in lines]
        paths = {name: path.lstrip("/") for _, names, path in split for name in names.split(",")}
        candidates = [_V2(root / path) for path in (paths.get("", ""), "")]
        if "memory" in paths and "cpuacct" in paths:
            cpu, memory = root / "cpuacct", root / "memory"
            both = [_V1(cpu / paths["cpuacct"], memory / paths["memory"]), _V1(cpu, memory)]
            return next((each for each in both if _can_read(each)), None)
    except (OSError, ValueError):
        return None
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


def _machine_memory(proc: Path) -> int | None:
    """Return the machine's memory in bytes; None if unknown."""
    try:
        line = (proc / "meminfo").read_text().partition("\n")[0]
    except OSError:
        return None
    return int(line.split()[1]) * 1024


# GPUs -----------------------------------------------------------------------------------------------------------------


def listed(visible: str) -> list[str]:
    """Return the GPUs named in a `CUDA_VISIBLE_DEVICES`, up to the first -1 or empty entry, which ends the list."""
    names = [name.strip() for name in visible.split(",")]
    end = next((place for place, name in enumerate(names) if name in ("", "-1")), len(names))
    return names[:end]


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))  # percent


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Gpus:
    """The GPUs that this process sees. The library stays loaded, as initialising it takes a fraction of a second.

    Args:
        library: file name of NVML.
        visible: value of `CUDA_VISIBLE_DEVICES` that selects some of them, by index or by the beginning of their UUIDs;
            None for all.

    Attributes:
        names: for each, the entry in `CUDA_VISIBLE_DEVICES` (its index if that is not set) and its name.
    """

    def __init__(self, library: str = _LIBRARY, visible: str | None = None) -> None:
        self.names: tuple[tuple[str, str], ...] = ()
        self._handles: list[ctypes.c_void_p] = []
        try:
            self._nvml = ctypes.CDLL(library)
        except OSError:
            return  # no driver
        count = ctypes.c_uint()
        if self._nvml.nvmlInit_v2() or self._nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return  # the driver is not running, or refuses this process
        there = {}
        for index in range(count.value):
            handle = ctypes.c_void_p()
            if not self._nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
                there[str(index)] = handle
        chosen = list(there.items()) if visible is None else self._chosen(visible, there)
        self._handles = [handle for _, handle in chosen]
        self.names = tuple((called, self._text("Name", handle)) for called, handle in chosen)

    def read(self) -> list[dict[str, Any]]:
        """Return for each `name`, `utilization` (0 to 1), `memory` and `memory_limit` in bytes; None if unknown."""
        pairs = zip(self.names, self._handles, strict=True)
        return [{"name": name, **self._read(handle)} for (_, name), handle in pairs]

    def _chosen(self, visible: str, there: dict[str, ctypes.c_void_p]) -> list[tuple[str, ctypes.c_void_p]]:
        """Return the selected GPUs as CUDA does: everything after the first entry that matches no GPU is ignored."""
        found = []
        for called in listed(visible):
            handle = there.get(called)
            if handle is None and called.startswith("GPU-"):
                handle = next((each for each in there.values() if self._text("UUID", each).startswith(called)), None)
            if handle is None:
                break
            found.append((called, handle))
        return found

    def _text(self, what: str, handle: ctypes.c_void_p) -> str:
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        self._nvml[f"nvmlDeviceGet{what}"](handle, text, _TEXT_BYTES)
        return text.value.decode(errors="replace")

    def _read(self, handle: ctypes.c_void_p) -> dict[str, Any]:
        use, memory = _Utilization(), _Memory()
        knows_use = not self._nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(use))
        knows_memory = not self._nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
        return {
            "utilization": use.gpu / 100 if knows_use else None,
            "memory": memory.used if knows_memory else None,
            "memory_limit": memory.total if knows_memory else None,
        }
