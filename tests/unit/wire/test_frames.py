"""Frames survive the socket whatever their size, and bytes that are no frames are refused."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyward.errors import WireError
from skyward.wire.frames import Connection, Frame

Pair = tuple[Connection, Connection]


@pytest.fixture
def pair() -> Iterator[Pair]:
    left, right = socket.socketpair()
    connections = Connection(left), Connection(right)
    yield connections
    for connection in connections:
        connection.close()


def _carry(frames: list[Frame]) -> list[Frame]:
    """Send frames through a real socket and return what arrives."""
    left, right = socket.socketpair()
    sender, receiver = Connection(left), Connection(right)

    def send() -> None:
        sender.send(*frames)
        sender.close()

    thread = threading.Thread(target=send)
    thread.start()
    arrived: list[Frame] = []
    while got := receiver.receive():
        arrived += got
    thread.join()
    receiver.close()
    return arrived


def _plain(frame: Frame) -> tuple[int, int, bytes, list[bytes]]:
    return frame.kind, frame.id, bytes(frame.head), [bytes(b) for b in frame.buffers]


_frame = st.builds(
    Frame,
    st.integers(1, 255),
    st.integers(0, 2**64 - 1),
    st.binary(max_size=2000),
    st.lists(st.binary(max_size=3000), max_size=3),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(_frame, min_size=1, max_size=30))
def test_frames_arrive_as_sent(frames: list[Frame]) -> None:
    """Any sequence of frames arrives whole, in order, byte for byte."""
    assert [_plain(f) for f in _carry(frames)] == [_plain(f) for f in frames]


@pytest.mark.parametrize("size", [0, 1, 64 * 1024, 256 * 1024 - 24, 256 * 1024, 256 * 1024 + 1, 5_000_000])
def test_large_heads_and_buffers(size: int) -> None:
    """Heads and buffers at the edges of the read buffer arrive whole, with small frames around them."""
    body = bytes(range(256)) * (size // 256 + 1)
    frames = [
        Frame(1, 1, b"before"),
        Frame(2, 2, body[:size]),
        Frame(3, 3, b"h", [body[:size], b"", body[:7]]),
        Frame(4, 4, b"after"),
    ]

    assert [_plain(f) for f in _carry(frames)] == [_plain(f) for f in frames]


def test_close_within_a_frame_is_an_error() -> None:
    """A truncated message never passes for a whole one."""
    left, right = socket.socketpair()
    left.sendall(struct.pack("<B3xIQQ", 1, 0, 100, 5) + b"only this")
    left.close()

    with pytest.raises(WireError, match="middle of a message"):
        Connection(right).receive()
    right.close()


@pytest.mark.parametrize(
    "header",
    [struct.pack("<B3xIQQ", 1, 2**32 - 1, 10, 1), struct.pack("<B3xIQQ", 1, 0, 2**63, 1)],
    ids=["too many buffers", "impossible head"],
)
def test_nonsense_is_refused_before_memory_is_taken(header: bytes) -> None:
    """Lengths that cannot be are refused at once."""
    left, right = socket.socketpair()
    left.sendall(header)

    with pytest.raises(WireError, match="not a message"):
        Connection(right).receive()
    left.close()
    right.close()


def test_close_releases_a_blocked_sender(pair: Pair) -> None:
    """A sender whose peer has stopped reading is released by close, with an error."""
    sender, _ = pair
    failed: list[BaseException] = []

    def send() -> None:
        try:
            sender.send(Frame(1, 1, b"", [bytes(50_000_000)]))
        except WireError as error:
            failed.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    thread.join(0.2)
    sender.close()
    thread.join(60)

    assert not thread.is_alive()
    assert len(failed) == 1


@settings(max_examples=100, deadline=None)
@given(st.binary(min_size=1, max_size=400))
def test_random_bytes_never_crash_the_parser(data: bytes) -> None:
    """Whatever arrives ends in frames, an orderly end, or a WireError."""
    left, right = socket.socketpair()
    left.sendall(data)
    left.close()
    receiver = Connection(right)
    try:
        while receiver.receive():
            pass
    except (WireError, MemoryError):
        pass
    finally:
        receiver.close()
