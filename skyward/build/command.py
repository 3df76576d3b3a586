"""Which docker command can build here: chosen by what it can do, not by its name or place."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from skyward.errors import EngineError
from skyward.image import TIME


@dataclass(frozen=True, slots=True)
class BuildCommand:
    """The first words of a build command, and whether it is buildx."""

    words: tuple[str, ...]
    is_buildx: bool


def find_command(environ: Mapping[str, str] = os.environ) -> BuildCommand:
    """A docker CLI with buildx, else one old enough to reach the engine's own BuildKit.

    SKYWARD_DOCKER_CLI decides if it is set; else every `docker` on PATH is asked, and /usr/bin/docker.

    Raises:
        EngineError: none of them can build.
    """
    chosen = environ.get("SKYWARD_DOCKER_CLI")
    clis = [chosen] if chosen else _candidates(environ.get("PATH", ""))
    seen: list[str] = []
    for cli in clis:
        if _answer(cli, "buildx", "version"):
            # the engine's own builder: others know neither its images nor its network. One time for all images: two
            # clean builds then have one digest
            words = (
                cli,
                "buildx",
                "build",
                "--builder",
                "default",
                "--load",
                "--build-arg",
                f"SOURCE_DATE_EPOCH={TIME}",
            )
            return BuildCommand(words, is_buildx=True)
    for cli in clis:
        version = re.search(r"version (\d+)\.", _answer(cli, "--version"))
        # from 23 on, `docker build` is buildx or the legacy builder, which knows no mounts
        if version and int(version[1]) < 23:
            return BuildCommand((cli, "build"), is_buildx=False)
        seen.append(f"{cli} ({f'version {version[1]}, without buildx' if version else 'does not run'})")
    found = f"Found: {', '.join(seen)}." if seen else "No docker command was found on PATH."
    raise EngineError(
        f"Building an image takes the docker command with its buildx plugin. {found} Install buildx (the package "
        "docker-buildx of Debian and Ubuntu, docker-buildx-plugin of Docker), or point SKYWARD_DOCKER_CLI to a docker "
        "that has it."
    )


def _candidates(path: str) -> list[str]:
    found = [shutil.which("docker", path=folder) for folder in [*path.split(os.pathsep), "/usr/bin"] if folder]
    return list(dict.fromkeys(cli for cli in found if cli))


def _answer(*words: str) -> str:
    """What a command prints; empty if it fails or cannot be started."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
