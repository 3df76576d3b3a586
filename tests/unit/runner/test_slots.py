"""An interrupt reaches the call it is meant for, and no other."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from skyward.runner.threads import Interrupted, MainSlot


@pytest.fixture
def main_slot() -> Iterator[MainSlot]:
    before = signal.getsignal(signal.SIGINT)
    slot = MainSlot()
    slot.attach()
    yield slot
    signal.signal(signal.SIGINT, before)


def soon(action: Callable[[], object], delay_s: float = 0.05) -> threading.Thread:
    timer = threading.Timer(delay_s, action)
    timer.start()
    return timer


def test_a_call_in_the_main_thread_is_woken_from_a_system_call(main_slot: MainSlot) -> None:
    """Sleeping ends at once, not when the time is over."""
    main_slot.running = 5
    started = time.monotonic()
    timer = soon(lambda: main_slot.interrupt(5))
    with pytest.raises(Interrupted):
        time.sleep(60)
    assert time.monotonic() - started < 30
    timer.join()


def test_an_interrupt_waits_for_the_end_of_a_shield(main_slot: MainSlot) -> None:
    """A message to the client is written whole."""
    main_slot.running = 5
    reached = False
    with pytest.raises(Interrupted), main_slot.shield():
        with main_slot.shield():
            assert main_slot.interrupt(5)
            time.sleep(0.1)
        reached = True
    assert reached
