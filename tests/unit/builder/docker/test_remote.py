"""A build on another machine, which is this one: `ssh` and `docker` are shell scripts."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

from skyward.builder.docker.command import Folders, run_there
from skyward.builder.docker.output import Progress
from skyward.builder.events import Event
from skyward.builder.registry.auth import Credentials
from skyward.model.ssh import SshHost

HOST = SshHost(host="box")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to build, and the other machine's temporary files in `there`; both find their commands in `bin`."""
    for name in ("bin", "there", "place/context/deep"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "place/context/Dockerfile").write_text("FROM x\n")
    (tmp_path / "place/context/deep/file").write_text("content")
    # what is after the address runs as sshd would run it: by a shell, as one text
    _script(tmp_path, "ssh", 'while [ "$1" != -- ]; do shift; done; exec sh -c "$3"')
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "there"))
    monkeypatch.setenv("SKYWARD_DOCKER_CLI", f"{tmp_path}/bin/docker")
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def _script(place: Path, name: str, text: str) -> None:
    path = place / "bin" / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def _buildx(place: Path, text: str) -> None:
    version = '[ "$1" = --version ] && { echo "Docker version 26.1.5, build x"; exit; }'
    _script(place, "docker", f'{version}\n[ "$2" = version ] && exit 0\necho "$@" > {place}/called\n{text}')


def _run(place: Path, *words: str, report: list[Event] | None = None) -> tuple[int, Progress]:
    progress = Progress((), (report if report is not None else []).append)
    return run_there(HOST, words, progress, Folders(place / "place/context"), secrets={"site": b"secret"}), progress


def test_proxies_are_those_over_there(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By name only: a value may hold a password."""
    monkeypatch.setenv("https_proxy", "http://u:p@proxy")
    _buildx(place, "")

    assert _run(place)[0] == 0
    called = (place / "called").read_text()
    assert "--build-arg https_proxy " in called
    assert "u:p" not in called


def test_an_old_docker_builds_by_itself(place: Path) -> None:
    """Without buildx, an old command's own way to BuildKit is used; a new one's is not there."""
    _script(
        place,
        "docker",
        '[ "$1" = buildx ] && exit 1\n'
        '[ "$1" = --version ] && echo "Docker version 20.10.24+dfsg1, build x" && exit 0\n'
        f'echo "$DOCKER_BUILDKIT $1" > {place}/called',
    )
    assert _run(place)[0] == 0
    assert (place / "called").read_text() == "1 build\n"

    _script(place, "docker", '[ "$1" = --version ] && echo "Docker version 28.2.2, build x" && exit 0; exit 1')
    code, progress = _run(place)
    assert code == 1
    assert "has no buildx" in progress.ending


def test_what_a_killed_script_leaves_goes_with_the_next_build(place: Path) -> None:
    """A folder without an owner is removed; one whose build goes on stays, and so does what a link leads to."""
    for name in ("there/skyward-build-killed/secrets", "there/skyward-build-alive", "elsewhere"):
        (place / name).mkdir(parents=True)
    (place / "there/skyward-build-killed/secrets/site").write_text("secret")
    (place / "there/skyward-build-link").symlink_to(place / "elsewhere")
    _buildx(place, "")
    with subprocess.Popen(["flock", str(place / "there/skyward-build-alive"), "cat"], stdin=subprocess.PIPE) as owner:
        while (
            subprocess.run(["flock", "-n", str(place / "there/skyward-build-alive"), "true"], check=False).returncode
            == 0
        ):
            time.sleep(0.01)
        assert _run(place)[0] == 0
        assert sorted(path.name for path in (place / "there").iterdir()) == [
            "skyward-build-alive",
            "skyward-build-link",
        ]
        assert (place / "elsewhere").is_dir()
        owner.communicate()


def test_logins_are_for_one_build(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The docker command there finds ours for this one build, and keeps its contexts and plugins."""
    theirs = place / "theirs"
    (theirs / "cli-plugins").mkdir(parents=True)
    (theirs / "config.json").write_text('{"auths": {"s.io": {"auth": "eDp5"}}, "credsStore": "desk"}')
    monkeypatch.setenv("DOCKER_CONFIG", str(theirs))
    seen = place / "seen"
    _buildx(place, f"cat $DOCKER_CONFIG/config.json > {seen}; ls -l $DOCKER_CONFIG > {seen}.files; env > {seen}.env")
    progress = Progress((), list[Event]().append)
    logins = {"r.io": Credentials({"username": "ann", "password": "canary"})}

    assert run_there(HOST, ["--tag", "x"], progress, Folders(place / "place/context"), logins=logins) == 0

    config = json.loads(seen.read_text())
    assert config == {"auths": {"r.io": {"auth": "YW5uOmNhbmFyeQ=="}}}
    files = (place / "seen.files").read_text()
    assert "-rw------- " in files
    assert f"cli-plugins -> {theirs}/cli-plugins" in files
    assert "canary" not in (place / "seen.env").read_text() + (place / "called").read_text()
    assert list((place / "there").iterdir()) == []
    assert "canary" not in (theirs / "config.json").read_text()
