"""The uv program that locks requirements."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from skyward.errors import ImageError

_finding = threading.Lock()  # sysconfig, used by uv, returns None for a setting while another thread first reads it


def find_uv() -> str:
    """Return the uv that was installed with skyward, or else one on PATH."""
    try:
        import uv

        with _finding:
            return uv.find_uv_bin()
    except (ImportError, FileNotFoundError):
        found = shutil.which("uv")
    if found is None:
        raise ImageError(
            "Python requirements of an image are locked with uv, which is neither installed here as a package nor on "
            "PATH. Install it: python -m pip install uv."
        )
    return found


def run_uv(words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run uv in a folder; the caller judges its exit status."""
    return subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )


@lru_cache(maxsize=1)
def uv_version() -> str:
    """Return the version of the uv that resolves here; "" if it is not installed as a package."""
    spec = find_spec("uv")
    if spec is None or spec.origin is None:
        return ""
    # importlib.metadata takes 10 ms to load, of the 150 ms that a no-op may take; the folder's name has it too
    about = next(Path(spec.origin).parent.parent.glob("uv-*.dist-info"), None)
    return about.stem.removeprefix("uv-") if about else ""
