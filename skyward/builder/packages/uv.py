"""The uv program that locks requirements."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

_finding = threading.Lock()  # sysconfig, used by uv, returns None for a setting while another thread first reads it


def find_uv() -> str:
    """Return the uv that was installed with skyward."""
    import uv

    with _finding:
        return uv.find_uv_bin()


def run_uv(words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run uv in a folder; the caller judges its exit status."""
    return subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
