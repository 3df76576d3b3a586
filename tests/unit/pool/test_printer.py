"""What nodes print, as it comes out of the client."""

from __future__ import annotations

import io
import sys
import threading

import pytest

from skyward.pool.output import MAX_WAITING, Printer
from tests.printed import Printed


def test_every_line_says_where_it_comes_from(printed: Printed) -> None:
    """Standard output stays standard output, errors stay errors."""
    printer = Printer(quiet=False)
    printer.put("0", "one\ntwo\n", error=False)
    printer.put("1", "wrong\n", error=True)
    printer.stop()
    assert tuple(printed.read()) == ("[0] one\n[0] two\n", "[1] wrong\n")


def test_draining_waits_until_all_of_it_is_out(printed: Printed) -> None:
    """So that the output of a call comes before its result."""
    printer = Printer(quiet=False)
    for n in range(300):
        printer.put("0", f"{n}\n", error=False)
        printer.drain()
        assert f"[0] {n}\n" in printed.read().out
    printer.stop()


def test_lines_of_nodes_and_streams_are_never_mixed(printed: Printed) -> None:
    """Half a line waits for its other half, whatever others print meanwhile; the end prints what is left."""
    printer = Printer(quiet=False)
    printer.put("0", "half a ", error=False)
    printer.put("1", "whole\n", error=False)
    printer.put("0", "error\n", error=True)
    printer.put("0", "line\nrest", error=False)
    printer.stop()
    assert tuple(printed.read()) == ("[1] whole\n[0] half a line\n[0] rest\n", "[0] error\n")


def test_a_progress_bar_shows_its_states(printed: Printed) -> None:
    """Text that redraws its line would otherwise be seen at its end only."""
    printer = Printer(quiet=False)
    printer.put("0", "\r10%", error=True)
    printer.put("0", "\r20%\r30%", error=True)
    printer.put("0", "\r100%\n", error=True)
    printer.stop()
    assert printed.read().err == "[0] 10%\n[0] 30%\n[0] 100%\n"


def test_quiet_prints_nothing(printed: Printed) -> None:
    """And starts no thread."""
    before = threading.active_count()
    printer = Printer(quiet=True)
    printer.put("0", "anything\n", error=False)
    assert threading.active_count() == before
    printer.stop()
    assert tuple(printed.read()) == ("", "")


class _Terminal(io.StringIO):
    """A terminal that somebody has stopped (Ctrl-S)."""

    def __init__(self) -> None:
        super().__init__()
        self.blocked = threading.Event()
        self.resume = threading.Event()

    def write(self, text: str) -> int:
        self.blocked.set()
        self.resume.wait(10)
        return super().write(text)


def test_a_stopped_terminal_holds_nobody_up_and_loses_the_oldest(
    monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    """Memory is bounded; what was dropped is counted where it is missing."""
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    printer = Printer(quiet=False)
    printer.put("0", "first\n", error=False)
    assert terminal.blocked.wait(60)
    line = "x" * 1023 + "\n"
    count = 2 * MAX_WAITING // len(line)
    for n in range(count):
        printer.put("0", f"{n} {line}", error=False)
    terminal.resume.set()
    printer.stop()
    lines = terminal.getvalue().splitlines()
    notice = printed.read().err
    assert lines[0] == "[0] first"
    assert lines[-1].startswith(f"[0] {count - 1} ")
    assert len(lines) - 1 <= MAX_WAITING // len(line)
    assert f"{count - (len(lines) - 1)} lines were dropped" in notice


def test_a_closed_output_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with `program | head`: the calls go on."""
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stdout", closed)
    printer = Printer(quiet=False)
    printer.put("0", "line\n", error=False)
    printer.stop()
