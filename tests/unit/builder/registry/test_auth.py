"""Logins for registries: from Docker's configuration, its credential programs, and AWS."""

from __future__ import annotations

import base64
import json
import os
import sys
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from skyward.builder.registry.auth import (
    Credentials,
    ensure_repository,
    login,
    logins_for,
    registry_credentials,
    with_logins,
)
from skyward.builder.registry.reference import parse_reference
from skyward.errors import RegistryError
from tests.unit.builder.registry.conftest import Configure

ECR = "123456789012.dkr.ecr.eu-west-1.amazonaws.com"


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


AUTH = {"auth": encoded("ann:s3:cret")}
ANN = ("ann", "s3:cret")


def found(registry: str) -> tuple[str, str] | str | None:
    """Name and password of a registry's login, or its token."""
    credentials = registry_credentials(registry)
    if credentials is None:
        return None
    return credentials.auth.get("identitytoken") or (credentials.auth["username"], credentials.auth["password"])


@pytest.mark.parametrize(
    ("config", "registry", "expected"),
    [
        ({"currentContext": "x"}, "r.io", None),
        ({"auths": {"r.io": AUTH}}, "r.io", ANN),
        ({"auths": {"r.io": AUTH}}, "r.io:5000", None),
        ({"auths": {"https://r.io/v2/": AUTH}}, "r.io", ANN),
        ({"auths": {"https://index.docker.io/v1/": AUTH}}, "docker.io", ANN),
        ({"auths": {"r.io": {"identitytoken": "t"}}}, "r.io", "t"),
        ({"auths": {"r.io": {}}}, "r.io", None),
    ],
)
def test_auths(configure: Configure, config: dict[str, Any], registry: str, expected: object) -> None:
    """An entry is found under the registry's name, or under a URL of that host."""
    configure(config)
    assert found(registry) == expected


