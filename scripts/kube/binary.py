"""The program of Kubernetes: built once from Debian's sources, kept in the user's cache by recipe and version."""

import fcntl
import hashlib
import os
import shutil
from pathlib import Path

from scripts.engine import debian, sources
from scripts.engine.console import SetupError, run, step

from .place import Cluster, cache

VERSION = "1.20.5+really1.20.2-1.1+deb12u1"  # of Debian's source package
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet")
_RELEASE = "bookworm"
_HERE = Path(__file__).parent
_RECIPE = ("build.sh", "main.go")
_BUILD_S = 3600.0


def folder() -> Path:
    """Where the programs of this recipe and version are, or are going to be."""
    recipe = hashlib.sha256(b"".join((_HERE / name).read_bytes() for name in _RECIPE)).hexdigest()[:12]
    return cache() / f"{VERSION}-{recipe}"


def is_there() -> bool:
    """Whether they have been built."""
    return (folder() / "hyper").is_file()


def is_being_built() -> bool:
    """Whether some process builds them now."""
    lock = folder().parent / "lock"
    if not lock.exists():
        return False
    with lock.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def ensure(cluster: Cluster) -> Path:
    """Build the programs unless the cache has them; the folder that they are in.

    Raises:
        SetupError: this is not the release of Debian whose sources are known to build, or the build fails.
    """
    target = folder()
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / "lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        if not is_there():
            _build(cluster, target)
    return target


def _build(cluster: Cluster, target: Path) -> None:
    if debian.release().get("VERSION_CODENAME") != _RELEASE:
        raise SetupError(f"Kubernetes is built from the sources of Debian {_RELEASE}, and this is another system.")
    work = target.with_name(f"{target.name}.work")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    machine = sources.machine_sources(_RELEASE)
    (work / "sources.sources").write_text(machine.replace("Types: deb\n", "Types: deb deb-src\n"))
    words = ["nice", "-n", "10", "bash", str(_HERE / "build.sh"), str(work), VERSION]
    with step(f"building Kubernetes {VERSION} in {target}, which takes about 5 minutes once, and 4 GB meanwhile"):
        run(words, log=cluster.log("build"), timeout_s=_BUILD_S, env={**debian.proxies(), **os.environ})
    finished = work / "finished"
    finished.mkdir()
    (work / "hyper").rename(finished / "hyper")
    for name in PROGRAMS:
        (finished / name).symlink_to("hyper")
    finished.rename(target)
    shutil.rmtree(work)
