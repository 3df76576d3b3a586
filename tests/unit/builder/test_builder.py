"""What a builder can do, by its version."""

from __future__ import annotations

from pathlib import Path

import pytest

from skyward.builder.docker.command import find_builder


def _cli(folder: Path, script: str) -> dict[str, str]:
    cli = folder / "docker"
    cli.write_text(f"#!/bin/sh\n{script}\n")
    cli.chmod(0o755)
    return {"SKYWARD_DOCKER_CLI": str(cli)}


@pytest.mark.parametrize(
    ("script", "engine", "name", "lacks"),
    [
        ('[ "$1" = --version ] && echo "Docker version 20.10.24"', "20.10.24", "BuildKit 0.8", {"COPY --link", "zstd"}),
        (
            'case "$*" in *inspect*) echo "Buildkit: v0.9.3";; *buildx*) echo v0.13;; esac',
            "23.0.1",
            "BuildKit 0.9.3",
            {"COPY --link", "rewrite-timestamp"},
        ),
        ('[ "$1" = buildx ] && echo v0.13', "26.1.5", "BuildKit 0.13", set()),
        (
            'case "$1" in --version) echo "podman version 4.3.1";; info) echo 1.28.2;; esac',
            "4.3.1",
            "Buildah 1.28.2",
            {"COPY --link", "cache export"},
        ),
    ],
)
def test_what_builders_can_do(tmp_path: Path, script: str, engine: str, name: str, lacks: set[str]) -> None:
    """BuildKit's version is its own, where it is told, else the engine's; the image store decides on caches."""
    found = find_builder(engine, in_containerd=not lacks, docker_host=None, environ=_cli(tmp_path, script))
    assert f"{found.name} {found.version}" == name
    assert lacks <= set(found.cannot)
    assert not set(found.can) & set(found.cannot)
    assert {"secrets", "cache mounts"} <= set(found.can)
    if not lacks:
        assert found.cannot == ()
