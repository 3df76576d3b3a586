"""The worker's side of the terminal: each line is asked for once, whenever Ctrl-C comes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import FrameType

import pytest

from skyward.runner.terminal import TerminalClient
from skyward.runner.threads import MainSlot
from skyward.wire.frames import Frame
from skyward.wire.messages import Kind, decode, encode

CALL = 7


@pytest.fixture
def slot() -> Iterator[MainSlot]:
    before = signal.getsignal(signal.SIGINT)
    slot = MainSlot()
    slot.attach()
    slot.begin(CALL)
    yield slot
    slot.end()
    signal.signal(signal.SIGINT, before)


def stop(_frame: FrameType) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("when", ["before", "after"])
def test_ctrl_c_while_a_line_is_asked_for_asks_for_it_once(slot: MainSlot, when: str) -> None:
    """The client answers the first question with what is typed next: a second one would never be answered."""
    asked: list[Frame] = []

    def send(frame: Frame) -> bool:
        with slot.shield():
            if when == "before":
                slot.break_in(CALL, stop)
            asked.append(frame)
            if when == "after":
                slot.break_in(CALL, stop)
        return True

    client = TerminalClient(send, lambda: (CALL, [CALL]), slot.shield)

    with pytest.raises(KeyboardInterrupt):
        client.read_line(CALL)
    (frame,) = asked
    assert frame.kind == Kind.READ_LINE
    client.take(Frame(Kind.ANSWER, CALL, encode({**decode(frame.head), "line": "y = 10\n"})))

    assert client.read_line(CALL) == "y = 10\n"
    assert len(asked) == 1
