"""Nodes that send datagrams to each other on loopback, and who is heard."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from skyward.runner import diagnosis
from skyward.runner.diagnosis import UdpProbe

HERE = "127.0.0.1"
SECRET = "ab" * 16


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "_PAUSE_S", 0.001)


@pytest.fixture
def nodes() -> Iterator[list[UdpProbe]]:
    found = [UdpProbe(index) for index in range(3)]
    yield found
    for node in found:
        node.close()


def opened(nodes: list[UdpProbe], secret: str = SECRET) -> list[tuple[int, str, int]]:
    order = {"step": "open", "address": HERE, "secret": secret}
    return [(number, HERE, node.take(order)["port"]) for number, node in enumerate(nodes)]


def heard(node: UdpProbe) -> Any:
    return node.take({"step": "close"})["heard"]


def test_those_who_send_are_heard(nodes: list[UdpProbe]) -> None:
    """Each by those it sends to; a trial begins with nothing."""
    ports = opened(nodes)
    nodes[0].take({"step": "send", "peers": ports[1:]})
    nodes[2].take({"step": "send", "peers": ports[:1]})
    assert [heard(node) for node in nodes] == [[2], [0], [0]]
    opened(nodes)
    assert [heard(node) for node in nodes] == [[], [], []]


def test_what_does_not_bear_the_secret_is_dropped(nodes: list[UdpProbe]) -> None:
    """Of another trial, of a stranger, too long or too short."""
    ports = opened(nodes[:1])
    others = opened(nodes[1:], "cd" * 16)
    assert others
    nodes[1].take({"step": "send", "peers": ports})
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for word in (b"", b"x", bytes(20), bytes.fromhex(SECRET), bytes.fromhex(SECRET) + b"12345", bytes(2000)):
            stranger.sendto(word, ports[0][1:])
    assert heard(nodes[0]) == []


def test_nothing_is_answered(nodes: list[UdpProbe]) -> None:
    """Whoever sends to the port learns nothing, the secret or not."""
    (port,) = opened(nodes[:1])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.sendto(bytes.fromhex(SECRET) + b"\0\0\0\7", port[1:])
        stranger.settimeout(0.05)
        assert heard(nodes[0]) == [7]
        with pytest.raises(TimeoutError):
            stranger.recv(1)


def test_an_address_of_another_machine_is_not_opened(nodes: list[UdpProbe]) -> None:
    """Not everywhere instead; the node then takes no part, and does not fail."""
    assert nodes[0].take({"step": "open", "address": "192.0.2.1", "secret": SECRET}) == {"port": 0}
    assert nodes[0].take({"step": "send", "peers": [(1, HERE, 9)]}) == {}
    assert heard(nodes[0]) == []


def test_the_port_is_closed(nodes: list[UdpProbe]) -> None:
    """At the end, and when a trial begins before the last has ended."""
    (first,) = opened(nodes[:1])
    (second,) = opened(nodes[:1])
    nodes[0].close()
    for _, address, port in (first, second):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
            free.bind((address, port))


def test_a_step_that_is_unknown_is_refused(nodes: list[UdpProbe]) -> None:
    with pytest.raises(ValueError, match="'listen'"):
        nodes[0].take({"step": "listen"})
