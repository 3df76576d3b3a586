"""How registries are spoken to: tokens, TLS, proxies, damaged content."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from skyward.builder.registry import existence
from skyward.builder.registry.client import RegistryClient
from skyward.builder.registry.existence import Exists, Unknown
from skyward.builder.registry.reference import parse_reference
from skyward.errors import RegistryError
from tests.unit.builder.registry.conftest import Configure
from tests.unit.builder.registry.server import MANIFEST, RegistryServer

AMD64 = "linux/amd64"


def test_an_expired_token_is_replaced(server: RegistryServer, configure: Configure) -> None:
    """A token that the registry no longer takes is fetched anew, within one client."""
    server.auth = "bearer"
    digest = server.add_image("t")
    configure({"auths": {server.host: {"username": "ann", "password": "right"}}})
    with RegistryClient(parse_reference(f"{server.host}/x:t")) as client:
        assert client.digest_of("t") == digest
        server.tokens.clear()
        assert client.digest_of("t") == digest
    assert server.paths("GET").count("/token") == 2


def test_rights_asked_for(server: RegistryServer, configure: Configure) -> None:
    """A token is asked for what will be done, in one go."""
    server.auth = "bearer"
    configure({"auths": {server.host: {"username": "ann", "password": "right"}}})
    with RegistryClient(parse_reference(f"{server.host}/team/x"), "pull,push") as client:
        assert not client.has_blob("sha256:" + "0" * 64)
    assert "['repository:team/x:pull,push']" in server.tokens[0]


def test_a_registry_token(server: RegistryServer, configure: Configure) -> None:
    """A token made for the registry itself is sent as it is."""
    server.auth = "bearer"
    server.tokens = ["given"]
    server.add_image("t")
    configure({"auths": {server.host: {"registrytoken": "given"}}})

    assert isinstance(existence.check(f"{server.host}/x:t", platform=AMD64), Exists)


def test_damaged_content(server: RegistryServer) -> None:
    """What does not have the digest it was asked by is refused."""
    digest = server.add_image("t")
    server.manifests[digest] = MANIFEST, server.manifests[digest][1] + b" "
    with RegistryClient(parse_reference(f"{server.host}/x")) as client, pytest.raises(RegistryError, match=digest):
        client.manifest(digest)


def test_the_ca_bundle_of_the_host(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SSL_CERT_FILE decides whom to trust, where requests' own variable does not; distrust says so."""
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    with RegistryServer(certificate) as server:
        server.add_image("t")
        reference = f"https://{server.host}/x:t"
        found = existence.check(reference, platform=AMD64)
        assert isinstance(found, Unknown)
        assert "SSL_CERT_FILE" in found.remedy
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert isinstance(existence.check(reference, platform=AMD64), Exists)


def test_plain_http_where_tls_is_spoken(server: RegistryServer) -> None:
    """A registry without TLS is not spoken to without it unless asked, and the error says how to ask."""
    found = existence.check(f"https://{server.host}/x:t", platform=AMD64)

    assert isinstance(found, Unknown)
    assert f"http://{server.host}/x" in found.remedy


def test_credentials_need_tls(certificate: Path, configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry behind TLS cannot have the password sent to somebody without it."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with RegistryServer(certificate) as server:
        server.auth, server.scheme = "bearer", "http"
        configure({"auths": {server.host: {"username": "ann", "password": "right"}}})
        found = existence.check(f"https://{server.host}/x:t", platform=AMD64)
    assert isinstance(found, Unknown)
    assert "not protected by TLS" in found.reason
    assert all(authorization == "" for _, _, authorization in server.requests)


def test_a_proxy_and_a_netrc(
    server: RegistryServer, configure: Configure, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Registries elsewhere are reached through the proxy; what ~/.netrc has for them is not sent."""
    server.auth = "basic"
    server.add_image("t")
    monkeypatch.setenv("HTTP_PROXY", f"http://{server.host}")
    (tmp_path / "netrc").write_text("machine registry.test login other password other\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    configure({"auths": {"registry.test": {"username": "ann", "password": "right"}}})

    assert isinstance(existence.check("http://registry.test/x:t", platform=AMD64), Exists)
    assert server.requests[0][1] == "http://registry.test/v2/x/manifests/t"
    ours = "Basic " + base64.b64encode(b"ann:right").decode()
    assert {authorization for _, _, authorization in server.requests} == {"", ours}


def test_no_proxy_before_loopback(server: RegistryServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy would look for the registry on a loopback interface of its own."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    server.add_image("t")

    assert isinstance(existence.check(f"{server.host}/x:t", platform=AMD64), Exists)
