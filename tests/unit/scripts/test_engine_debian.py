"""Installing packages without starting services, and undoing that also after a kill."""

import json
import os
from pathlib import Path

import pytest

from scripts.engine import debian
from scripts.engine.console import SetupError
from scripts.engine.place import Place

POLICY = """docker.io:
  Installed: (none)
  Candidate: 20.10.24+dfsg1-1
  Version table:
     20.10.24+dfsg1-1 500
docker-buildx:
  Installed: (none)
  Candidate: (none)
  Version table:
mmdebstrap:
  Installed: 1.3.5-7
  Candidate: 1.3.5-7
"""


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the machine's policy would lie."""
    monkeypatch.setattr(debian, "_POLICY", tmp_path / "policy-rc.d")
    monkeypatch.setattr(debian, "_POLICY_KEPT", tmp_path / "policy-rc.d.before-skyward")
    return tmp_path / "policy-rc.d"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """An empty clone with its engine folder."""
    (tmp_path / "clone" / ".engine").mkdir(parents=True)
    return Place(tmp_path / "clone")


def test_available_packages_are_those_with_a_candidate() -> None:
    """A name that apt knows only from a dependency has no candidate."""
    assert {"docker.io", "mmdebstrap"} == debian.parse_policy(POLICY)


def test_an_unreachable_package_source_is_named() -> None:
    """Only the last command's complaint counts, and its summary line says nothing."""
    log = (
        "\n$ apt-get -y update\nW: Failed to fetch http://old.example.org/\n"
        "\n$ apt-get -y update\nErr:1 http://a.example.org\nW: Failed to fetch http://a.example.org/  No route.\n"
        "W: Some index files failed to download.\n"
    )
    assert debian.complaint(log) == " (apt says: Failed to fetch http://a.example.org/  No route)"
    assert debian.complaint("\n$ apt-get -y update\nReading package lists...\n") == ""


@pytest.mark.parametrize("machine_policy", [None, "#!/bin/sh\nexit 0\n"], ids=["none", "its-own"])
def test_services_are_held_while_packages_install(
    place: Place, policy: Path, monkeypatch: pytest.MonkeyPatch, machine_policy: str | None
) -> None:
    """During the installation a policy forbids starts; afterwards the machine's own is as it was."""
    if machine_policy:
        policy.write_text(machine_policy)
    seen: list[str] = []
    monkeypatch.setattr(debian, "_install", lambda *_: seen.append(policy.read_text()))

    debian._install_quietly(place, ["docker.io"], [])

    assert ["exit 101" in text for text in seen] == [True]
    assert machine_policy == (policy.read_text() if policy.exists() else None)
    assert list(place.root.iterdir()) == []


def test_a_failed_installation_gives_the_policy_back_and_is_completed_later(
    place: Place, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note of what was wanted stays, and the next run installs exactly that."""
    policy.write_text("own")

    def fail(place: Place, packages: list[str]) -> None:
        raise SetupError("no network")

    monkeypatch.setattr(debian, "_install", fail)
    with pytest.raises(SetupError, match="no network"):
        debian._install_quietly(place, ["docker.io"], ["docker.service"])
    assert policy.read_text() == "own"

    wanted: list[list[str]] = []
    monkeypatch.setattr(debian, "_install", lambda _, packages: wanted.append(packages))
    debian.finish_interrupted(place)
    debian.finish_interrupted(place)

    assert wanted == [["docker.io"]]


def test_the_policy_comes_back_after_a_kill(place: Place, policy: Path) -> None:
    """A run killed in the middle leaves its policy and a note; stopping the engine removes both."""
    (place.root / "installing.json").write_text(json.dumps({"packages": [], "new_services": []}))
    policy.write_text("own")
    debian._set_policy()
    debian._set_policy()

    debian.abandon_interrupted(place)

    assert policy.read_text() == "own"
    assert list(place.root.iterdir()) == []


@pytest.mark.parametrize(
    ("fields", "uid", "expected"),
    [
        ({"ID": "fedora", "PRETTY_NAME": "Fedora 41"}, 0, "Fedora 41 is neither Debian nor Ubuntu"),
        ({"ID": "ubuntu", "ID_LIKE": "debian"}, 1000, "only root can install"),
        ({"ID": "mint", "ID_LIKE": "ubuntu debian"}, 1000, "only root can install"),
    ],
)
def test_who_cannot_install_is_told_what_to_do(
    monkeypatch: pytest.MonkeyPatch, place: Place, fields: dict[str, str], uid: int, expected: str
) -> None:
    """The sentence names the packages, the reason, and the way out; nothing is installed."""
    monkeypatch.setattr(debian, "release", lambda: fields)
    monkeypatch.setattr(debian, "installed", lambda _: set())
    monkeypatch.setattr(os, "geteuid", lambda: uid)

    with pytest.raises(SetupError, match=expected) as caught:
        debian.ensure(place, ["docker.io"], purpose="a private engine")

    assert "docker.io" in str(caught.value)
    assert "DOCKER_HOST" in str(caught.value)
