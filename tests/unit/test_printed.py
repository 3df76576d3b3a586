"""What tests read of a client's output is all that its threads have printed."""

from __future__ import annotations

import sys
import threading

import pytest

from tests.printed import Printed

WRITERS, LINES = 4, 2000


def test_nothing_is_lost_between_two_readings(printed: Printed) -> None:
    """Threads print while others read; every line is read once, in the order of its writer."""

    def write(name: int) -> None:
        for n in range(LINES):
            sys.stdout.write(f"{name} {n}\n")

    threads = [threading.Thread(target=write, args=(name,)) for name in range(WRITERS)]
    for thread in threads:
        thread.start()
    text = ""
    while any(thread.is_alive() for thread in threads):
        text += printed.read().out
    text += printed.read().out

    lines = [line.split() for line in text.splitlines()]
    for name in range(WRITERS):
        assert [int(n) for who, n in lines if who == str(name)] == list(range(LINES))


def test_waiting_ends_with_the_words_and_leaves_them_to_be_read(printed: Printed) -> None:
    """Whichever stream they are on, and whoever prints them."""
    threading.Thread(target=lambda: print("begun\nunder way", file=sys.stderr)).start()

    assert printed.until(err="under way").err.startswith("begun\n")
    assert printed.read() == ("", "begun\nunder way\n")
    with pytest.raises(AssertionError, match=r"'more'.* not printed in 0 s"):
        printed.until(out="more", within_s=0)
