"""GPUs of this machine, as NVIDIA's driver tells of them through its library NVML; nothing where that is not there."""

from __future__ import annotations

import ctypes
from typing import Any

_LIBRARY = "libnvidia-ml.so.1"
_TEXT_BYTES = 96


def listed(visible: str) -> list[str]:
    """The GPUs that a `CUDA_VISIBLE_DEVICES` names, up to the first -1 or nothing, which end it."""
    names = [name.strip() for name in visible.split(",")]
    end = next((place for place, name in enumerate(names) if name in ("", "-1")), len(names))
    return names[:end]


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))  # percent


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Gpus:
    """The GPUs that this process sees. The library stays loaded: its start takes a fraction of a second.

    Args:
        library: NVML.
        visible: a `CUDA_VISIBLE_DEVICES` that chooses some of them, by index or by the beginning of their UUIDs; None
            for all.

    Attributes:
        names: of each, with how `CUDA_VISIBLE_DEVICES` has called it, else by its index.
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
        """Of each: `name`, `utilization` (0 to 1), `memory` and `memory_limit` in bytes; None for what is not told."""
        pairs = zip(self.names, self._handles, strict=True)
        return [{"name": name, **self._read(handle)} for (_, name), handle in pairs]

    def _chosen(self, visible: str, there: dict[str, ctypes.c_void_p]) -> list[tuple[str, ctypes.c_void_p]]:
        """As CUDA reads the variable: what comes after the first name of no GPU does not count."""
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
