from pathlib import Path

import pytest

from skyward.engine.container import shm_bytes


def test_shared_memory() -> None:
    """Half of a node's limit, else half of the machine's memory, at most 64 GiB."""
    assert shm_bytes(4 * 1024**3) == 2 * 1024**3
    assert shm_bytes(1024**4) == 64 * 1024**3
    memory_kb = int(Path("/proc/meminfo").read_text().split()[1])
    assert shm_bytes(None) == pytest.approx(min(memory_kb * 512, 64 * 1024**3), rel=0.01)
