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


@pytest.mark.parametrize(("version", "buildx"), [("26.1.5", True), ("20.10.24+dfsg1", False)])
def test_a_command_that_can_build(tmp_path: Path, version: str, buildx: bool) -> None:
    """One with buildx, or one older than 23, which leads to the engine's own BuildKit."""
    cli = _docker(tmp_path / "a", version, buildx=buildx)
    for environ in ({"PATH": str(tmp_path / "a")}, {"SKYWARD_DOCKER_CLI": cli}):
        command = find_command(environ)
        assert (command.words[:2], command.is_podman) == ((cli, "build"), False)


def test_the_chosen_one_is_the_only_one(tmp_path: Path) -> None:
    """SKYWARD_DOCKER_CLI decides, also when it cannot build: the error says what was found and what to install."""
    bare = _docker(tmp_path / "a", "28.2.2", buildx=False)
    able = _docker(tmp_path / "b", "26.1.5", buildx=True)
    with pytest.raises(EngineError, match=r"a/docker \(version 28, without buildx\).*Install buildx"):
        find_command({"PATH": str(Path(able).parent), "SKYWARD_DOCKER_CLI": bare})
    with pytest.raises(EngineError, match=r"/nowhere/docker \(does not run\)"):
        find_command({"PATH": str(Path(able).parent), "SKYWARD_DOCKER_CLI": "/nowhere/docker"})


@pytest.mark.parametrize(("name", "chosen"), [("podman", True), ("podman", False), ("docker", True)])
def test_podman_builds_where_it_is_chosen_or_alone(tmp_path: Path, name: str, chosen: bool) -> None:
    """Also under docker's name, from the package podman-docker."""
    cli = tmp_path / name
    cli.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "podman version 4.3.1"\n')
    cli.chmod(0o755)
    environ = {"SKYWARD_DOCKER_CLI": str(cli)} if chosen else {"PATH": str(tmp_path)}
    if not chosen and Path("/usr/bin/docker").exists():
        pytest.skip("there is a docker command in /usr/bin, which precedes podman")
    build = ("build", "--format=docker")
    assert find_command(environ, "unix:///p.sock").words == (str(cli), "--remote", "--url", "unix:///p.sock", *build)
    assert find_command(environ).words == (str(cli), *build)
    cli.write_text(cli.read_text() + "[ $1 = --version ] || echo /store\n")  # one store for the command and the engine
    assert find_command(environ, "unix:///p.sock").words == (str(cli), *build)
