"""The main thread reads for itself; while it is busy, somebody else does."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from queue import SimpleQueue

import pytest

from skyward.runner.threads import LONG_S, Inbox
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

    def send_once_waited_for(self, *frames: Frame) -> None:
        """Send these when the main thread waits for a call, as a client does whose last call has been answered.

        What comes earlier is read by the other thread, if that reads, and is no reason to hand the socket back.
        """

        def send() -> None:
            while self.inbox._busy_since:
                time.sleep(0.0005)
            self.client.send(*frames)

        threading.Thread(target=send, daemon=True).start()

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


class LateQueue(SimpleQueue[Frame | None]):
    """A queue into which a message is put just after it was found empty."""

    late: Frame | None = None

    def empty(self) -> bool:
        was_empty = super().empty()
        if self.late is not None:
            late, self.late = self.late, None
            self.put(late)
        return was_empty


def test_a_call_that_the_other_thread_has_just_read_is_not_waited_past(post: Post) -> None:
    """Between finding no call and taking the socket over, a call may come: it is taken at once, not after the next."""
    queue = LateQueue()
    while not post.inbox._connection:
        time.sleep(0.001)
    post.inbox._work = queue
    queue.late = Frame(CALL, 5)
    got: list[Frame | None] = []
    main = threading.Thread(target=lambda: got.append(post.inbox.get()), daemon=True)

    main.start()
    main.join(60)

    assert [_id(frame) for frame in got] == [5]


def test_the_socket_is_read_on_after_a_slow_hand_over(post: Post) -> None:
    """The other thread has handed a call over, but not the socket yet, when the main thread wants the next call."""
    post.client.send(Frame(CALL, 1))
    post.inbox.get()
    time.sleep(10 * LONG_S)  # the other thread reads by now
    got: list[int] = []

    def linger(frame: Frame) -> None:
        post.inbox.put(frame)
        deadline = time.monotonic() + 60
        while threading.current_thread().name == "stand-in" and not got and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.05)  # the main thread is back, and waits

    def take_two() -> None:
        got.append(_id(post.inbox.get()))
        got.append(_id(post.inbox.get()))

    post.inbox._handle = linger
    main = threading.Thread(target=take_two, daemon=True)
    main.start()
    time.sleep(0.05)
    post.client.send(Frame(CALL, 2))
    while not got:
        time.sleep(0.001)
    time.sleep(0.2)  # the socket is nobody's now, unless it is taken back
    post.client.send(Frame(CALL, 3))
    main.join(60)

    assert got == [2, 3]


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
