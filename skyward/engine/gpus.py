"""What is known of NVIDIA GPUs before a container asks for one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_HOOK = "nvidia-container-runtime-hook"  # an engine that finds it on its PATH at start can serve `--gpus`


def visible_gpus(driver: Path = Path("/proc/driver/nvidia/gpus")) -> int | None:
    """Number of NVIDIA GPUs the kernel's driver shows on this machine; None where it shows nothing at all."""
    try:
        return len(list(driver.iterdir()))
    except OSError:
        return None


def gives_gpus(info: Mapping[str, Any], engine_pid: int | None, proc: Path = Path("/proc")) -> bool | None:
    """Whether an engine can hand GPUs to containers; None when only trying tells.

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
