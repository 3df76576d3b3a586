"""The choice of the docker command that builds, by what it can do, and the capabilities of its builder.

BuildKit is part of Docker's engine, Buildah of Podman. Old docker commands do not tell BuildKit's version; it then
follows from the engine's (https://docs.docker.com/engine/release-notes/).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from skyward.errors import EngineError
from skyward.image import TIME

_PODMANS = ("podman ", "buildah ")  # how its command begins when it tells its version
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


@dataclass(frozen=True, slots=True)
class BuildCommand:
    """The first words of a build command, and whose it is: buildx's, Podman's, or else an old docker command's."""

    words: tuple[str, ...]
    is_buildx: bool = False
    is_podman: bool = False


def find_command(environ: Mapping[str, str] = os.environ, docker_host: str | None = None) -> BuildCommand:
    """A docker CLI with buildx, else one old enough to reach the engine's own BuildKit; for Podman's engine, podman.

    SKYWARD_DOCKER_CLI decides if it is set; else every `docker` on PATH is asked, and /usr/bin/docker.

    Args:
        environ: variables of the environment.
        docker_host: address of the engine; None for the one that the command takes by itself.

    Raises:
        EngineError: none of them can build.
    """
    chosen = environ.get("SKYWARD_DOCKER_CLI")
    clis = [chosen] if chosen else _candidates(environ.get("PATH", ""))
    if not chosen and (podman := _podman_instead(clis, environ, docker_host)):
        clis = [podman]
    seen: list[str] = []
    for cli in clis:
        said = answer(cli, "buildx", "version")
        if said and not said.startswith(_PODMANS):
            # the engine's own builder: others know neither its images nor its network. One time for all images: two
            # clean builds then have one digest
            options = f"--builder default --load --build-arg SOURCE_DATE_EPOCH={TIME}".split()
            return BuildCommand((cli, "buildx", "build", *options), is_buildx=True)
    for cli in clis:
        said = answer(cli, "--version")
        if said.startswith(_PODMANS):  # also under docker's name, by the package podman-docker
            return BuildCommand(_podman_words(cli, docker_host), is_podman=True)
        version = re.search(r"version (\d+)\.", said)
        # from 23 on, `docker build` is buildx or the legacy builder, which knows no mounts
        if version and int(version[1]) < 23:
            return BuildCommand((cli, "build"))
        seen.append(f"{cli} ({f'version {version[1]}, without buildx' if version else 'does not run'})")
    found = f"Found: {', '.join(seen)}." if seen else "No docker command was found on PATH."
    raise EngineError(
        f"Building an image takes the docker command with its buildx plugin. {found} Install buildx (the package "
        "docker-buildx of Debian and Ubuntu, docker-buildx-plugin of Docker), or point SKYWARD_DOCKER_CLI to a docker "
        "that has it. With Podman's engine, install podman."
    )


def _podman_instead(clis: list[str], environ: Mapping[str, str], docker_host: str | None) -> str | None:
    """Podman's command, where there is none of docker's, or the engine is Podman's.

    Docker's command cannot build there (https://github.com/containers/podman/issues/17836).
    """
    podman = shutil.which("podman", path=environ.get("PATH", ""))
    if podman is None or not clis:
        return podman
    asked = ("version", "--format", "{{range .Server.Components}}{{.Name}};{{end}}")
    where = ("--host", docker_host) if docker_host else ()
    return podman if "Podman" in answer(clis[0], *where, *asked) else None


def _podman_words(podman: str, docker_host: str | None) -> tuple[str, ...]:
    """Podman's command builds by itself where it and the engine have one store, else through the engine's socket."""
    store = ("info", "--format", "{{.Store.GraphRoot}}")
    there = ("--remote", "--url", docker_host) if docker_host else ()
    is_own = not there or answer(podman, *store) == answer(podman, *there, *store) != ""
    # what engines and registries tell of an image has to be the same as with Docker's builder
    return (podman, *(() if is_own else there), "build", "--format=docker")


def _candidates(path: str) -> list[str]:
    found = [shutil.which("docker", path=folder) for folder in [*path.split(os.pathsep), "/usr/bin"] if folder]
    return list(dict.fromkeys(cli for cli in found if cli))


def answer(*words: str) -> str:
    """The output of a command; empty if it fails or cannot be started."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """The builder of an image.

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
