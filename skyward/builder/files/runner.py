"""The runner's files for an image: the sources of this package and of the client's cloudpickle.

They are copied rather than installed, so that client and nodes have the same version of both without a download.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from skyward.errors import ImageError

_PACKAGES = ("cloudpickle", "skyward")
_NOT_ON_NODES = ("skyward/cli/", "skyward/testing/", "skyward/__main__.py")  # every image would be larger by them


@lru_cache(maxsize=1)
def runner_files() -> tuple[tuple[str, bytes], ...]:
    """Path below /opt/skyward and content of every file, in order of the paths. Read once per process."""
    files = (file for package in _PACKAGES for file in _sources(package))
    return tuple(sorted(file for file in files if not file[0].startswith(_NOT_ON_NODES)))


@lru_cache(maxsize=1)
def runner_digest() -> str:
    """SHA-256 (hex) over paths and contents of the runner's files."""
    whole = hashlib.sha256()
    for path, content in runner_files():
        whole.update(f"{path}\0{hashlib.sha256(content).hexdigest()}\n".encode())
    return whole.hexdigest()


def _sources(package: str) -> Iterator[tuple[str, bytes]]:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ImageError(f"The package {package!r} goes into every image, but is not installed as files here.")
    root = Path(spec.submodule_search_locations[0])
    for path in root.rglob("*.py"):
        yield f"{package}/{path.relative_to(root).as_posix()}", path.read_bytes()
