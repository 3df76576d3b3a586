"""A push as the engine tells it: how far it is, what of it travelled, what a refusal means."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from skyward.builder.events import Event
from skyward.builder.registry import existence, pushing
from skyward.builder.registry.existence import Absent
from skyward.builder.registry.pushing import push
from skyward.builder.store import EngineImages
from skyward.errors import ConfigError, RegistryError
from tests.unit.builder.registry.conftest import Configure
from tests.unit.builder.registry.server import RegistryServer

AMD64 = "linux/amd64"


class Engine(EngineImages):
    """Says what it is told to say, and remembers what it was asked."""

    def __init__(self, *messages: Mapping[str, Any]) -> None:
        self.messages = messages
        self.asked: tuple[str, str, str, Mapping[str, str]] | None = None
        self.closed = False

    def push(
        self, image: str, repository: str, tag: str, auth: Mapping[str, str], waiting: Callable[[float], None]
    ) -> Iterator[Mapping[str, Any]]:
        self.asked = image, repository, tag, auth
        waiting(0.0)
        try:
            yield from self.messages
        finally:
            self.closed = True


def test_the_engine_gets_our_credentials(server: RegistryServer, configure: Configure) -> None:
    """It pushes as we would; what comes back is the reference by digest, known from then on."""
    configure({"auths": {server.host: {"username": "ann", "password": "right"}}})
    digest = server.add_image("t")
    engine, events = Engine(), list[Event]()

    pushed = push("local:1", f"{server.host}/x:t", platform=AMD64, engine=engine, report=events.append)

    auth = {"username": "ann", "password": "right", "serveraddress": server.host}
    assert engine.asked == ("local:1", f"{server.host}/x", "t", auth)
    assert pushed.reference == f"{server.host}/x@{digest}"
    assert "right" not in "".join(map(str, events))
    asked = len(server.requests)
    existence.check(f"{server.host}/x:t", platform=AMD64)
    assert len(server.requests) == asked


@pytest.mark.parametrize(
    ("answer", "advice"),
    [
        ("denied: requested access to the resource is denied", "docker login r.io"),
        ("unauthorized: authentication required", "docker login r.io"),
        ('Get "https://r.io/v2/": http: server gave HTTP response to HTTPS client', "insecure-registries"),
        ("x509: certificate signed by unknown authority", "/etc/docker/certs.d/r.io/ca.crt"),
        ("name unknown: The repository with name 'x' does not exist", "Create the repository r.io/x"),
        ("dial tcp 10.0.0.1:443: connect: connection refused", "can reach it"),
    ],
)
def test_a_refusal(answer: str, advice: str) -> None:
    """The error has the engine's words and what to do; the engine's stream is not left open."""
    engine = Engine({"status": "Preparing", "id": "abc"}, {"error": answer})

    with pytest.raises(RegistryError) as caught:
        push("local:1", "r.io/x:t", platform=AMD64, engine=engine, report=print)

    assert answer in caught.value.reason
    assert advice in caught.value.remedy
    assert engine.closed


class BusyEngine(Engine):
    """Its first pushes end with these answers; then it has nothing to say."""

    def __init__(self, *answers: str) -> None:
        super().__init__()
        self.answers = list(answers)

    def push(
        self, image: str, repository: str, tag: str, auth: Mapping[str, str], waiting: Callable[[float], None]
    ) -> Iterator[Mapping[str, Any]]:
        yield from super().push(image, repository, tag, auth, waiting)
        if self.answers:
            yield {"error": self.answers.pop(0)}


BUSY = ("received unexpected HTTP status: 503 Service Unavailable", "toomanyrequests: http://ann:right@r.io is busy")


def test_a_registry_that_is_busy(server: RegistryServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked again for as long as it wants to be left, and the image pushed again; no login is shown."""
    monkeypatch.setattr(pushing, "_PAUSES_S", (0.0, 0.0, 0.0))
    digest = server.add_image("t")
    server.failures = [503]
    engine, said = BusyEngine(*BUSY), list[str]()

    pushed = push(
        "a", f"{server.host}/x:t", platform=AMD64, engine=engine, report=lambda event: said.append(event.line)
    )

    assert pushed.digest == digest
    assert [line for line in said if "busy" in line] == [
        f"{server.host} is busy ({BUSY[0]}); pushing again in 0 s",
        f"{server.host} is busy (toomanyrequests: http://***@r.io is busy); pushing again in 0 s",
    ]
    assert server.paths("GET").count("/v2/") >= 3


def test_a_registry_that_stays_busy(server: RegistryServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last answer is the error."""
    monkeypatch.setattr(pushing, "_PAUSES_S", (0.0, 0.0))
    engine = BusyEngine(*BUSY[:1] * 3)
    with pytest.raises(RegistryError, match="503 Service Unavailable"):
        push("a", f"{server.host}/x:t", platform=AMD64, engine=engine, report=print)
    assert engine.answers == []


def test_a_cache_that_the_registry_refuses(server: RegistryServer) -> None:
    """The image is there all the same; that the next build starts from nothing is said."""
    digest = server.add_image("t", **{"moby.buildkit.cache.v0": "steps"})
    server.refused_tags = {"cache-amd64"}
    said = list[str]()

    pushed = push(
        "a", f"{server.host}/x:t", platform=AMD64, engine=Engine(), report=lambda each: said.append(each.line)
    )

    assert pushed.digest == digest
    assert "the next builds elsewhere start without layers of this one" in said[-1]
    assert "cache-amd64" not in server.manifests


def test_a_push_that_the_registry_knows_nothing_of(server: RegistryServer) -> None:
    """The engine's word is not enough."""
    target = f"{server.host}/x:t"

    with pytest.raises(RegistryError, match="another registry"):
        push("local:1", target, platform=AMD64, engine=Engine(), report=print)
    assert existence.check(target, platform=AMD64) == Absent()


def test_a_digest_is_no_target() -> None:
    """It follows from the content."""
    engine = Engine()
    with pytest.raises(ConfigError, match="Give a tag"):
        push("a", "r.io/x@sha256:" + "0" * 64, platform=AMD64, engine=engine, report=print)
    assert engine.asked is None
