"""Pushing with zstd: what it takes is found out first; credentials go by a file that is gone afterwards."""

from __future__ import annotations

import json
import stat
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from skyward.builder.registry import auth
from skyward.builder.registry.auth import Credentials
from skyward.builder.registry.pushing import push_zstd
from skyward.errors import ConfigError, EngineError, RegistryError
from tests.unit.builder.registry.conftest import Configure

AMD64 = "linux/amd64"
ECR = "123456789012.dkr.ecr.eu-west-1.amazonaws.com"
BUILDX = """[ "$1 $2" = "buildx version" ] && echo v0.13.1 && exit 0"""
CONTAINERD = """[ "$1" = info ] && echo '[["driver-type","io.containerd.snapshotter.v1"]]' && exit 0"""


@pytest.fixture
def cli(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A docker command that tests give lines to; it fails at what they leave out."""
    path = own_home / "docker-cli"
    monkeypatch.setenv("SKYWARD_DOCKER_CLI", str(path))
    return path


def says(cli: Path, *lines: str) -> None:
    cli.write_text("\n".join(["#!/bin/sh", *lines, "exit 1"]) + "\n")
    cli.chmod(0o755)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["""[ "$1" = --version ] && echo 'Docker version 20.10.24' && exit 0"""], "has none. Install buildx"),
        (
            [BUILDX, """[ "$1" = info ] && echo '[["Backing Filesystem","extfs"]]' && exit 0"""],
            "containerd-snapshotter",
        ),
        ([BUILDX, "echo 'Cannot connect to the engine' >&2"], "Cannot connect"),
    ],
)
def test_what_it_takes(cli: Path, lines: list[str], words: str) -> None:
    """Where it cannot be done a sentence says what is missing, before anything is done."""
    says(cli, *lines)

    with pytest.raises(EngineError, match=words):
        push_zstd("local:1", "r.io/x:t", platform=AMD64, report=print)


def test_a_push_that_fails(cli: Path) -> None:
    """The error has the builder's last words and what to do."""
    says(cli, BUILDX, CONTAINERD, "echo 'ERROR: failed to push r.io/x:t: unauthorized: authentication required'")

    with pytest.raises(RegistryError, match="authentication required") as caught:
        push_zstd("local:1", "r.io/x:t", platform=AMD64, report=print)

    assert "docker login r.io" in caught.value.remedy


def test_the_login_of_amazons_registry(
    cli: Path, configure: Configure, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """buildx reads the token from a file of ours beside the user's contexts; it is in no word of the command."""
    configure({"auths": {"other": {"auth": "x"}}, "credsStore": "nowhere", "currentContext": "mine"})
    (own_home / "docker" / "contexts").mkdir()
    until = datetime.now(UTC) + timedelta(hours=12)
    monkeypatch.setitem(auth._tokens, ECR, (Credentials(username="AWS", password="canary"), until))
    monkeypatch.setattr("skyward.builder.registry.pushing.ensure_repository", str)
    says(
        cli,
        BUILDX,
        CONTAINERD,
        f'cp "$DOCKER_CONFIG/config.json" {own_home}/seen; [ -d "$DOCKER_CONFIG/contexts" ] && echo has contexts',
        'echo "$@"; echo "$DOCKER_CONFIG"',
        f'stat -c %a "$DOCKER_CONFIG" > {own_home}/mode',
    )

    with pytest.raises(RegistryError, match="has contexts") as caught:
        push_zstd("local:1", f"{ECR}/x:t", platform=AMD64, report=print)

    seen = json.loads((own_home / "seen").read_text())
    # a program without a name makes the docker command look into `auths`
    auths = {"other": {"auth": "x"}, ECR: {"auth": b64encode(b"AWS:canary").decode()}}
    assert seen == {"auths": auths, "credHelpers": {ECR: ""}, "credsStore": "nowhere", "currentContext": "mine"}
    assert (own_home / "mode").read_text() == "700\n"
    assert stat.S_IMODE((own_home / "seen").stat().st_mode) & 0o077 == 0
    assert "canary" not in str(caught.value)
    folder = Path(str(caught.value).partition("skyward-login-")[0].split()[-1] + "skyward-login-")
    assert list(folder.parent.glob("skyward-login-*")) == []


def test_a_digest_is_no_target(cli: Path) -> None:
    """It follows from the content."""
    says(cli, BUILDX, CONTAINERD)
    with pytest.raises(ConfigError, match="Give a tag"):
        push_zstd("a", "r.io/x@sha256:" + "0" * 64, platform=AMD64, report=print)
