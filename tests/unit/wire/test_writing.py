"""One writer per connection: posting never blocks, and frames stay whole and in order."""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from skyward.errors import WireError
from skyward.wire.frames import Connection, Frame

BIG = bytes(8 << 20)  # more than any socket takes


@pytest.fixture
def ends() -> Iterator[tuple[Connection, Connection]]:
    near, far = socket.socketpair()
    pair = Connection(near), Connection(far)
    yield pair
    for end in pair:
        end.close()


def received(connection: Connection, count: int) -> list[int]:
    """The ids of so many frames."""
    numbers: list[int] = []
    while len(numbers) < count:
        numbers += [frame.id for frame in connection.receive()]
    return numbers


def test_what_waits_can_be_withdrawn(ends: tuple[Connection, Connection]) -> None:
    """And is known; what is being written is neither."""
    near, far = ends
    for number in range(3):
        near.post(Frame(1, number, BIG))
    assert near.unsent(1) == {1, 2}
    assert near.unsent(2) == set()
    assert not near.withdraw(1, 0)
    assert not near.withdraw(2, 1)
    assert near.withdraw(1, 1)
    assert not near.withdraw(1, 1)
    assert received(far, 2) == [0, 2]


def test_many_threads_lose_no_frame(ends: tuple[Connection, Connection]) -> None:
    """Posting and sending at once, frames of all sizes: each thread's arrive whole and in its order."""
    near, far = ends
    sizes = (0, 10, 70_000, 3, 700_000, 64)

    def write(thread: int) -> None:
        for number in range(300):
            frame = Frame(
                thread, number, bytes(sizes[number % len(sizes)]), (bytes(number),) if number % 7 == 0 else ()
            )
            (near.send if number % 5 == 0 else near.post)(frame)

    threads = [threading.Thread(target=write, args=(thread,)) for thread in range(4)]
    for each in threads:
        each.start()
    seen: dict[int, list[int]] = {thread: [] for thread in range(4)}
    for _ in range(4 * 300):
        if all(len(numbers) == 300 for numbers in seen.values()):
            break
        for frame in far.receive():
            assert len(frame.head) == sizes[frame.id % len(sizes)]
            seen[frame.kind].append(frame.id)
    for each in threads:
        each.join(60)
    assert seen == {thread: list(range(300)) for thread in range(4)}


@pytest.mark.parametrize("how", ["post", "send"])
def test_a_broken_connection_is_told(ends: tuple[Connection, Connection], how: str) -> None:
    """By every later attempt."""
    near, far = ends
    far.close()
    for _ in range(3):
        with pytest.raises(WireError, match="broke while sending"):
            getattr(near, how)(Frame(1, 1))


def test_no_garbage_is_collected_in_the_writer_thread(ends: tuple[Connection, Connection]) -> None:
    """Callbacks of the collector could wait there for a lock of the thread that waits for it."""
    near, far = ends
    threads = set[str]()
    thresholds = gc.get_threshold()
    note: Callable[..., None] = lambda *_: threads.add(threading.current_thread().name)  # noqa: E731
    gc.callbacks.append(note)
    gc.set_threshold(1)
    try:
        reader = threading.Thread(target=received, args=(far, 200), name="reader")
        reader.start()
        for number in range(200):
            near.send(Frame(1, number, b"", [bytes(10)] * 3), by_writer=True)
        reader.join()
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(note)
    assert "reader" in threads
    assert "skyward-writer" not in threads
