"""The consumer's end of a remote generator, used by several threads, and interrupted."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from skyward._pool.task import RemoteStream, StreamSource
from skyward.system import SimpleQueue
from skyward.wire.frames import Frame
from skyward.wire.messages import Kind

THREADS = 8


class Remote:
    """A stream whose items a test sends itself."""

    def __init__(self) -> None:
        self.credit = 0
        self.stopped = 0
        self.source = StreamSource(self._grant, self._stop, 0.0, SimpleQueue())
        self.stream: RemoteStream[int] = self.source.open(_number, lambda _: ValueError("broke"))  # type: ignore[assignment]

    def _grant(self, items: int) -> None:
        self.credit += items

    def _stop(self) -> None:
        self.stopped += 1


class _Interrupted:
    """Where Ctrl-C comes while an item is waited for."""

    def get(self, **_: float) -> None:
        signal.raise_signal(signal.SIGINT)


def _number(data: Any, _buffers: Sequence[Any], _what: str) -> int:
    return int(bytes(data))


def item(number: int) -> Frame:
    return Frame(Kind.ITEM, 1, str(number).encode())


def take_all(remote: Remote, taken: list[int], ends: list[str]) -> None:
    try:
        taken.extend(remote.stream)
        ends.append("end")
    except ValueError as error:
        ends.append(str(error))


@pytest.mark.parametrize("last", [Kind.END, Kind.ERROR])
def test_threads_that_share_a_stream_all_come_to_its_end(last: Kind) -> None:
    """Each item is one thread's, and so is an error; the others find the end."""
    remote = Remote()
    taken: list[int] = []
    ends: list[str] = []
    threads = [threading.Thread(target=take_all, args=(remote, taken, ends), daemon=True) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for number in range(1000):
        remote.source.put(item(number))
    remote.source.put(Frame(last, 1))
    for thread in threads:
        thread.join(60)

    assert sorted(taken) == list(range(1000))
    assert sorted(ends) == sorted(["broke"] * (last == Kind.ERROR) + ["end"] * (THREADS - (last == Kind.ERROR)))
    assert remote.credit == 1000
    assert list(remote.stream) == []


def test_ctrl_c_while_an_item_is_waited_for_stops_the_generator() -> None:
    """As it ends a generator of this process: its slot is free again, and there are no further items."""
    remote = Remote()
    remote.source.arrived = _Interrupted()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        next(remote.stream)
    assert remote.stopped == 1
    assert list(remote.stream) == []
