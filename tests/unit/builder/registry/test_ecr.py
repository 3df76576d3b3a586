"""Amazon's registry: boto3 as it is, against an endpoint of the test's own."""

from __future__ import annotations

import base64
import json
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from skyward.builder.registry import existence
from skyward.builder.registry.auth import Credentials, ensure_repository, is_ecr, registry_credentials
from skyward.builder.registry.existence import Unknown
from skyward.builder.registry.reference import parse_reference
from skyward.errors import RegistryError
from tests.unit.builder.registry.conftest import Configure

HOST = "123456789012.dkr.ecr.eu-west-1.amazonaws.com"
HOUR_S = 3600.0


class Ecr:
    """Answers as AWS does; `lasts_s` is how long its tokens last."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.repositories: set[str] = set()
        self.lasts_s = 12 * HOUR_S
        self.refusal = ""

    def answer(self, action: str, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.calls.append(action)
        if self.refusal:
            return 400, {"__type": self.refusal, "message": "the canary is not in here"}
        if action == "GetAuthorizationToken":
            token = base64.b64encode(f"AWS:token-{len(self.calls)}".encode()).decode()
            return 200, {"authorizationData": [{"authorizationToken": token, "expiresAt": time.time() + self.lasts_s}]}
        assert action in ("DescribeRepositories", "CreateRepository")
        names = {*asked.get("repositoryNames", ()), asked.get("repositoryName")} - {None}
        if action == "DescribeRepositories" and not names <= self.repositories:
            return 400, {"__type": "RepositoryNotFoundException", "message": "there is none"}
        if action == "CreateRepository" and names <= self.repositories:
            return 400, {"__type": "RepositoryAlreadyExistsException", "message": "there is one"}
        self.repositories |= names
        return 200, {}


@pytest.fixture
def ecr(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ecr]:
    ecr = Ecr()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, answer = ecr.answer(self.headers["X-Amz-Target"].rpartition(".")[2], asked)
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/x-amz-json-1.1")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_request(self, code: object = "-", size: object = "-") -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL_ECR", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "an-id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-key")
    yield ecr
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize(
    ("registry", "expected"),
    [
        (HOST, True),
        ("123456789012.dkr.ecr-fips.us-gov-west-1.amazonaws.com", True),
        ("123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn", True),
        ("12345.dkr.ecr.eu-west-1.amazonaws.com", False),
        (f"{HOST}.example.com", False),
        ("public.ecr.aws", False),
        ("docker.io", False),
    ],
)
def test_which_registries_are_amazons(registry: str, expected: bool) -> None:
    """By the form of the name, whole."""
    assert is_ecr(registry) == expected


def test_a_token_is_used_again(ecr: Ecr) -> None:
    """A token of 12 hours is fetched once."""
    assert registry_credentials(HOST) == Credentials(username="AWS", password="token-1")
    assert registry_credentials(HOST) == Credentials(username="AWS", password="token-1")
    assert ecr.calls == ["GetAuthorizationToken"]


def test_a_token_is_replaced_before_its_end(ecr: Ecr) -> None:
    """One that would end within the hour is not used again."""
    ecr.lasts_s = HOUR_S - 5
    registry_credentials(HOST)

    assert registry_credentials(HOST) == Credentials(username="AWS", password="token-2")


def test_the_repository_is_made_when_absent(ecr: Ecr) -> None:
    """Once; one that is there is left alone."""
    reference = parse_reference(f"{HOST}/team/sky:1")
    ensure_repository(reference)
    ensure_repository(reference)

    assert ecr.repositories == {"team/sky"}
    assert ecr.calls == ["DescribeRepositories", "CreateRepository", "DescribeRepositories"]


def test_a_refusal(ecr: Ecr) -> None:
    """The error says what AWS said and which permission is wanted."""
    ecr.refusal = "AccessDeniedException"

    with pytest.raises(RegistryError, match="AccessDeniedException") as caught:
        registry_credentials(HOST)

    assert "ecr:GetAuthorizationToken" in caught.value.remedy


def test_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an AWS login an image is unknown, and the remedy is AWS's."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")

    with pytest.raises(RegistryError, match="credentials") as caught:
        registry_credentials(HOST)

    assert "aws configure" in caught.value.remedy


def test_without_boto3(configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `docker login` left is used, else the error says what to install."""
    monkeypatch.setitem(sys.modules, "boto3", None)

    with pytest.raises(RegistryError, match=r"skyward\[aws\]"):
        registry_credentials(HOST)
    configure({"auths": {HOST: {"username": "AWS", "password": "p"}}})
    assert registry_credentials(HOST) == Credentials(username="AWS", password="p")


def test_an_own_credential_program_comes_first(configure: Configure, ecr: Ecr) -> None:
    """Who named a program for this registry wants it to be asked."""
    configure({"credHelpers": {HOST: "nowhere"}})

    with pytest.raises(RegistryError, match="docker-credential-nowhere"):
        registry_credentials(HOST)
    assert ecr.calls == []


def test_the_token_reaches_the_registry(ecr: Ecr, server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check of an image in Amazon's registry shows the token to it, through a proxy here."""
    server.auth, server.user, server.password = "basic", "AWS", "token-1"
    server.add_image("t")
    monkeypatch.setenv("HTTP_PROXY", f"http://{server.host}")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    found = existence.check(f"http://{HOST}/team/sky:t", platform="linux/amd64")

    assert not isinstance(found, Unknown), found
    assert ecr.calls == ["GetAuthorizationToken"]
