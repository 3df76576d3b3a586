"""Whom registries' clients trust, which certificate they show, and how they ask again."""

from __future__ import annotations

import time
from email.utils import formatdate
from pathlib import Path

import pytest

from skyward.builder.registry import existence
from skyward.builder.registry.client import RegistryClient
from skyward.builder.registry.existence import Exists, Unknown
from skyward.builder.registry.reference import parse_reference
from skyward.errors import ConfigError, RegistryError
from tests.unit.builder.registry.conftest import Configure
from tests.unit.builder.registry.server import RegistryServer

AMD64 = "linux/amd64"


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that would have been waited between requests."""
    waits: list[float] = []
    monkeypatch.setattr("urllib3.util.retry.time.sleep", waits.append)
    return waits


def _certs(home: Path, server: RegistryServer) -> Path:
    folder = home / "home" / ".docker" / "certs.d" / server.host
    folder.mkdir(parents=True)
    return folder


def test_one_rule_for_bundles(
    certificate: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """SSL_CERT_FILE comes first, by whatever way a request goes; that another variable differs is said."""
    other = tmp_path / "other.pem"
    other.write_text("-----BEGIN CERTIFICATE-----\nYQ==\n-----END CERTIFICATE-----\n")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(other))
    monkeypatch.setattr("skyward.builder.registry.http.is_loopback", lambda _: False)  # which sees no variables
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with RegistryServer(certificate) as server:
        server.add_image("t")
        assert isinstance(existence.check(f"https://{server.host}/x:t", platform=AMD64), Exists)
    assert f"SSL_CERT_FILE={certificate} are trusted; those of REQUESTS_CA_BUNDLE={other}" in caplog.text


def test_distrust_names_what_is_trusted(certificate: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The file, and the variable that it comes from."""
    other = tmp_path / "other.pem"
    other.write_text(Path("/etc/ssl/certs/ca-certificates.crt").read_text())
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(other))
    with RegistryServer(certificate) as server:
        found = existence.check(f"https://{server.host}/x:t", platform=AMD64)
    assert isinstance(found, Unknown)
    assert f"{other} (named by REQUESTS_CA_BUNDLE)" in found.reason


@pytest.mark.parametrize("what", ["missing", "empty"])
def test_a_bundle_that_is_none(
    server: RegistryServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: str
) -> None:
    """The error names file and variable; it is not one of a library."""
    bundle = tmp_path / "bundle.pem"
    if what == "empty":
        bundle.touch()
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    with pytest.raises(ConfigError, match=r"SSL_CERT_FILE") as caught:
        existence.check(f"https://{server.host}/x:t", platform=AMD64)
    assert str(bundle) in str(caught.value)


def test_what_the_engine_is_given(certificate: Path, own_home: Path) -> None:
    """`certs.d` is read: the registry's CA, and the certificate that it wants of its clients."""
    with RegistryServer(certificate, client_ca=certificate) as server:
        server.add_image("t")
        folder = _certs(own_home, server)
        (folder / "ca.crt").write_text((certificate.parent / "cert.pem").read_text())
        found = existence.check(f"https://{server.host}/x:t", platform=AMD64)
        assert isinstance(found, Unknown)
        (folder / "client.cert").write_text((certificate.parent / "cert.pem").read_text())
        with pytest.raises(RegistryError, match=r"client\.cert .* has no key client\.key"):
            RegistryClient(parse_reference(f"https://{server.host}/x:t"))
        (folder / "client.key").write_text((certificate.parent / "key.pem").read_text())
        assert isinstance(existence.check(f"https://{server.host}/x:t", platform=AMD64), Exists)


def test_a_damaged_file_of_the_engine(certificate: Path, own_home: Path) -> None:
    """It is named."""
    with RegistryServer(certificate) as server:
        (_certs(own_home, server) / "ca.crt").write_text("nothing")
        found = existence.check(f"https://{server.host}/x:t", platform=AMD64)
    assert isinstance(found, Unknown)
    assert "ca.crt, which is for a registry's TLS, cannot be used" in found.reason


@pytest.mark.parametrize("status", [429, 502, 503, 504])
@pytest.mark.parametrize("as_date", [False, True])
def test_a_registry_that_asks_to_wait(
    server: RegistryServer, waits: list[float], status: int, as_date: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It is asked again after that time, and the wait is said."""
    server.add_image("t")
    server.failures = [status, status]
    server.retry_after = formatdate(time.time() + 9, usegmt=True) if as_date else "9"

    assert isinstance(existence.check(f"{server.host}/x:t", platform=AMD64), Exists)
    assert [round(wait) for wait in waits] in ([9, 9], [8, 8], [9, 8], [8, 9])
    assert f"status {status}; asking again in" in caplog.text


def test_a_wait_that_is_too_long(server: RegistryServer, waits: list[float]) -> None:
    """The registry's word is the error: status, URL, when to ask again."""
    server.failures, server.retry_after = [429], "21600"

    found = existence.check(f"{server.host}/x:t", platform=AMD64)

    assert isinstance(found, Unknown)
    assert f"GET http://{server.host}/v2/x/manifests/t" in found.reason
    assert "status 429 Too Many Requests" in found.reason
    assert "after 21600 s" in found.reason
    assert "limits the rate" in found.remedy
    assert waits == []


def test_a_wait_that_is_nonsense(server: RegistryServer, waits: list[float]) -> None:
    """It counts as none: the usual waits."""
    server.add_image("t")
    server.failures, server.retry_after = [503], "soon"
    assert isinstance(existence.check(f"{server.host}/x:t", platform=AMD64), Exists)
    assert all(wait < 9 for wait in waits)


def test_a_registry_that_goes_on_failing(server: RegistryServer, waits: list[float]) -> None:
    """It is unknown, never absent; the error says how often it was asked."""
    server.failures = [503] * 9

    found = existence.check(f"{server.host}/x:t", platform=AMD64)

    assert isinstance(found, Unknown)
    assert "status 503 Service Unavailable, asked 5 times" in found.reason
    assert sum(waits) < 30


def test_a_token_service_that_fails_for_a_while(
    server: RegistryServer, configure: Configure, waits: list[float]
) -> None:
    """Tokens are asked for again as well."""
    server.auth = "bearer"
    server.add_image("t")
    configure({"auths": {server.host: {"username": "ann", "password": "right"}}})
    with RegistryClient(parse_reference(f"{server.host}/x:t")) as client:
        server.failures, server.retry_after = [503], "2"
        assert client.digest_of("t")
        server.tokens.clear()
        assert client.digest_of("t")
    assert waits == [2]
