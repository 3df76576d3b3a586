"""Choosing the docker command by what it can do."""

from __future__ import annotations

from pathlib import Path

import pytest

from skyward.builder.docker.command import find_command
from skyward.errors import EngineError


def _docker(folder: Path, version: str, *, buildx: bool) -> str:
    folder.mkdir(exist_ok=True)
    cli = folder / "docker"
    cli.write_text(
        "#!/bin/sh\n"
        f'case "$1" in\n--version) echo "Docker version {version}, build x";;\n'
        f"buildx) {'echo github.com/docker/buildx v0.13.1' if buildx else 'exit 1'};;\nesac\n"
    )
    cli.chmod(0o755)
    return str(cli)


def test_buildx_wins_wherever_it_is(tmp_path: Path) -> None:
    """A later command with buildx is better than an earlier one without."""
    bare = _docker(tmp_path / "a", "28.2.2", buildx=False)
    able = _docker(tmp_path / "b", "26.1.5", buildx=True)
    path = f"{Path(bare).parent}:{Path(able).parent}"
    command = find_command({"PATH": path})
    assert (command.words[:3], command.is_buildx) == ((able, "buildx", "build"), True)


def test_an_old_command_reaches_the_engines_own_buildkit(tmp_path: Path) -> None:
    """Without buildx, a command older than 23 will do; a newer one would use the legacy builder."""
    _docker(tmp_path / "a", "28.2.2", buildx=False)
    old = _docker(tmp_path / "b", "20.10.24+dfsg1", buildx=False)
    command = find_command({"PATH": f"{tmp_path / 'a'}:{tmp_path / 'b'}"})
    assert (command.words, command.is_buildx) == ((old, "build"), False)


def test_the_chosen_one_is_the_only_one(tmp_path: Path) -> None:
    """SKYWARD_DOCKER_CLI decides, also when it cannot build: the error says what was found and what to install."""
    bare = _docker(tmp_path / "a", "28.2.2", buildx=False)
    able = _docker(tmp_path / "b", "26.1.5", buildx=True)
    with pytest.raises(EngineError, match=r"a/docker \(version 28, without buildx\).*Install buildx"):
        find_command({"PATH": str(Path(able).parent), "SKYWARD_DOCKER_CLI": bare})
    with pytest.raises(EngineError, match=r"/nowhere/docker \(does not run\)"):
        find_command({"PATH": str(Path(able).parent), "SKYWARD_DOCKER_CLI": "/nowhere/docker"})


def _podman(folder: Path, store: str = "/store", name: str = "podman") -> str:
    """Podman's command: its own store, and that of the engine at any address."""
    folder.mkdir(exist_ok=True)
    cli = folder / name
    cli.write_text(
        "#!/bin/sh\n"
        'case "$1" in\n--version) echo "podman version 4.3.1";;\n'
        f"--remote) echo /store;;\ninfo) echo {store};;\n*) exit 1;;\nesac\n"
    )
    cli.chmod(0o755)
    return str(cli)


def test_podman_builds_where_only_it_is_installed(tmp_path: Path) -> None:
    """Also under docker's name; by itself where it and the engine have one store, else by the engine."""
    own, other = _podman(tmp_path / "a"), _podman(tmp_path / "b", "/another", "docker")
    build = ("build", "--format=docker")
    for cli, host, words in (
        (own, None, (own, *build)),
        (own, "unix:///p.sock", (own, *build)),
        (other, "unix:///p.sock", (other, "--remote", "--url", "unix:///p.sock", *build)),
    ):
        command = find_command({"SKYWARD_DOCKER_CLI": cli}, host)
        assert (command.words, command.is_podman, command.is_buildx) == (words, True, False)


@pytest.mark.parametrize("product", ["Podman Engine;Conmon;", "Engine;containerd;"])
def test_podman_beside_docker(tmp_path: Path, product: str) -> None:
    """The engine decides: docker's command cannot build on Podman's, and Podman's not on Docker's."""
    docker = Path(_docker(tmp_path / "a", "26.1.5", buildx=True))
    docker.write_text(
        docker.read_text().replace("esac", f'--host) [ "$2" = unix:///p.sock ] && echo "{product}";;\nesac')
    )
    podman = _podman(tmp_path / "a")
    command = find_command({"PATH": str(tmp_path / "a")}, "unix:///p.sock")
    assert command.words[0] == (podman if "Podman" in product else str(docker))
    chosen = {"PATH": str(tmp_path / "a"), "SKYWARD_DOCKER_CLI": str(docker)}
    assert find_command(chosen, "unix:///p.sock").words[0] == str(docker)
