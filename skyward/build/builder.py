"""What can be built with here: whose builder it is, its version, and what it can do beyond the Dockerfile of 20.10.

BuildKit is part of Docker's engine, Buildah of Podman. Old docker commands do not tell BuildKit's version; it then
follows from the engine's (https://docs.docker.com/engine/release-notes/).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from skyward.build.command import answer, find_command

Version = tuple[int, int]
# from which version on; The images that we push with zstd, and whole caches, take a store in containerd
_BUILDKIT: Mapping[str, Version] = {
    "secrets": (0, 6),
    "cache mounts": (0, 8),
    "COPY --link": (0, 10),
    "rewrite-timestamp": (0, 13),
}
_BUILDAH: Mapping[str, Version] = {
    "secrets": (1, 23),
    "cache mounts": (1, 24),
    "COPY --link": (1, 41),
    "rewrite-timestamp": (1, 41),
}
_IN_CONTAINERD = ("cache export", "zstd")
_OF_ENGINES: Mapping[int, Version] = {20: (0, 8), 23: (0, 10), 24: (0, 11), 25: (0, 12), 26: (0, 13), 27: (0, 14)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """What an image is built with.

    Attributes:
        name: "BuildKit" or "Buildah".
        version: its version, as far as it is known: "0.13.1", or "0.8" from the engine's.
        command: the command that is started for it.
        can: what it can do, of the names above.
        cannot: what it cannot.
    """

    name: str
    version: str
    command: str
    can: tuple[str, ...]
    cannot: tuple[str, ...]


def find_builder(
    engine: str, *, in_containerd: bool, docker_host: str | None, environ: Mapping[str, str] = os.environ
) -> Builder:
    """The builder for an engine.

    Args:
        engine: version of the engine.
        in_containerd: whether it keeps its images in containerd.
        docker_host: its address.
        environ: variables of the environment.

    Raises:
        EngineError: no command here can build on it.
    """
    command = find_command(environ, docker_host)
    cli = command.words[0]
    if command.is_podman:
        said = answer(cli, "info", "--format", "{{.Host.BuildahVersion}}").strip()
        return _builder("Buildah", said, cli, _BUILDAH, ())
    where = ("--host", docker_host) if docker_host else ()
    said = answer(cli, *where, "buildx", "inspect", "default") if command.is_buildx else ""
    told = re.search(r"buildkit(?: version)?:\s*v(\S+)", said, re.IGNORECASE)
    return _builder("BuildKit", told[1] if told else _of_engine(engine), cli, _BUILDKIT, _IN_CONTAINERD * in_containerd)


def _builder(name: str, version: str, command: str, known: Mapping[str, Version], more: tuple[str, ...]) -> Builder:
    numbers = _numbers(version)
    can = (*(what for what, since in known.items() if numbers >= since), *more)
    cannot = tuple(what for what in (*known, *_IN_CONTAINERD) if what not in can)
    return Builder(name=name, version=version or "of unknown version", command=command, can=can, cannot=cannot)


def _of_engine(engine: str) -> str:
    major = _numbers(engine)[0]
    fitting = [version for since, version in _OF_ENGINES.items() if since <= major]
    return ".".join(map(str, fitting[-1])) if fitting else ""


def _numbers(version: str) -> Version:
    found = [int(number) for number in re.findall(r"\d+", version)[:2]]
    return (found[0], found[1]) if len(found) == 2 else (0, 0)
