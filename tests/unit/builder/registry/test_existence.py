"""Exists, absent, or unknown with cause and remedy; and what is remembered of it."""

from __future__ import annotations

import base64
import json
import logging
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from skyward.builder.registry import existence
from skyward.builder.registry.existence import Absent, Exists, Unknown
from skyward.errors import ConfigError, RegistryError
from tests.unit.builder.registry.conftest import Configure
from tests.unit.builder.registry.server import INDEX, MANIFEST, RegistryServer

AMD64, ARM64 = "linux/amd64", "linux/arm64"


def login(configure: Configure, server: RegistryServer, user: str = "ann", password: str = "right") -> None:
    configure({"auths": {server.host: {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}}})


def test_exists(server: RegistryServer) -> None:
    """The digest is that of the manifest; the repository may be anything."""
    digest = server.add_image("t")

    found = existence.check(f"{server.host}/team/x:t", platform=AMD64)

    assert found == Exists(digest, f"{server.host}/team/x@{digest}")
    by_digest = existence.check(f"{server.host}/team/x@{digest}", platform=AMD64)
    assert by_digest == found


def test_absent(server: RegistryServer) -> None:
    """Absent is what a registry says in its own form, and is never remembered."""
    assert existence.check(f"{server.host}/x:t", platform=AMD64) == Absent()
    server.add_image("t")
    assert isinstance(existence.check(f"{server.host}/x:t", platform=AMD64), Exists)


def test_another_platform(server: RegistryServer) -> None:
    """An image for other machines is not the one asked for, alone or in an index."""
    server.add_image("arm", architecture="arm64", variant="v8")
    arm, amd = (server.add_image(name, architecture=name) for name in ("arm64", "amd64"))
    entries = [
        {"digest": digest, "mediaType": MANIFEST, "platform": {"os": "linux", "architecture": architecture}}
        for digest, architecture in ((arm, "arm64"), (amd, "amd64"))
    ]
    server.add_manifest("both", INDEX, json.dumps({"manifests": entries}).encode())

    check = existence.check
    assert check(f"{server.host}/x:arm", platform=AMD64) == Absent()
    assert isinstance(check(f"{server.host}/x:arm", platform=ARM64), Exists)
    assert isinstance(check(f"{server.host}/x:arm", platform="linux/arm64/v8"), Exists)
    assert check(f"{server.host}/x:both", platform=AMD64) == Exists(amd, f"{server.host}/x@{amd}")
    assert check(f"{server.host}/x:both", platform=ARM64) == Exists(arm, f"{server.host}/x@{arm}")
    assert check(f"{server.host}/x:both", platform="linux/riscv64") == Absent()


@pytest.mark.parametrize(
    ("page", "word"),
    [
        ((200, "text/html", b"<h1>Log in</h1>"), "text/html"),
        ((404, "text/html", b"<h1>Not found</h1>"), "no such page"),
        ((302, "text/html", b""), "302"),
        ((418, "text/plain", b"tea"), "418"),
        ((200, MANIFEST, b"no json"), "JSON"),
        ((200, MANIFEST, b"{}"), "no image"),
    ],
)
def test_what_is_no_registry(server: RegistryServer, page: tuple[int, str, bytes], word: str) -> None:
    """A login page or somebody's web server says neither yes nor no."""
    server.page = page

    found = existence.check(f"{server.host}/x:t", platform=AMD64)

    assert isinstance(found, Unknown)
    assert word in found.reason


