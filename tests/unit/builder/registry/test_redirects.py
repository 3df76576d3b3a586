"""Credentials stay with the registry they belong to: what hosts that it refers to get, over real HTTP and HTTPS."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from skyward.builder.registry.client import RegistryClient
from skyward.builder.registry.http import origin_of
from skyward.builder.registry.reference import Reference, parse_reference
from skyward.errors import RegistryError
from tests.unit.builder.registry.conftest import Configure
from tests.unit.builder.registry.server import RegistryServer, digest_of

BLOB = b"a layer"
BASIC = "Basic " + base64.b64encode(b"ann:right").decode()
SECRETS = (BASIC.partition(" ")[2], "token-", "refresh-me", "session=registry")


@pytest.fixture
def registry(certificate: Path, configure: Configure, monkeypatch: pytest.MonkeyPatch) -> Iterator[RegistryServer]:
    """A registry behind TLS that wants a password, which is configured."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with RegistryServer(certificate) as server:
        server.auth = "basic"
        configure({"auths": {server.host: {"username": "ann", "password": "right"}}})
        yield server


@pytest.fixture
def stranger(certificate: Path) -> Iterator[RegistryServer]:
    """A host with a certificate that is trusted, at the same address and another port."""
    with RegistryServer(certificate) as server:
        yield server


@pytest.fixture
def in_the_clear() -> Iterator[RegistryServer]:
    """A host without TLS."""
    with RegistryServer() as server:
        yield server


def _reference(server: RegistryServer) -> Reference:
    return parse_reference(f"{server.scheme}://{server.host}/team/x:t")


def _url(server: RegistryServer, path: str = "/stored/") -> str:
    return f"{server.scheme}://{server.host}{path}{digest_of(BLOB)}"


def _nothing_secret(server: RegistryServer) -> bool:
    """Whether a host was asked, and got none of our secrets in whatever form."""
    said = str(server.headers) + str(server.requests)
    return not any(secret in said for secret in SECRETS)


@pytest.mark.parametrize("auth", ["basic", "bearer"])
def test_a_blob_elsewhere(registry: RegistryServer, stranger: RegistryServer, auth: str) -> None:
    """A redirect to the store that has a blob is followed, and what the registry takes is not sent along."""
    registry.auth = auth
    registry.redirects = {"/blobs/": _url(stranger)}
    stranger.blobs[digest_of(BLOB)] = BLOB
    with RegistryClient(_reference(registry)) as client:
        assert client.blob(digest_of(BLOB)).content == BLOB
        assert client.has_blob(digest_of(BLOB))
    assert len(stranger.requests) == 2
    assert _nothing_secret(stranger)
    assert any(authorization for _, _, authorization in registry.requests)


@pytest.mark.parametrize("challenge", ["basic", "bearer"])
def test_a_challenge_from_elsewhere(registry: RegistryServer, stranger: RegistryServer, challenge: str) -> None:
    """The host that a blob is redirected to asks for a password, or names a token service of its own: it gets none."""
    stranger.auth = challenge
    registry.redirects = {"/blobs/": _url(stranger)}
    with (
        RegistryClient(_reference(registry)) as client,
        pytest.raises(RegistryError, match=rf"refers to {stranger.host}.*status 401.*not sent there"),
    ):
        client.blob(digest_of(BLOB))
    assert len(stranger.requests) == 1
    assert _nothing_secret(stranger)


@pytest.mark.parametrize("word", ["/blobs/", "/manifests/", "/uploads/"])
def test_a_redirect_out_of_tls(registry: RegistryServer, in_the_clear: RegistryServer, word: str) -> None:
    """A registry behind TLS cannot lead anything out of it: nothing at all is sent there."""
    registry.redirects = {word: _url(in_the_clear)}
    with (
        RegistryClient(_reference(registry), "pull,push") as client,
        pytest.raises(RegistryError, match="not protected by TLS") as caught,
    ):
        if word == "/uploads/":
            client.put_blob(BLOB)
        else:
            (client.blob if word == "/blobs/" else client.manifest)(digest_of(BLOB))
    assert in_the_clear.requests == []
    assert "X-Forwarded-Proto" in caught.value.remedy


def test_an_upload_elsewhere(registry: RegistryServer, stranger: RegistryServer) -> None:
    """An upload goes on where the registry says; only the registry gets credentials."""
    registry.uploads_at = _url(stranger, "/uploads/")
    with RegistryClient(_reference(registry), "pull,push") as client:
        client.put_blob(BLOB)
        stranger.auth = "basic"
        with pytest.raises(RegistryError, match=rf"refers to {stranger.host}"):
            client.put_blob(BLOB)
    assert [method for method, _, _ in stranger.requests] == ["PUT", "PUT"]
    assert _nothing_secret(stranger)


