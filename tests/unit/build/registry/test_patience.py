"""How long an engine's silence is borne: as long as the registry answers, within bounds."""

from __future__ import annotations

import pytest

from skyward.build.events import Event
from skyward.build.registry import parse_reference, patience
from skyward.build.registry.patience import Patience
from skyward.errors import RegistryError
from tests.unit.build.registry.server import RegistryServer


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(patience, "monotonic", clock)
    return clock


def _wait(waiting: Patience, clock: Clock, until_s: int) -> None:
    """Silence of so many seconds, looked at each third one."""
    began = clock.now
    while clock.now - began < until_s:
        clock.now += 3
        waiting(clock.now - began)


def test_a_registry_that_stores_a_large_layer(server: RegistryServer, clock: Clock) -> None:
    """Ten minutes without a word are borne while the registry answers, even if only to refuse; and said."""
    server.auth = "basic"
    events: list[Event] = []

    _wait(Patience(parse_reference(f"{server.host}/x:t"), "push", events.append), clock, 600)

    assert 20 < len(server.requests) < 60
    assert f"waiting for {server.host}, silent for" in events[0].line
    assert "answers other questions" in events[0].line


def test_a_registry_that_is_gone(clock: Clock) -> None:
    """A minute after its last sign of life, with who waits for whom."""
    with RegistryServer() as server:
        host = server.host
    with pytest.raises(RegistryError, match=rf"push {host}/x:t, and waits for the registry.*for [67]\d s.*refused"):
        _wait(Patience(parse_reference(f"{host}/x:t"), "push", lambda _: None), clock, 600)
    assert clock.now < 1100


def test_a_registry_that_restarts(server: RegistryServer, clock: Clock) -> None:
    """Failures for less than a minute are borne."""
    server.failures = [503, 503]
    _wait(Patience(parse_reference(f"{server.host}/x:t"), "pull", lambda _: None), clock, 120)
    assert server.failures == []


def test_a_registry_that_never_ends(server: RegistryServer, clock: Clock) -> None:
    """After half an hour without progress it is over."""
    with pytest.raises(RegistryError, match=r"no progress for 18\d\d s. The registry .* answers other questions"):
        _wait(Patience(parse_reference(f"{server.host}/x:t"), "push", lambda _: None), clock, 3600)
