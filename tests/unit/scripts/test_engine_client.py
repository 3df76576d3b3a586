"""Choosing a docker client by what it can do."""

from pathlib import Path

import pytest

from scripts.engine import client
from scripts.engine.daemon import major_version

OLD = "Docker version 20.10.24+dfsg1, build 297e128"
NEW = "Docker version 28.2.2, build e6534b4"


@pytest.mark.parametrize(
    ("version", "buildx", "accepted", "expected"),
    [
        (OLD, False, True, True),
        (NEW, False, True, False),
        (NEW, True, True, True),
        (OLD, False, False, False),
        ("podman version 4.3.1", False, True, False),
        (None, False, True, False),
    ],
    ids=["old", "new-without-buildx", "buildx", "too-old-for-the-engine", "not-docker", "broken"],
)
def test_a_client_must_speak_buildkit_with_the_engine(
    version: str | None, buildx: bool, accepted: bool, expected: bool
) -> None:
    """buildx answers or the client is older than 23, and the engine accepts it."""

    def ask(argv: list[str]) -> str | None:
        if "buildx" in argv:
            return "github.com/docker/buildx 0.13.1" if buildx else None
        if "--host" in argv:
            return "29.0.0" if accepted else None
        return version

    assert expected is client.can_build("docker", "unix:///s", ask)


def test_the_named_client_is_asked_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """SKYWARD_DOCKER_CLI comes before PATH; what is no program is left out."""
    named = tmp_path / "docker"
    named.touch(mode=0o600)
    monkeypatch.setenv("SKYWARD_DOCKER_CLI", str(named))
    assert str(named) not in client.candidates()

    named.chmod(0o700)

    assert next(iter(client.candidates())) == str(named)


def test_major_version() -> None:
    """The major number, or 0 when a program says something else."""
    assert tuple(major_version(line) for line in (OLD, NEW, "command not found")) == (20, 28, 0)
