"""The docker command: chosen by what it can do, since one without BuildKit may come first on PATH."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from .console import capture
from .daemon import daemon_path, major_version

NEEDED = "buildx, or a client older than 23 (which speaks BuildKit itself)"


def can_build(binary: str, docker_host: str, ask: Callable[[list[str]], str | None]) -> bool:
    """Whether a docker client speaks BuildKit (by its buildx plugin, or by being older than 23) with this engine.

    An engine refuses a client that is much older than itself, hence the question to the engine.
    """
    if not (ask([binary, "buildx", "version"]) or 18 < major_version(ask([binary, "--version"]) or "") < 23):
        return False
    return ask([binary, "--host", docker_host, "version", "--format", "{{.Server.Version}}"]) is not None


def candidates() -> Iterable[str]:
    """Every docker on PATH and in the system's folders, in order; one named by the environment first."""
    named = os.environ.get("SKYWARD_DOCKER_CLI")
    folders = dict.fromkeys(folder for folder in daemon_path().split(":") if folder)
    paths = [*([named] if named else []), *(str(Path(folder) / "docker") for folder in folders)]
    return [path for path in dict.fromkeys(paths) if os.access(path, os.X_OK) and Path(path).is_file()]


def choose(docker_host: str) -> str | None:
    """The first client that can build on an engine; None when there is none."""
    return next((path for path in candidates() if can_build(path, docker_host, capture)), None)
