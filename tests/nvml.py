"""A stand-in for NVIDIA's library NVML that tells of two GPUs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SONAME = "libnvidia-ml.so.1"
_SOURCE = """
#include <stdio.h>
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = (void *)(long)(index + 1); return 0; }
int nvmlDeviceGetName(void *handle, char *name, unsigned size) {
    snprintf(name, size, "%s%ld", NAME, (long)handle); return 0;
}
int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) {
    snprintf(text, size, "GPU-%c0", (char)('a' - 1 + (long)handle)); return 0;
}
int nvmlDeviceGetUtilizationRates(void *handle, unsigned *use) {
    if ((long)handle == 2) return 3;
    use[0] = 75; use[1] = 10; return 0;
}
int nvmlDeviceGetMemoryInfo(void *handle, unsigned long long *memory) {
    memory[0] = 1000; memory[1] = 600; memory[2] = 400; return 0;
}
"""


def library(folder: Path, name: str) -> Path:
    """Compile it; the GPUs are called by the name and their number, from 1."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    source, made = folder / "nvml.c", folder / SONAME
    source.write_text(_SOURCE)
    subprocess.run([compiler, "-shared", "-fPIC", f'-DNAME="{name}"', "-o", made, source], check=True)
    return made
