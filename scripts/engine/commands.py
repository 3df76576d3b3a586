"""The commands up and down, each in the order in which things happen."""

import json
import os
import shutil
import time
from pathlib import Path

from . import base, client, daemon, debian, envfile, indexes, mounts, registry
from .console import SetupError, capture, say
from .place import Place

_DEFAULT_SOCKET = "unix:///var/run/docker.sock"


def up(place: Place) -> None:
    """Bring up what builds and pools need and leave `.engine/env`. Does nothing that is done already."""
    started_s = time.monotonic()
    with place.locked():
        docker_host = _reachable(place)
        if docker_host is None:
            docker_host = _private(place)
        docker = base.Client(_client(place, docker_host), docker_host)
        image = base.ensure(place, docker)
        address = _registry(place, docker, image)
        _ssh_server(place)
        values = {"DOCKER_HOST": docker_host, "SKYWARD_BASE": image, "SKYWARD_DOCKER_CLI": docker.binary}
        if address:
            values["SKYWARD_REGISTRY"] = address
        if found := indexes.index_map():
            values["SKYWARD_INDEXES"] = json.dumps(found, sort_keys=True)
        envfile.write(place.env, values)
    say(f"ready after {time.monotonic() - started_s:.1f} s; `. {place.env}` sets {', '.join(values)}")


def _ssh_server(place: Place) -> None:
    """OpenSSH's server, which tests of builds on other machines start for themselves; without it they are skipped."""
    if shutil.which("sshd", path=daemon.daemon_path()):
        return
    if debian.is_debian() and os.geteuid() == 0:
        debian.install(place, ("openssh-server", "openssh-client"), purpose="tests of builds over SSH")
    else:
        say("there is no sshd, so tests of builds over SSH will be skipped; install openssh-server for them")


def _reachable(place: Place) -> str | None:
    """The engine that the user has; None when the private one is to be used or made."""
    named = os.environ.get("DOCKER_HOST")
    if named == place.docker_host or (not named and place.data.is_dir()):
        return None
    wanted = named or _context_host() or _DEFAULT_SOCKET
    if _engine_answers(wanted):
        say(f"using the engine at {wanted}")
        return wanted
    if named:
        raise SetupError(
            f"DOCKER_HOST names {named}, and no engine answers there. Start that engine, or unset DOCKER_HOST "
            "to let this script start a private one."
        )
    return None


def _context_host() -> str | None:
    """The address in the docker client's current context, which Python's Docker SDK does not read."""
    binary = shutil.which("docker")
    out = capture([binary, "context", "inspect", "--format", "{{.Endpoints.docker.Host}}"]) if binary else None
    return out.strip() if out else None


def _engine_answers(docker_host: str) -> bool:
    if not docker_host.startswith("unix://"):
        binary = shutil.which("docker")
        asked = [binary or "docker", "--host", docker_host, "version", "--format", "{{.Server.Version}}"]
        return capture(asked, timeout_s=20) is not None
    try:
        return daemon.answers(Path(docker_host.removeprefix("unix://")))
    except PermissionError as e:
        raise SetupError(
            f"an engine is at {docker_host}, but this user may not use it. Join its group "
            "(`sudo usermod -aG docker $USER`, then log in again), or run this as root."
        ) from e


def _private(place: Place) -> str:
    offered = sorted(debian.available(debian.CLIENT_PACKAGES))
    wanted = {"dockerd": ["docker.io", *offered], "docker-registry": ["docker-registry"]}
    missing = [name for name in wanted if shutil.which(name, path=daemon.daemon_path()) is None]
    if missing:
        packages = [package for name in missing for package in wanted[name]]
        debian.install(place, packages, purpose="a private Docker engine with a registry")
    if os.geteuid() != 0:
        raise SetupError(
            "no Docker engine is reachable, and starting a private one needs root. Run this again as root, "
            "or start Docker, or set DOCKER_HOST to a reachable engine."
        )
    daemon.ensure(place)
    return place.docker_host


def _client(place: Place, docker_host: str) -> str:
    chosen = client.choose(docker_host)
    if chosen is None:
        packages = sorted(debian.available(debian.CLIENT_PACKAGES)) or ["docker.io"]
        debian.install(place, packages, purpose=f"a docker client with {client.NEEDED}")
        chosen = client.choose(docker_host)
    if chosen is None:
        raise SetupError(
            f"no docker client here can do BuildKit builds on {docker_host}; one is needed with {client.NEEDED}. "
            "Install Docker's buildx plugin, or name a client with SKYWARD_DOCKER_CLI."
        )
    return chosen


def _registry(place: Place, docker: base.Client, image: str) -> str | None:
    """Address of a registry on loopback that holds the base; None where there can be none."""
    if not docker.docker_host.startswith("unix://") or registry.binary() is None:
        say("no registry: the engine is on another machine, or docker-registry is not installed")
        return None
    address = registry.ensure(place)
    try:
        base.publish(place, docker, image, address)
    except SetupError as problem:
        if docker.docker_host == place.docker_host:
            raise
        say(f"going on without a registry, since the engine at {docker.docker_host} cannot push to it: {problem}")
        registry.end(place)
        return None
    return address


def down(place: Place, *, purge: bool = False) -> None:
    """Stop the engine and registry that `up` started; with `purge` remove their data as well."""
    if not place.root.is_dir():
        say("nothing to stop: there is no .engine folder")
        return
    with place.locked():
        registry.end(place)
        daemon.end(place)
        mounts.unmount(place.run, place.root)
        if purge:
            mounts.remove(place.run, place.root)
    say("stopped" + (", and .engine is removed" if purge else "; data is kept in .engine"))