def test_an_upload_out_of_tls(registry: RegistryServer, in_the_clear: RegistryServer) -> None:
    """The same host and port count for nothing if TLS is gone."""
    registry.uploads_at = _url(in_the_clear, "/uploads/")
    with RegistryClient(_reference(registry), "pull,push") as client:
        with pytest.raises(RegistryError, match="not protected by TLS"):
            client.put_blob(BLOB)
        registry.uploads_at = f"http://{registry.host}/v2/team/x/blobs/uploads/1"
        with pytest.raises(RegistryError, match="not protected by TLS"):
            client.put_blob(BLOB)
    assert in_the_clear.requests == []


@pytest.mark.parametrize("trick", ["https://{stranger}\\@{registry}/", "https://{registry}@{stranger}/"])
def test_an_address_of_two_minds(registry: RegistryServer, stranger: RegistryServer, trick: str) -> None:
    """An address that URL libraries read in two ways leads to the stranger, who gets nothing."""
    registry.redirects = {"/blobs/": trick.format(stranger=stranger.host, registry=registry.host)}
    with RegistryClient(_reference(registry)) as client, pytest.raises(RegistryError):
        client.blob(digest_of(BLOB))
    assert len(stranger.requests) == 1
    assert _nothing_secret(stranger)


def test_a_circle(registry: RegistryServer) -> None:
    """Redirects without end are given up."""
    registry.redirects = {"/blobs/": f"/v2/team/x/blobs/{digest_of(BLOB)}"}
    with RegistryClient(_reference(registry)) as client, pytest.raises(RegistryError, match="more than 5 times"):
        client.blob(digest_of(BLOB))


def test_a_token_service_on_another_host(registry: RegistryServer, stranger: RegistryServer) -> None:
    """That is how registries work: the service that the registry itself names gets the password, the token stays."""
    registry.auth = "bearer"
    registry.challenge = f'Bearer realm="https://{stranger.host}/token",service="some, service"'
    registry.tokens = stranger.tokens
    digest = registry.add_image("t")
    with RegistryClient(_reference(registry)) as client:
        assert client.digest_of("t") == digest
    assert [authorization for _, _, authorization in stranger.requests] == [BASIC]


@pytest.mark.parametrize("identity_token", [False, True])
def test_a_token_service_that_redirects(
    registry: RegistryServer, stranger: RegistryServer, configure: Configure, identity_token: bool
) -> None:
    """Whoever it redirects to gets neither the password nor an identity token."""
    login = {"identitytoken": "refresh-me"} if identity_token else {"username": "ann", "password": "right"}
    configure({"auths": {registry.host: login}})
    registry.auth = "bearer"
    registry.redirects = {"/token": _url(stranger, "/token/")}
    with RegistryClient(_reference(registry)) as client, pytest.raises(RegistryError):
        client.digest_of("t")
    assert len(stranger.requests) == (0 if identity_token else 1)
    assert _nothing_secret(stranger)


def test_a_token_service_without_tls(server: RegistryServer, configure: Configure) -> None:
    """A registry without TLS may have its token service on its own host; another host has to speak TLS."""
    server.auth = "bearer"
    server.add_image("t")
    configure({"auths": {server.host: {"username": "ann", "password": "right"}}})
    with RegistryClient(_reference(server)) as client:
        assert client.digest_of("t")
    server.challenge = 'Bearer realm="http://elsewhere.test/token",service="some, service"'
    server.tokens.clear()
    with RegistryClient(_reference(server)) as client, pytest.raises(RegistryError, match="not protected by TLS"):
        client.digest_of("t")


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://A.example", ("https", "a.example", 443)),
        ("HTTP://a.example:80/x", ("http", "a.example", 80)),
        ("https://user:p@a.example:5000/", ("https", "a.example", 5000)),
        ("https://evil.example\\@a.example/", ("https", "evil.example", 443)),
        ("https://[::1]:5000/v2/", ("https", "[::1]", 5000)),
    ],
)
def test_origins(url: str, origin: tuple[str, str, int]) -> None:
    """Scheme, host and port, as requests connects to it."""
    assert origin_of(url) == origin


@pytest.mark.parametrize("url", ["", "/relative", "//host", "https://"])
def test_no_origin(url: str) -> None:
    """What is no address is refused."""
    with pytest.raises(RegistryError, match="not a URL"):
        origin_of(url)
