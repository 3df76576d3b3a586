"""GPUs of this machine, as NVIDIA's driver tells of them through its library NVML; nothing where that is not there."""

from __future__ import annotations

import ctypes
from typing import Any

_LIBRARY = "libnvidia-ml.so.1"
_NAME_BYTES = 96


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))  # percent


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Gpus:
    """The GPUs that this process sees. The library stays loaded: its start takes a fraction of a second."""

    def __init__(self, library: str = _LIBRARY) -> None:
        self._handles: list[tuple[str, ctypes.c_void_p]] = []
        try:
            self._nvml = ctypes.CDLL(library)
        except OSError:
            return  # no driver
        count = ctypes.c_uint()
        if self._nvml.nvmlInit_v2() or self._nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return  # the driver is not running, or refuses this process
        for index in range(count.value):
            handle, name = ctypes.c_void_p(), ctypes.create_string_buffer(_NAME_BYTES)
            if not self._nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
                self._nvml.nvmlDeviceGetName(handle, name, _NAME_BYTES)
                self._handles.append((name.value.decode(errors="replace"), handle))

    def read(self) -> list[dict[str, Any]]:
        """Of each: `name`, `utilization` (0 to 1), `memory` and `memory_limit` in bytes; None for what is not told."""
        return [{"name": name, **self._read(handle)} for name, handle in self._handles]

    def _read(self, handle: ctypes.c_void_p) -> dict[str, Any]:
        use, memory = _Utilization(), _Memory()
        knows_use = not self._nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(use))
        knows_memory = not self._nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
        return {
            "utilization": use.gpu / 100 if knows_use else None,
            "memory": memory.used if knows_memory else None,
            "memory_limit": memory.total if knows_memory else None,
        }
