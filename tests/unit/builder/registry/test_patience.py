"""How long an engine's silence is borne: as long as the registry answers, within bounds."""

from __future__ import annotations

import pytest

from skyward.builder.events import Event
from skyward.builder.registry import http
from skyward.builder.registry.client import RegistryClient
from skyward.builder.registry.http import Patience
from skyward.builder.registry.reference import parse_reference
from skyward.errors import RegistryError
from tests.unit.builder.registry.server import RegistryServer


class Timers:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Timers:
    clock = Timers()
    monkeypatch.setattr(http, "monotonic", clock)
    return clock


def _wait(waiting: Patience, clock: Timers, until_s: int) -> None:
    """Silence of so many seconds, looked at each third one."""
    began = clock.now
    while clock.now - began < until_s:
        clock.now += 3
        waiting(clock.now - began)


def test_a_registry_that_stores_a_large_layer(server: RegistryServer, clock: Timers) -> None:
    """Ten minutes without a word are borne while the registry answers, even if only to refuse; and said."""
    server.auth = "basic"
    events: list[Event] = []

    _wait(Patience(parse_reference(f"{server.host}/x:t"), "The push", events.append), clock, 600)

    assert 20 < len(server.requests) < 60
    assert f"waiting for {server.host}, silent for" in events[0].line
    assert "answers other requests" in events[0].line


def test_a_registry_that_is_gone(clock: Timers) -> None:
    """A minute after its last sign of life, with who waits for whom."""
    with RegistryServer() as server:
        host = server.host
    with pytest.raises(
        RegistryError, match=rf"push has ended: the registry {host} has not answered for [67]\d s.*refused"
    ):
        _wait(Patience(parse_reference(f"{host}/x:t"), "The push", lambda _: None), clock, 600)
    assert clock.now < 1100


def test_a_registry_that_restarts(server: RegistryServer, clock: Timers) -> None:
    """Failures for less than a minute are borne."""
    server.failures = [503, 503]
    _wait(Patience(parse_reference(f"{server.host}/x:t"), "The pull", lambda _: None), clock, 120)
    assert server.failures == []


def test_a_registry_that_never_ends(server: RegistryServer, clock: Timers) -> None:
    """After half an hour without progress it is over."""
    with pytest.raises(
        RegistryError,
        match=r"no progress for 18\d\d s, although the registry .* answers other requests",
    ):
        _wait(Patience(parse_reference(f"{server.host}/x:t"), "The push", lambda _: None), clock, 3600)


def test_an_upload_that_is_stored_slowly(server: RegistryServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is waited for while the registry answers other requests, and not longer than a silent one may take."""
    monkeypatch.setattr(http, "_ASK_AFTER_S", 0.1)
    monkeypatch.setattr(http, "_LOOK_S", 0.05)
    server.uploads_at, server.stores_for_s = "/v2/x/blobs/uploads/1", 0.6
    with RegistryClient(parse_reference(f"{server.host}/x:t"), "pull,push") as client:
        client.put_blob(b"layer" * 100_000)
        assert ("GET", "/v2/") in [(method, path) for method, path, _ in server.requests]
        monkeypatch.setattr(http, "LONGEST_S", 0.3)
        with pytest.raises(RegistryError, match=rf"The upload to {server.host}/x has made no progress for 0 s"):
            client.put_blob(b"another layer")
