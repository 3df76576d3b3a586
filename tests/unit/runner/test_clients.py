"""A client that reads slowly, or not at all, holds nobody up."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from skyward.runner.clients import Client
from skyward.wire.frames import Connection, Frame
from skyward.wire.messages import STDOUT, Kind

LINE = b"x" * 999 + b"\n"


@pytest.fixture
def ends() -> Iterator[tuple[Connection, Client]]:
    """Both ends of a connection; the client's sender is not started yet."""
    here, there = socket.socketpair()
    far, client = Connection(here), Client(Connection(there))
    yield far, client
    client.close()
    far.close()


def _output(worker: int = 0) -> Frame:
    return Frame(Kind.WORKER_OUTPUT, worker, bytes((STDOUT,)) + LINE)


def test_the_oldest_output_is_dropped_and_counted_but_no_report(ends: tuple[Connection, Client]) -> None:
    """3,000 lines of 1 kB wait for a client: it is told how many it will not see, and gets the rest in order."""
    far, client = ends
    client.post(Frame(Kind.WORKER_EXIT, 0, b"{}"))
    for _ in range(2_999):
        client.post(_output())
    client.post(_output(worker=1))
    client.post(Frame(Kind.WORKER_UP, 0, b"{}"))
    threading.Thread(target=client.send, daemon=True).start()
    frames: list[Frame] = []
    while not frames or frames[-1].kind != Kind.WORKER_UP:
        frames += far.receive()
    notice, report, *lines = frames[:-1]
    assert report.kind == Kind.WORKER_EXIT
    assert [line.id for line in lines] == [0] * (len(lines) - 1) + [1]
    assert bytes(notice.head[1:]).decode() == f"… {3_000 - len(lines)} lines dropped\n"
    assert 1_000 < len(lines) < 1_100