def test_nobody_answers() -> None:
    """A registry that is down is unknown within seconds, with a cause and a remedy; raised, it stops."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{unused.getsockname()[1]}"
        started = time.monotonic()
        found = existence.check(f"{host}/x:t", platform=AMD64)

    assert isinstance(found, Unknown)
    assert time.monotonic() - started < 5
    assert host in found.reason
    assert "refused" in found.reason
    assert "runs" in found.remedy
    with pytest.raises(RegistryError, match="refused"):
        raise found.error()


def test_short_failures_are_ridden_out(server: RegistryServer) -> None:
    """A registry that fails twice is asked a third time; one that goes on failing is unknown."""
    server.add_image("t")
    server.failures = [503, 502]
    assert isinstance(existence.check(f"{server.host}/x:t", platform=AMD64), Exists)
    server.failures = [500] * 10
    found = existence.check(f"{server.host}/x:t", platform=AMD64, trust_s=0)
    assert isinstance(found, Unknown)
    assert "500" in found.reason


@pytest.mark.parametrize("auth", ["basic", "bearer"])
def test_login(server: RegistryServer, configure: Configure, auth: str) -> None:
    """A challenge is answered with what `docker login` left."""
    server.auth = auth
    server.add_image("t")
    login(configure, server)

    assert isinstance(existence.check(f"{server.host}/x:t", platform=AMD64), Exists)
    assert server.paths("GET").count("/token") == (auth == "bearer")


def test_an_identity_token(server: RegistryServer, configure: Configure) -> None:
    """A refresh token is exchanged by POST, so that it is in no URL."""
    server.auth = "bearer"
    server.add_image("t")
    configure({"auths": {server.host: {"identitytoken": "refresh-me"}}})

    assert isinstance(existence.check(f"{server.host}/x:t", platform=AMD64), Exists)
    assert server.paths("POST") == ["/token"]
    assert not any("refresh-me" in path for _, path, _ in server.requests)


@pytest.mark.parametrize("auth", ["basic", "bearer"])
def test_a_wrong_password(
    server: RegistryServer, configure: Configure, auth: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """It is unknown within seconds, with what to do, and the password is in no message, log or file."""
    server.auth = auth
    login(configure, server, password="canary-7f3a")
    caplog.set_level(logging.DEBUG)
    started = time.monotonic()

    found = existence.check(f"{server.host}/x:t", platform=AMD64)

    assert isinstance(found, Unknown)
    assert time.monotonic() - started < 5
    assert "credentials of ann" in found.reason
    assert f"docker login {server.host}" in found.remedy
    secret = base64.b64encode(b"ann:canary-7f3a").decode()
    said = caplog.text + repr(found) + str(found.error())
    files = "".join(path.read_text() for path in (tmp_path / "cache").rglob("*") if path.is_file())
    assert "canary-7f3a" not in said + files
    assert secret not in said + files


def test_no_password(server: RegistryServer) -> None:
    """Without a login the error asks for one."""
    server.auth = "basic"

    found = existence.check(f"{server.host}/x:t", platform=AMD64)

    assert isinstance(found, Unknown)
    assert "has none" in found.reason
    assert f"docker login {server.host}" in found.remedy


def test_a_missing_credential_program(server: RegistryServer, configure: Configure) -> None:
    """It matters only where the registry asks for credentials; the image is then unknown, not absent."""
    server.add_image("t")
    configure({"credsStore": "nowhere"})
    assert isinstance(existence.check(f"{server.host}/x:t", platform=AMD64), Exists)
    server.auth = "basic"
    found = existence.check(f"{server.host}/x:t", platform=AMD64, trust_s=0)
    assert isinstance(found, Unknown)
    assert "docker-credential-nowhere" in found.reason


def test_what_is_known_asks_nobody(server: RegistryServer) -> None:
    """A verified digest is taken from disk, until it is too old, forgotten, or asked for anew."""
    reference = f"{server.host}/x:t"
    digest = server.add_image("t")
    check = existence.check
    assert isinstance(check(reference, platform=AMD64), Exists)
    asked = len(server.requests)

    assert check(reference, platform=AMD64) == Exists(digest, f"{server.host}/x@{digest}")
    assert len(server.requests) == asked
    assert check(reference, platform=ARM64) == Absent()  # of that, nothing is known
    moved = server.add_image("t", variant="v9")
    assert check(reference, platform=AMD64, trust_s=0) == Exists(moved, f"{server.host}/x@{moved}")
    server.manifests.clear()
    assert isinstance(check(reference, platform=AMD64), Exists)
    existence.forget(reference, platform=AMD64)
    assert check(reference, platform=AMD64) == Absent()


def test_what_was_known_is_asked_by_a_head(server: RegistryServer) -> None:
    """An old answer that still holds costs one request without content, for an index too."""
    digest = server.add_image("one")
    entry = {"digest": digest, "mediaType": MANIFEST, "platform": {"os": "linux", "architecture": "amd64"}}
    server.add_manifest("list", INDEX, json.dumps({"manifests": [entry]}).encode())
    for tag in ("one", "list"):
        first = existence.check(f"{server.host}/x:{tag}", platform=AMD64)
        server.requests.clear()
        assert existence.check(f"{server.host}/x:{tag}", platform=AMD64, trust_s=0) == first
        assert [method for method, _, _ in server.requests] == ["HEAD"]


def test_a_damaged_memo(server: RegistryServer, tmp_path: Path) -> None:
    """A file that was cut off is as good as none; one of long ago goes when another is written."""
    reference = f"{server.host}/x:t"
    server.add_image("t")
    assert isinstance(existence.check(reference, platform=AMD64), Exists)
    (memo,) = (tmp_path / "cache" / "skyward" / "registry").iterdir()
    memo.write_text(memo.read_text()[:20])
    asked = len(server.requests)
    assert isinstance(existence.check(reference, platform=AMD64), Exists)
    assert len(server.requests) > asked
    old = memo.with_name("old.json")
    old.write_text("{}")
    os.utime(old, (0, 0))
    existence.check(reference, platform=AMD64, trust_s=0)
    assert list(memo.parent.iterdir()) == [memo]


def test_no_place_for_a_memo(server: RegistryServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing can be written the registry is asked each time."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    server.add_image("t")

    for _ in range(2):
        assert isinstance(existence.check(f"{server.host}/x:t", platform=AMD64), Exists)


def test_a_known_image_loads_no_http_library(server: RegistryServer) -> None:
    """That is most of what a start with a warm memo would cost."""
    server.add_image("t")
    reference = f"{server.host}/x:t"
    existence.check(reference, platform=AMD64)
    code = (
        "import sys; from skyward.builder.registry import existence\n"
        f"print(type(existence.check({reference!r}, platform={AMD64!r})).__name__, 'requests' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "Exists False\n"


def test_a_wrong_reference() -> None:
    """It is the caller's mistake, not an unknown."""
    with pytest.raises(ConfigError):
        existence.check("not a reference", platform=AMD64)
