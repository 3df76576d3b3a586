"""The worker's side of `gather`: one answer wakes one thread, and nothing waits for an answer that cannot come."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable, Collection
from queue import SimpleQueue
from typing import Any

import pytest

from skyward.errors import PluginError
from skyward.model.instance import SETUP
from skyward.runner.exchange import GatherClient
from skyward.wire import payload
from skyward.wire.frames import Buffer, Frame
from skyward.wire.messages import Kind, decode, encode


class Post:
    """A GatherClient whose client is the test."""

    def __init__(self) -> None:
        self.sent: SimpleQueue[Frame] = SimpleQueue()
        self.connected = True
        self.running: tuple[int | None, Collection[int]] = (7, [7])
        self.gathers = GatherClient(self._send, lambda: self.running)

    def _send(self, frame: Frame) -> bool:
        self.sent.put(frame)
        return self.connected

    def gather(self, value: object, name: str = "port") -> Callable[[], Any]:
        """Gather in a thread; the returned function waits for its end and gives the values, or the error."""
        end: list[Any] = []

        def run() -> None:
            try:
                end.append(self.gathers.gather(value, name, None))
            except Exception as error:
                end.append(error)

        thread = threading.Thread(target=run)
        thread.start()

        def wait() -> Any:
            thread.join(60)
            assert not thread.is_alive()
            return end[0]

        return wait

    def answer(self, question: Frame, *values: object) -> None:
        buffers: list[Buffer] = []
        parts = []
        for value in values:
            data, beside = payload.dumps(value)
            buffers += (data, *beside)
            parts.append(1 + len(beside))
        document = {"round": decode(question.head)["round"], "parts": parts}
        self.gathers.take(Frame(Kind.GATHERED, question.id, encode(document), buffers))


@pytest.fixture
def post() -> Post:
    return Post()


def test_a_set_up_counts_from_one_again(post: Post) -> None:
    """As the other ranks do, which may be set up for the first time."""
    post.running = (SETUP, [SETUP])
    for _ in range(2):
        post.gathers.begin_setup()
        wait = post.gather(0)
        question = post.sent.get(timeout=60)
        assert decode(question.head)["round"] == 1
        post.answer(question, 0)
        wait()


def test_a_thread_that_belongs_to_no_call_cannot_gather(post: Post) -> None:
    """Nobody could tell which ranks it would wait for."""
    post.running = (None, [7, 8])

    with pytest.raises(PluginError, match="belongs to none of several calls"):
        post.gathers.gather(0, "port", None)


def test_a_forked_process_cannot_gather(post: Post) -> None:
    """It would speak into the connection of its parent."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            post.gathers.gather(0, "port", None)
        except PluginError:
            os.write(writing, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as said:
        text = said.read()
    os.waitpid(child, 0)

    assert "forked from a worker" in text
    assert post.sent.empty()