def test_the_variable_precedes_the_file(configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the file's login is one that the docker command finds by itself; without both a user is anonymous."""
    assert found("r.io") is None
    configure({"auths": {"r.io": AUTH}})
    own = registry_credentials("r.io")
    monkeypatch.setenv("DOCKER_AUTH_CONFIG", json.dumps({"auths": {"r.io": {"auth": encoded("bob:x")}}}))
    other = registry_credentials("r.io")
    assert own
    assert other
    assert (own.is_configured, other.is_configured, other.auth["username"]) == (True, False, "bob")


@pytest.mark.parametrize(
    "text", ['{"auths": {"r.io": {"auth": "canary', '{"auths": {"r.io": {"auth": "canary!"}}}', "[1]"]
)
def test_a_damaged_configuration(configure: Configure, text: str) -> None:
    """The error names the file and shows nothing of it."""
    path = configure({})
    path.write_text(text)
    with pytest.raises(RegistryError) as caught:
        registry_credentials("r.io")
    assert str(path) in caught.value.reason
    assert "canary" not in str(caught.value)
    assert caught.value.__suppress_context__


@pytest.fixture
def programs(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of credential programs on PATH."""
    (own_home / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{own_home / 'bin'}:{os.environ['PATH']}")
    return own_home / "bin"


def program(folder: Path, name: str, script: str) -> None:
    path = folder / f"docker-credential-{name}"
    path.write_text(f'#!/bin/sh\n[ "$1" = get ] || exit 9\nread -r server\n{script}\n')
    path.chmod(0o755)


def answer(user: str, secret: str) -> str:
    """Script that prints a login; its secret may name the registry it was asked for."""
    return f"""printf '{{"Username": "%s", "Secret": "%s"}}' '{user}' "{secret}" """


def test_credential_programs(configure: Configure, programs: Path) -> None:
    """The program of a registry precedes the general one, and that the file's own entries."""
    program(programs, "one", answer("of-one", "$server"))
    program(programs, "all", '[ "$server" != file.io ] || { echo credentials not found in native keychain; exit 1; }\n')
    configure({"credHelpers": {"r.io": "one"}, "credsStore": "all", "auths": {"r.io": AUTH, "file.io": AUTH}})
    assert found("r.io") == ("of-one", "r.io")
    assert found("file.io") == ANN
    program(programs, "all", answer("<token>", "abc"))
    assert found("other.io") == "abc"


@pytest.mark.parametrize("script", ["echo canary; echo canary >&2; exit 3", "echo canary"])
def test_a_program_that_fails(configure: Configure, programs: Path, script: str) -> None:
    """Its output is not shown, as it may contain the secret."""
    program(programs, "bad", script)
    configure({"credsStore": "bad"})
    with pytest.raises(RegistryError, match="docker-credential-bad") as caught:
        registry_credentials("r.io")
    assert "canary" not in str(caught.value)
    assert caught.value.__suppress_context__
    assert logins_for(["r.io"]) == {}
    assert "canary" not in repr(Credentials({"username": "ann", "password": "canary"}))


def test_logins_for_the_docker_command(configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    """A login of the variable is in a private configuration for a `with` block; one of the file needs none."""
    configure({"auths": {"r.io": AUTH}, "credsStore": "", "currentContext": "mine"})
    with login(logins_for(["r.io", "none.io"])) as variables:
        assert variables == {}
    monkeypatch.setenv("DOCKER_AUTH_CONFIG", json.dumps({"auths": {"q.io": AUTH}}))
    with login(logins_for(["q.io"])) as variables:
        path = Path(variables["DOCKER_CONFIG"]) / "config.json"
        assert path.stat().st_mode & 0o077 == path.parent.stat().st_mode & 0o077 == 0
        assert json.loads(path.read_text())["auths"] == {"r.io": AUTH, "q.io": AUTH}
        assert json.loads(path.read_text())["currentContext"] == "mine"
    assert not path.parent.exists()


def test_a_login_precedes_a_store() -> None:
    """Docker reads an entry of the file only if no program is named for the registry."""
    made = with_logins({"credsStore": "all"}, {"docker.io": Credentials({"identitytoken": "t"})})
    key = "https://index.docker.io/v1/"
    assert (made["auths"], made["credHelpers"]) == ({key: {"identitytoken": "t"}}, {key: ""})


class Ecr:
    """A client of boto3 for ECR."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, service: str, **settings: Any) -> Ecr:
        assert (service, settings["region_name"]) == ("ecr", "eu-west-1")
        return self

    def __getattr__(self, action: str) -> Any:
        def call(**arguments: Any) -> Any:
            self.calls.append((action, arguments))
            if self.failure:
                raise self.failure
            return {"authorizationData": [{"authorizationToken": encoded("AWS:token")}]}

        return call


def ecr(monkeypatch: pytest.MonkeyPatch, failure: Exception | None = None) -> Ecr:
    made = Ecr(failure)
    monkeypatch.setattr(boto3, "client", made)
    return made


def test_a_token_of_aws(configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is requested where there is no login, and its repository is created."""
    aws = ecr(monkeypatch)
    assert found(ECR) == ("AWS", "token")
    ensure_repository(parse_reference(f"{ECR}/team/sky:1"))
    assert aws.calls[1:] == [("create_repository", {"registryId": "123456789012", "repositoryName": "team/sky"})]
    configure({"auths": {ECR: AUTH}})
    assert found(ECR) == ANN
    assert len(aws.calls) == 2
    ecr(monkeypatch, ClientError({"Error": {"Code": "RepositoryAlreadyExistsException"}}, "CreateRepository"))
    ensure_repository(parse_reference(f"{ECR}/team/sky:1"))


def test_a_refusal_of_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error quotes AWS and names the permission."""
    failure = ClientError({"Error": {"Code": "AccessDeniedException"}}, "GetAuthorizationToken")
    ecr(monkeypatch, failure)
    with pytest.raises(RegistryError) as caught:
        registry_credentials(ECR)
    assert str(failure) in caught.value.reason
    assert "ecr:GetAuthorizationToken" in caught.value.remedy


def test_without_boto3(configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stored login is used, else the error says what to install; the repository is for the push to find."""
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(RegistryError, match=r"skyward\[aws\]"):
        registry_credentials(ECR)
    ensure_repository(parse_reference(f"{ECR}/team/sky:1"))
    configure({"auths": {ECR: AUTH}})
    assert found(ECR) == ANN
