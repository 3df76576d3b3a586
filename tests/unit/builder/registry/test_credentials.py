"""Docker's configuration of logins, and its credential programs."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from skyward.builder.registry.auth import Credentials, find_credentials
from skyward.errors import RegistryError
from tests.unit.builder.registry.conftest import Configure

ANN = Credentials(username="ann", password="s3:cret")


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


AUTH = {"auth": encoded("ann:s3:cret")}


@pytest.mark.parametrize(
    ("config", "registry", "expected"),
    [
        ({}, "r.io", None),
        ({"auths": {"r.io": AUTH}}, "r.io", ANN),
        ({"auths": {"r.io": AUTH}}, "r.io:5000", None),
        ({"auths": {"r.io:5000": AUTH}}, "r.io:5000", ANN),
        ({"auths": {"https://r.io": AUTH}}, "r.io", ANN),
        ({"auths": {"https://r.io/v2/": AUTH}}, "r.io", ANN),
        ({"auths": {"https://index.docker.io/v1/": AUTH}}, "docker.io", ANN),
        ({"auths": {"r.io": {"username": "ann", "password": "s3:cret"}}}, "r.io", ANN),
        ({"auths": {"r.io": {"auth": encoded("ann:s3:cret\0")}}}, "r.io", ANN),
        ({"auths": {"r.io": {"identitytoken": "t"}}}, "r.io", Credentials(identity_token="t")),
        ({"auths": {"r.io": {"registrytoken": "t"}}}, "r.io", Credentials(registry_token="t")),
        ({"auths": {"r.io": {}}}, "r.io", None),
        ({"auths": None}, "r.io", None),
    ],
)
def test_auths(configure: Configure, config: dict[str, Any], registry: str, expected: Credentials | None) -> None:
    """An entry is found under the registry's name, or under a URL of that host."""
    configure(config)

    assert find_credentials(registry) == expected


def test_no_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who never logged in is anonymous; without DOCKER_CONFIG the configuration is in ~/.docker."""
    assert find_credentials("r.io") is None
    (tmp_path / "home" / ".docker").mkdir()
    (tmp_path / "home" / ".docker" / "config.json").write_text(json.dumps({"auths": {"r.io": AUTH}}))
    monkeypatch.delenv("DOCKER_CONFIG")
    assert find_credentials("r.io") == ANN


@pytest.mark.parametrize("text", ['{"auths": {"r.io": {"auth": "canary', '{"auths": {"r.io": {"auth": "canary!"}}}'])
def test_a_broken_configuration(configure: Configure, text: str) -> None:
    """The error names the file and shows nothing of it."""
    path = configure({})
    path.write_text(text)

    with pytest.raises(RegistryError) as caught:
        find_credentials("r.io")

    assert str(path) in str(caught.value)
    chain = repr(caught.value) + repr(caught.value.__cause__) + str(getattr(caught.value.__cause__, "doc", ""))
    assert "canary" not in chain


def helper(folder: Path, name: str, script: str) -> None:
    """Put a credential program on PATH."""
    (folder / "bin").mkdir(exist_ok=True)
    path = folder / "bin" / f"docker-credential-{name}"
    path.write_text(f'#!/bin/sh\n[ "$1" = get ] || exit 9\nread -r server\n{script}\n')
    path.chmod(0o755)


@pytest.fixture
def path_with_helpers(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{own_home / 'bin'}:{os.environ['PATH']}")
    return own_home


def answer(user: str, secret: str) -> str:
    """What a program says; its secret may name the registry it was asked for."""
    return f"""printf '{{"Username": "%s", "Secret": "%s"}}' '{user}' "{secret}" """


def test_a_credential_program(configure: Configure, path_with_helpers: Path) -> None:
    """The program named for a registry comes before the general one, and that before the file's own entries."""
    helper(path_with_helpers, "one", answer("of-one", "$server"))
    helper(path_with_helpers, "all", answer("of-all", "$server"))
    configure({"credHelpers": {"r.io": "one"}, "credsStore": "all", "auths": {"r.io": AUTH}})

    assert find_credentials("r.io") == Credentials(username="of-one", password="r.io")
    assert find_credentials("other.io") == Credentials(username="of-all", password="other.io")
    hub = Credentials(username="of-all", password="https://index.docker.io/v1/")
    assert find_credentials("docker.io") == hub


def test_an_identity_token_of_a_program(configure: Configure, path_with_helpers: Path) -> None:
    """A program says by the name "<token>" that it gives a token."""
    helper(path_with_helpers, "one", answer("<token>", "abc"))
    configure({"credsStore": "one"})

    assert find_credentials("r.io") == Credentials(identity_token="abc")


def test_a_program_that_knows_nothing(configure: Configure, path_with_helpers: Path) -> None:
    """Its answer means anonymous, or what the file has."""
    helper(path_with_helpers, "one", "echo 'credentials not found in native keychain'; exit 1")
    configure({"credsStore": "one", "auths": {"file.io": AUTH, "r.io": {}}})

    assert find_credentials("r.io") is None
    assert find_credentials("file.io") == ANN


def test_a_missing_program(configure: Configure) -> None:
    """The error names the program, who asks for it, and what to do."""
    path = configure({"credHelpers": {"r.io": "nowhere"}})

    with pytest.raises(RegistryError, match="docker-credential-nowhere") as caught:
        find_credentials("r.io")

    assert str(path) in caught.value.reason
    assert "Install docker-credential-nowhere" in caught.value.remedy
    assert "docker login r.io" in caught.value.remedy


@pytest.mark.parametrize("script", ["echo canary; echo canary >&2; exit 3", "echo canary", "echo '[\"canary\"]'"])
def test_a_program_that_fails(configure: Configure, path_with_helpers: Path, script: str) -> None:
    """What it said is not shown: it may hold the secret."""
    helper(path_with_helpers, "bad", script)
    configure({"credsStore": "bad"})

    with pytest.raises(RegistryError, match="docker-credential-bad") as caught:
        find_credentials("r.io")

    assert "canary" not in str(caught.value) + repr(caught.value.__cause__)


def test_nothing_shows_a_secret() -> None:
    """Neither repr nor str of credentials has more than the user's name."""
    shown = repr(Credentials(username="ann", password="canary", identity_token="canary", registry_token="canary"))

    assert "ann" in shown
    assert "canary" not in shown
    assert ANN.for_engine("docker.io") == {
        "username": "ann",
        "password": "s3:cret",
        "serveraddress": "https://index.docker.io/v1/",
    }
