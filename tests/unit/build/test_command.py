"""Choosing the docker command by what it can do."""

from __future__ import annotations

from pathlib import Path

import pytest

from skyward.build.command import find_command
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
