"""The limits of a node's container: locked memory, stack, open files, shared memory; and its GPUs.

An engine may not be able to grant all of it; what it can is read from its process, and learnt from its refusals.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

UNLIMITED = -1
_CAP_SYS_RESOURCE = 24
_STACK_BYTES = 64 * 1024**2
_MOST_FILES = 1024 * 1024  # some programs close every possible descriptor when they start: no more than systems give
_GIB = 1024**3
_HOOK = "nvidia-container-runtime-hook"  # an engine that finds it on its PATH at start can serve `--gpus`


def wanted_limits(engine_pid: int | None, proc: Path = Path("/proc")) -> Mapping[str, int]:
    """The limits to ask an engine for, by name, each for soft and hard.

    Locked memory without limit (pinned and RDMA buffers of GPU frameworks), a stack of 64 MiB (deep native recursion in
    compilers of kernels), as many files as the engine itself may open (data loaders pass tensors by descriptor).
    What the engine's process visibly cannot grant is left out.

    Args:
        engine_pid: process of the engine; None when unknown: then refusals tell.
        proc: where the process file system is mounted.
    """
    try:
        status = (proc / str(engine_pid) / "status").read_text()
        table = (proc / str(engine_pid) / "limits").read_text()
    except OSError:
        status = table = ""
    return limits_by(status, table)


def limits_by(status: str, table: str) -> Mapping[str, int]:
    """The same, from what the kernel says of an engine's process: its files `status` and `limits`, "" where unknown."""
    wanted = {"memlock": UNLIMITED, "stack": _STACK_BYTES}
    if not table:
        return MappingProxyType(wanted)
    files = _hard_limit(table, "Max open files")
    if files != UNLIMITED:
        wanted["nofile"] = min(files, _MOST_FILES)
    capabilities = re.search(r"^CapEff:\s*([0-9a-f]+)", status, re.MULTILINE)
    may_raise = capabilities is None or int(capabilities[1], 16) >> _CAP_SYS_RESOURCE & 1
    if not may_raise and _hard_limit(table, "Max locked memory") != UNLIMITED:
        del wanted["memlock"]
    processes = _hard_limit(table, "Max processes")
    if not may_raise and processes != UNLIMITED:
        wanted["nproc"] = processes  # Podman asks for 4,194,304 where a container has other limits without this one
    return MappingProxyType(wanted)


def shm_bytes(memory_bytes: int | None) -> int:
    """Size of a node's /dev/shm: half of the memory it may use, at most 64 GiB.

    Docker's 64 MB end data loaders and collectives with a bus error. Half is what Linux gives a machine's own
    /dev/shm: pages count only when used. The cap makes a leak on a large machine fill /dev/shm, not the machine.
    """
    memory = memory_bytes or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(memory // 2, 64 * _GIB)


def _hard_limit(table: str, name: str) -> int:
    row = re.search(rf"^{name}\s+\S+\s+(\S+)", table, re.MULTILINE)
    return UNLIMITED if row is None or row[1] == "unlimited" else int(row[1])


def visible_gpus(driver: Path = Path("/proc/driver/nvidia/gpus")) -> int | None:
    """Number of NVIDIA GPUs the kernel's driver shows on this machine; None where it shows nothing at all."""
    try:
        return len(list(driver.iterdir()))
    except OSError:
        return None


def gives_gpus(info: Mapping[str, Any], engine_pid: int | None, proc: Path = Path("/proc")) -> bool | None:
    """Whether an engine can hand GPUs to containers; None if only trying shows that.

    Args:
        info: the engine's description of itself.
        engine_pid: its process.
        proc: where the process file system is mounted.
    """
    if "nvidia" in info.get("Runtimes", {}) or any("nvidia" in str(d) for d in info.get("DiscoveredDevices") or ()):
        return True
    try:
        environ = (proc / str(engine_pid) / "environ").read_bytes()
    except OSError:  # another user's process
        return None
    if engine_pid == 1:  # systemd listens for the engine, whose own environment is not known then
        return None
    variables = dict(entry.partition(b"=")[::2] for entry in environ.split(b"\0"))
    return shutil.which(_HOOK, path=os.fsdecode(variables.get(b"PATH", b""))) is not None
