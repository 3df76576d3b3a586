"""Many connections through one stream: two relays whose streams are each other's."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from skyward.errors import WireError
from skyward.runner.entry.relay import WINDOW, Relay


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """What the far relay leads to."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as made:
        made.settimeout(30)
        yield made


@pytest.fixture
def refused() -> list[str]:
    """What was told of connections that could not be made."""
    return []


@pytest.fixture
def near(listener: socket.socket, refused: list[str]) -> Relay:
    """The relay that accepts."""
    address = listener.getsockname()
    far = Relay(lambda data: relay.feed(data), lambda: socket.create_connection(address, 5))
    relay = Relay(far.feed, on_refused=refused.append)
    return relay


def connected(near: Relay) -> socket.socket:
    ours, theirs = socket.socketpair()
    near.accept(theirs)
    ours.settimeout(30)
    return ours


def read(sock: socket.socket) -> bytes:
    return b"".join(iter(lambda: sock.recv(1 << 16), b""))


def test_each_direction_ends_by_itself(near: Relay, listener: socket.socket) -> None:
    """What is sent after the other direction has ended still comes."""
    with connected(near) as ours, listener.accept()[0] as theirs:
        ours.sendall(b"question")
        ours.shutdown(socket.SHUT_WR)
        assert read(theirs) == b"question"
        theirs.sendall(b"answer")
        theirs.shutdown(socket.SHUT_WR)
        assert read(ours) == b"answer"


def test_many_at_once_stay_apart(near: Relay, listener: socket.socket) -> None:
    """While one is read by nobody."""

    def answer(sock: socket.socket) -> None:
        with sock:
            sock.sendall(read(sock))

    def echo() -> None:
        for _ in range(10):
            sock, _ = listener.accept()
            threading.Thread(target=answer, args=(sock,), daemon=True).start()

    stuck = connected(near)
    unread, _ = listener.accept()
    threading.Thread(target=echo, daemon=True).start()

    def fill() -> None:
        with suppress(ConnectionError):
            stuck.sendall(bytes(WINDOW * 40))

    filler = threading.Thread(target=fill, daemon=True)
    filler.start()

    def one(number: int) -> bool:
        data = os.urandom(WINDOW + number)
        with connected(near) as ours:
            ours.sendall(data)
            ours.shutdown(socket.SHUT_WR)
            return read(ours) == data

    with ThreadPoolExecutor(10) as threads:
        assert all(threads.map(one, range(10)))
    assert filler.is_alive()
    unread.close()  # resets it, as there is unread data
    filler.join(30)
    assert not filler.is_alive()
    stuck.close()


def test_a_connection_that_cannot_be_made_ends(near: Relay, listener: socket.socket, refused: list[str]) -> None:
    """And why is told."""
    listener.close()

    with connected(near) as ours:
        assert ours.recv(1) == b""
    assert refused == ["Connection refused"]


def test_the_end_of_the_stream_ends_all(near: Relay, listener: socket.socket) -> None:
    """Also what is being waited for."""
    with connected(near) as ours, listener.accept()[0]:
        near.end()
        assert read(ours) == b""


def test_what_is_no_frame_is_refused() -> None:
    """A kind that is not known; and a node cannot open connections to the client."""
    with pytest.raises(WireError, match="no frame"):
        Relay(lambda _: None).feed(b"Traceback (most recent call last)")
    with pytest.raises(WireError, match="cannot open"):
        Relay(lambda _: None).feed(bytes([1, 0, 0, 0, 1, 0, 0, 0, 0]))
