"""The images of an engine, asked over HTTP."""

from __future__ import annotations

import base64
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from skyward.engine import Images, find_engine
from skyward.engine import images as engine_images
from skyward.errors import EngineError, EngineMissingError, ImageNotFoundError, RegistryError
from tests.unit.engine.fake import FakeEngine, fake_engine


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[FakeEngine]:
    with fake_engine(tmp_path) as engine:
        yield engine


@pytest.fixture
def images(engine: FakeEngine) -> Images:
    return Images(find_engine(engine.url))


def test_a_connection_that_was_idle_for_long_is_made_anew(engine: FakeEngine, images: Images) -> None:
    """Builds take minutes, after which the engine may have hung up."""
    engine.add("a:1")
    assert images.inspect("a:1")
    images._line.sock.shutdown(socket.SHUT_RDWR)  # as it looks from here
    images._used -= 61

    assert images.inspect("a:1")


def test_credentials_are_sent_in_a_header(engine: FakeEngine, images: Images) -> None:
    """The image gets its second name, progress is reported, the credentials reach the engine alone."""
    engine.add("a:1")
    layer = {"id": "x", "status": "Pushing", "progressDetail": {"current": 3, "total": 9}}
    engine.pushes = [{"status": "Preparing"}, layer, {"aux": {"Tag": "2", "Digest": "sha256:d"}}]
    seen: list[tuple[int, int]] = []

    digest = images.push("a:1", "host/b:2", {"username": "u", "password": "p"}, lambda *done: seen.append(done))

    assert (digest, seen[1]) == ("sha256:d", (3, 9))
    assert "host/b:2" in engine.images
    assert json.loads(base64.urlsafe_b64decode(engine.auth)) == {"username": "u", "password": "p"}
    assert not [line for line in engine.requests if "password" in line]
    with pytest.raises(ImageNotFoundError, match="none:1"):
        images.push("none:1", "host/b:2", {})
    engine.pushes = [{"status": "Pulling"}]
    images.pull("host/b:2", {"username": "v"})
    assert json.loads(base64.urlsafe_b64decode(engine.auth)) == {"username": "v"}
    engine.pushes = [{"error": "unauthorized: no basic auth credentials"}]
    with pytest.raises(ImageNotFoundError, match=r"asked to pull image host/b:2: .*no basic auth.*docker login"):
        images.pull("host/b:2")


def test_the_digest_of_a_push_by_podman(engine: FakeEngine, images: Images) -> None:
    """Its messages have none; the engine notes it with the image."""
    engine.add("a:1")
    engine.images["a:1"]["digests"] = ["other/b@sha256:e", "host/b@sha256:d"]
    assert images.push("a:1", "host/b:2", {}) == "sha256:d"


@pytest.mark.parametrize(
    ("refusal", "remedy"),
    [
        ("unauthorized: authentication required", "docker login host:5000"),
        ("denied: no access", "access to host:5000/b"),
        ("x509: certificate signed by unknown authority", "certs.d/host:5000/ca.crt"),
        ("http: server gave HTTP response to HTTPS client", "insecure-registries"),
        ("dial tcp: lookup host: no such host", "can reach it"),
    ],
)
def test_what_a_registry_refuses(engine: FakeEngine, images: Images, refusal: str, remedy: str) -> None:
    """The engine's answer and the remedy, for a push and for a look-up; logins in addresses are masked."""
    engine.add("a:1")
    engine.pushes = [{"error": f"{refusal} at https://me:canary@proxy/"}]
    engine.registry["host:5000/b:2"] = refusal
    acts: tuple[Callable[[], object], ...] = (
        lambda: images.push("a:1", "host:5000/b:2", {}),
        lambda: images.registry_digest("host:5000/b:2"),
    )
    for act in acts:
        with pytest.raises(RegistryError, match=refusal) as caught:
            act()
        assert remedy in caught.value.remedy
        assert "canary" not in str(caught.value)


def test_an_image_in_a_registry(engine: FakeEngine, images: Images) -> None:
    """Its digest, or None, also if the engine cannot ask, as Podman's."""
    engine.registry["host/b:2"] = "sha256:d"
    assert images.registry_digest("host/b:2", {"username": "u"}) == "sha256:d"
    assert json.loads(base64.urlsafe_b64decode(engine.auth)) == {"username": "u"}
    assert images.registry_digest("host/b:3") is None

    engine.registry["host/b:2"] = "Path /distribution/x is not supported"
    assert images.registry_digest("host/b:2") is None


def test_a_refusal_is_told_in_the_engines_words(images: Images) -> None:
    """Any other answer is an error that names the engine and quotes it."""
    with pytest.raises(EngineError, match=r"could not look for image broken:1.*the disk is on fire"):
        images.inspect("broken:1")


def test_an_engine_that_hangs_up(tmp_path: Path) -> None:
    """A connection that breaks is a missing engine, with advice; not an exception of a library."""
    path = tmp_path / "e.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def hang_up() -> None:
            for _ in range(2):
                server.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises(EngineMissingError, match=r"broke off when asked to look for image a:1.*make engine"):
            Images(find_engine(f"unix://{path}")).inspect("a:1")
        thread.join(60)


def test_a_transfer_may_be_silent_for_long(engine: FakeEngine, images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than other requests; its limit is not called a missing engine."""
    engine.add("a:1")
    engine.pushes, engine.silence_s = [{"status": "Pushing"}, {"aux": {"Digest": "sha256:d"}}], 0.4
    monkeypatch.setattr(engine_images, "_TIMEOUT_S", 0.1)
    assert images.push("a:1", "host/b:2", {}) == "sha256:d"
    monkeypatch.setattr(engine_images, "_TRANSFER_S", 0.1)
    with pytest.raises(EngineError, match=r"did not push image a:1 to host/b:2 in time") as caught:
        images.push("a:1", "host/b:2", {})
    assert "Start Docker" not in str(caught.value)
