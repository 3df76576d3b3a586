"""Logins of clouds, by their own programs; of a variable; and how the docker command gets what is not in its file."""

from __future__ import annotations

import json
import os
import stat
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path

import pytest

from skyward.builder.registry.auth import (
    Credentials,
    cloud_credentials,
    find_credentials,
    login,
    logins_for,
    registry_credentials,
)
from skyward.errors import RegistryError
from tests.unit.builder.registry.conftest import Configure

GOOGLE, OLD_GOOGLE = "europe-west4-docker.pkg.dev", "eu.gcr.io"
AZURE = "team1.azurecr.io"
ANN = Credentials(username="ann", password="canary")
Program = Callable[[str, str], None]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Put a program on an otherwise empty PATH: its name, and what it does in shell."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def write(name: str, does: str) -> None:
        path = folder / name
        path.write_text(f"#!/bin/sh\n{does}\n")
        path.chmod(0o755)

    return write


@pytest.mark.parametrize("registry", [GOOGLE, OLD_GOOGLE, "gcr.io"])
def test_google_by_its_credential_program(program: Program, registry: str) -> None:
    """It is asked as if the configuration named it."""
    secret = '{"Username": "_dcgcloud_token", "Secret": "canary"}'
    program("docker-credential-gcloud", f"read host; [ \"$host\" = {registry} ] && echo '{secret}'")

    assert registry_credentials(registry) == Credentials(username="_dcgcloud_token", password="canary")


def test_google_by_its_command_line(program: Program) -> None:
    """An access token goes with a fixed name."""
    program("gcloud", '[ "$*" = "auth print-access-token" ] && echo canary')

    assert registry_credentials(GOOGLE) == Credentials(username="oauth2accesstoken", password="canary")


def test_azure_by_its_command_line(program: Program) -> None:
    """The token that `az acr login` would have stored is given out; the registry is named without its domain."""
    program("az", '[ "$4" = team1 ] && echo \'{"accessToken": "canary", "loginServer": "team1.azurecr.io"}\'')

    assert registry_credentials(AZURE) == Credentials(
        username="00000000-0000-0000-0000-000000000000", password="canary"
    )


@pytest.mark.parametrize(
    ("registry", "name", "remedy"), [(GOOGLE, "gcloud", "gcloud auth login"), (AZURE, "az", "az login")]
)
def test_nobody_is_logged_in_to_the_cloud(program: Program, registry: str, name: str, remedy: str) -> None:
    """Its own last words, and the command that helps."""
    program(name, "echo 'Please log in.' >&2; exit 1")

    with pytest.raises(RegistryError, match=r"Please log in") as caught:
        cloud_credentials(registry)
    assert remedy in caught.value.remedy


def test_what_the_configuration_says_comes_first(program: Program, configure: Configure) -> None:
    """Who has logged in by hand is not asked again."""
    program("gcloud", "echo other")
    configure({"auths": {GOOGLE: {"username": "ann", "password": "canary"}}})

    assert registry_credentials(GOOGLE) == ANN


@pytest.mark.parametrize("registry", ["r.io", "docker.io", "gcr.io.example.com", "azurecr.io", "pkg.dev"])
def test_other_registries_ask_no_cloud(program: Program, registry: str) -> None:
    """A name that only looks like a cloud's gets nobody's token."""
    for name in ("gcloud", "az", "docker-credential-gcloud", "docker-credential-acr-env"):
        program(name, "echo canary")

    assert registry_credentials(registry) is None


def test_a_cloud_without_its_programs(program: Program) -> None:
    """Is a registry like any other: it may be open to all."""
    assert registry_credentials(GOOGLE) is None
    assert registry_credentials(AZURE) is None


def test_a_variable_with_logins(configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    """DOCKER_AUTH_CONFIG has the form of the configuration, and wins over it for the registries that it names."""
    configure({"auths": {"r.io": {"username": "file", "password": "x"}, "s.io": {"username": "file", "password": "x"}}})
    monkeypatch.setenv("DOCKER_AUTH_CONFIG", json.dumps({"auths": {"r.io": {"username": "ann", "password": "canary"}}}))

    assert find_credentials("r.io") == ANN
    assert find_credentials("s.io") == Credentials(username="file", password="x")
    monkeypatch.setenv("DOCKER_AUTH_CONFIG", '{"auths": {"r.io": "canary')
    with pytest.raises(RegistryError, match="DOCKER_AUTH_CONFIG") as caught:
        find_credentials("r.io")
    assert "canary" not in str(caught.value)


def test_the_docker_command_finds_what_its_file_does_not_have(
    configure: Configure, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the time of the block a configuration with that login; the user's own keeps its form, and its programs."""
    configure({"auths": {"r.io": {"username": "file", "password": "x"}}, "credsStore": "mine", "psFormat": "x"})
    (own_home / "docker" / "cli-plugins").mkdir()
    logins = {"auths": {"s.io": {"username": "ann", "password": "canary"}}}
    monkeypatch.setenv("DOCKER_AUTH_CONFIG", json.dumps(logins))
    with login(logins_for(["s.io"])) as found:
        folder = Path(found["DOCKER_CONFIG"])
        config = json.loads((folder / "config.json").read_text())
        modes = [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "config.json")]
        assert (folder / "cli-plugins").is_dir()

    ours = {"auth": b64encode(b"ann:canary").decode()}
    assert config["auths"] == {"r.io": {"username": "file", "password": "x"}, "s.io": ours}
    assert (config["credsStore"], config["psFormat"], config["credHelpers"]) == ("mine", "x", {"s.io": ""})
    assert modes == [0o700, 0o600]
    assert not folder.exists()


def test_the_docker_command_keeps_its_own_login(configure: Configure) -> None:
    """What its file leads to it finds without us; and who is anonymous stays so."""
    configure({"auths": {"r.io": {"username": "ann", "password": "canary"}}})

    with login(logins_for(["r.io"])) as known, login(logins_for(["s.io"])) as unknown:
        assert (known, unknown) == ({}, {})


def test_a_variable_with_programs(configure: Configure, own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As GitLab has it: credential programs in DOCKER_AUTH_CONFIG, and Docker's hub under any of its names."""
    program = own_home / "docker-credential-ci"
    program.write_text('#!/bin/sh\nread server\necho \'{"Username": "ann", "Secret": "canary"}\'\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{own_home}:{os.environ['PATH']}")
    hub = {"docker.io": {"username": "ann", "password": "canary"}}
    monkeypatch.setenv("DOCKER_AUTH_CONFIG", json.dumps({"credHelpers": {"r.io": "ci"}, "auths": hub}))

    assert find_credentials("r.io") == ANN
    assert find_credentials("docker.io") == ANN
    assert find_credentials("s.io") is None


def test_logins_for_registries_that_may_be_used(configure: Configure) -> None:
    """A program that fails stops what needs the registry, and not what may do without it."""
    configure({"credHelpers": {"r.io": "nowhere"}, "auths": {"s.io": {"username": "ann", "password": "canary"}}})

    assert logins_for(perhaps=["r.io", "s.io", "t.io"]) == {"s.io": ANN}
    with pytest.raises(RegistryError, match="docker-credential-nowhere"):
        logins_for(["r.io"])
