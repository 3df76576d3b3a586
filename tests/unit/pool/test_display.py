"""Cells of notebooks as places to print to: rows in one display, output by cell."""

from __future__ import annotations

import contextvars
import sys
from typing import Any

import pytest

from skyward._pool.console import Printer
from skyward._pool.display import Cell
from tests.waiting import wait_until

parent: contextvars.ContextVar[str] = contextvars.ContextVar("parent", default="none")


class Publisher:
    """Takes what cells publish, as a kernel's publisher does."""

    def __init__(self) -> None:
        self.published: list[tuple[str, str, bool]] = []

    def __call__(self, data: dict[str, str], *, transient: dict[str, str], update: bool) -> None:
        assert transient["display_id"]
        self.published.append((parent.get(), data["text/html"], update))


def cell(name: str, publish: Any = None) -> Cell:
    """A cell in whose context `parent` has this value."""

    def make() -> Cell:
        parent.set(name)
        return Cell(publish or Publisher())

    return contextvars.copy_context().run(make)


def test_rows_are_one_display_of_their_cell() -> None:
    """Updated in its place; empty, and at once, when nothing is left to show. Text is no HTML."""
    publisher = Publisher()
    one = cell("first", publisher)
    one.set("a", "1 < 2")
    wait_until(lambda: len(publisher.published) == 1)
    one.set("a", "1 < 2")  # nothing new
    one.set("b", "\x1b[31mred\x1b[0m")
    wait_until(lambda: len(publisher.published) == 2)
    one.set("a", "")
    one.set("b", "")

    assert publisher.published == [
        ("first", "<pre>1 &lt; 2</pre>", False),
        ("first", "<pre>1 &lt; 2\nred</pre>", True),
        ("first", "", True),
    ]


def test_a_kernel_that_takes_nothing_more_stops_nothing() -> None:
    """A pool is closed while its kernel ends, whose sockets may be closed."""
    asked: list[bool] = []

    def refuse(_data: object, *, update: bool, **_more: object) -> None:
        asked.append(update)
        raise RuntimeError("closed")

    one = cell("first", refuse)
    one.set("a", "stopping")
    wait_until(lambda: asked)
    one.set("a", "")
    assert asked == [False, True]


def test_output_is_printed_in_the_context_of_its_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that prints has no context of its own; lines of no cell are printed without one."""
    printed: list[tuple[str, str]] = []

    class Stream:
        def write(self, text: str) -> None:
            printed.append((parent.get(), text))

        def flush(self) -> None: ...
        def isatty(self) -> bool:
            return False

    first, second = cell("first"), cell("second")
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", Stream())
        printer = Printer(quiet=False)
        printer.put("0", "a\n", error=False, call=1, cell=first)
        printer.put("0", "b\nhalf", error=False, call=2, cell=second)
        printer.put("0", "c\n", error=False)
        printer.put("0", "d\n", error=False, call=1, cell=first)
        printer.end("0", error=False, call=2)
        printer.stop()

    assert printed == [
        ("first", "[0] a\n"),
        ("second", "[0] b\n"),
        ("none", "[0] c\n"),
        ("first", "[0] d\n"),
        ("second", "[0] half\n"),
    ]
