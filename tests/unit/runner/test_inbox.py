"""The main thread reads for itself; while it is busy, somebody else does."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from skyward.runner.threads import Inbox
from skyward.wire.frames import Connection, Frame

CALL, NOTE = 1, 2


class Post:
    """An inbox with a client at the other end; notes are heard at once, calls are for the main thread."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.client = Connection(ours)
        self.notes: list[tuple[int, str]] = []
        self.heard = threading.Event()
        self.inbox = Inbox(self._handle)
        self.server = threading.Thread(target=self._serve, args=(Connection(theirs),), daemon=True)
        self.server.start()

    def _serve(self, connection: Connection) -> None:
        self.inbox.serve(connection)
        connection.close()

    def _handle(self, frame: Frame) -> None:
        if frame.kind == CALL:
            self.inbox.put(frame)
        else:
            self.notes.append((frame.id, threading.current_thread().name))
            self.heard.set()


@pytest.fixture
def post() -> Iterator[Post]:
    post = Post()
    yield post
    post.client.close()
    post.inbox.put(None)
    post.server.join(60)
    assert not post.server.is_alive()


def _id(frame: Frame | None) -> int:
    assert frame is not None
    return frame.id


def test_nothing_is_lost_between_short_and_long_calls(post: Post) -> None:
    """Whatever the main thread does meanwhile, every call and every note arrives, calls in order."""
    rounds = 400

    def client() -> None:
        for n in range(rounds):
            post.client.send(Frame(CALL, n))
            if n % 7 == 0:
                post.client.send(Frame(NOTE, n))
            if n % 50 == 0:
                time.sleep(0.012)

    sender = threading.Thread(target=client)
    sender.start()
    taken = []
    for n in range(rounds):
        taken.append(_id(post.inbox.get()))
        if n % 30 == 0:
            time.sleep(0.008)
    sender.join()
    deadline = time.monotonic() + 60
    while len(post.notes) < len(range(0, rounds, 7)) and time.monotonic() < deadline:
        time.sleep(0.005)

    assert taken == list(range(rounds))
    assert sorted(n for n, _ in post.notes) == list(range(0, rounds, 7))
