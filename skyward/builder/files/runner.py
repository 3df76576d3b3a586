"""The runner's files for an image: the sources of this package and of the client's cloudpickle.

They are copied rather than installed, so that client and nodes have the same version of both without a download.
"""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from skyward.builder.files.digest import noted
from skyward.errors import ImageError

_PACKAGES = ("cloudpickle", "skyward")
_NOT_ON_NODES = ("skyward/cli/", "skyward/testing/", "skyward/__main__.py")  # every image would be larger by them


@lru_cache(maxsize=1)
def runner_files() -> tuple[tuple[str, bytes], ...]:
    """Path below /opt/skyward and content of every file, in order of the paths. Read once per process."""
    return tuple((name, Path(path).read_bytes()) for name, path in _sources())


@lru_cache(maxsize=1)
def runner_digest() -> str:
    """SHA-256 (hex) over paths and contents of the runner's files.

    They are read only if one of them has changed since the digest was noted in the cache: reading all takes 20 ms.
    """
    facts = hashlib.sha256()
    for name, path in _sources():
        found = Path(path).stat()
        times = f"{found.st_dev} {found.st_ino} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"
        facts.update(f"{name}\0{path}\0{times}\n".encode())
    return noted(f"runner-{facts.hexdigest()[:32]}", _digest)


def _digest() -> str:
    whole = hashlib.sha256()
    for path, content in runner_files():
        whole.update(f"{path}\0{hashlib.sha256(content).hexdigest()}\n".encode())
    return whole.hexdigest()


def _sources() -> list[tuple[str, str]]:
    """Path below /opt/skyward of every file, in order, and where it is here."""
    found = []
    for package in _PACKAGES:
        spec = find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise ImageError(f"The package {package!r} goes into every image, but is not installed as files here.")
        root = Path(spec.submodule_search_locations[0])
        for folder, _, names in os.walk(root):
            below = f"{package}/{Path(folder).relative_to(root).as_posix()}/".replace("/./", "/")
            found += [(below + name, f"{folder}/{name}") for name in names if name.endswith(".py")]
    return sorted(each for each in found if not each[0].startswith(_NOT_ON_NODES))
