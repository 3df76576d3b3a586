"""What nodes print, as it comes out of the client."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from skyward._pool import console
from skyward._pool.console import Printer
from tests.printed import Printed


def test_every_line_says_where_it_comes_from(printed: Printed) -> None:
    """Standard output stays standard output, errors stay errors."""
    printer = Printer(quiet=False)
    printer.put("0", "one\ntwo\n", error=False)
    printer.put("1", "wrong\n", error=True)
    printer.stop()
    assert tuple(printed.read()) == ("[0] one\n[0] two\n", "[1] wrong\n")


def test_lines_of_nodes_and_streams_are_never_mixed(printed: Printed) -> None:
    """Half a line waits for its other half, whatever others print meanwhile; the end prints what is left."""
    printer = Printer(quiet=False)
    printer.put("0", "half a ", error=False)
    printer.put("1", "whole\n", error=False)
    printer.put("0", "error\n", error=True)
    printer.put("0", "line\nrest", error=False)
    printer.stop()
    assert tuple(printed.read()) == ("[1] whole\n[0] half a line\n[0] rest\n", "[0] error\n")


def test_progress_is_told_every_few_seconds(printed: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line each time, if anything has changed."""
    monkeypatch.setattr(console, "EVERY_S", 0.0)
    printer = Printer(quiet=False)
    for state in ("10%", "20%"):
        printer.put("0", f"\r{state}", error=True, call=1)
        assert printed.until(err=f"[0] {state}\n")
    printer.end("0", error=True, call=1)
    printer.stop()


BARS = "".join(f"\r0: {n}%\n\r1: {n}%\x1b[A" for n in range(100))  # as tqdm draws two, the second below the first


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("one\ntwo\n", ["one", "two"]),
        ("one\r\ntwo\r\n", ["one", "two"]),
        ("\n\na\n", ["", "", "a"]),
        ("\x1b[31mred\x1b[0m\n", ["\x1b[31mred\x1b[0m"]),
        ("over\rwritten\nnext\n", ["written", "next"]),
        ("no end", ["no end"]),
        ("\r 10%\r 100%\n", [" 100%"]),
        ("\r 10%\r      \r", []),
        ("\x1b[2Jcleared\n", ["cleared"]),
        ("\x1bc\x1b]0;title\x07text\n", ["\x1bc\x1b]0;title\x07text"]),
    ],
)
def test_what_a_line_is_in_the_end(printed: Printed, text: str, lines: list[str], size: int) -> None:
    """However it comes."""
    printer = Printer(quiet=False)
    for start in range(0, len(text), size):
        printer.put("0", text[start : start + size], error=False, call=1)
    printer.end("0", error=False, call=1)
    printer.stop()
    assert printed.read().out == "".join(f"[0] {line}\n" for line in lines)


def test_several_bars_print_no_line_for_each_of_their_states(printed: Printed) -> None:
    """The first one's states are lines of their own if it alone has moved."""
    printer = Printer(quiet=False)
    for part in BARS.split("\r")[1:]:
        printer.put("0", f"\r{part}", error=False, call=1)
    printer.end("0", error=False, call=1)
    printer.stop()
    lines = printed.read().out.splitlines()
    assert lines[-1] == "[0] 1: 99%"
    assert sum("1: " in line for line in lines) == 1


class _Pipe(io.StringIO):
    """A pipe whose reader waits."""

    def __init__(self) -> None:
        super().__init__()
        self.resume = threading.Event()

    def write(self, text: str) -> int:
        self.resume.wait(10)
        return super().write(text)


def test_a_closed_output_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with `program | head`: the calls go on."""
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stdout", closed)
    printer = Printer(quiet=False)
    printer.put("0", "line\n", error=False)
    printer.stop()


def test_a_pipe_that_is_not_read_gets_everything_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is held up, and the end of the pool waits for the reader."""
    pipe = _Pipe()
    monkeypatch.setattr(sys, "stdout", pipe)
    printer = Printer(quiet=False)
    line = "ż" * 1023 + "\n"
    count = 3000
    for n in range(count):
        printer.put("0", f"{n} {line}", error=False)
    stopping = threading.Thread(target=printer.stop)
    stopping.start()
    stopping.join(0.2)
    assert stopping.is_alive()
    pipe.resume.set()
    stopping.join(60)
    assert pipe.getvalue() == "".join(f"[0] {n} {line}" for n in range(count))


def test_what_an_encoding_does_not_have_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line is never lost for a character of it."""
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    printer = Printer(quiet=False)
    printer.put("0", "caf\u00e9\n", error=False)
    printer.stop()
    assert raw.getvalue() == b"[0] caf\\xe9\n"


WITHOUT_STREAMS = """
import sys, threading
import skyward as sky

@sky.compute
def say(text):
    print(text)
    return text

def fail(future):
    raise called.set() or ValueError("nobody reads this")

with sky.ComputePool(sky.Local(), nodes=2) as pool:
    told, called = pool.map(say, ["a", "b"]), threading.Event()
    (say("c") > pool).add_done_callback(fail)
    called.wait(60)
with open(sys.argv[1], "w") as file:
    print(told, file=file)
"""


@pytest.mark.parametrize("closed", ["2>&-", ">&-", "<&- >&- 2>&-"])
def test_a_program_without_standard_streams_has_a_pool(closed: str, tmp_path: Path) -> None:
    """What it would print goes nowhere, as what it prints itself does."""
    done = tmp_path / "done"
    start = ["sh", "-c", f'exec "$0" "$@" {closed}', sys.executable, "-c", WITHOUT_STREAMS, str(done)]
    assert subprocess.run(start, check=False, capture_output=True).returncode == 0
    assert done.read_text() == "['a', 'b']\n"
