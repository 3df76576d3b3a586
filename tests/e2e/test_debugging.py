"""`breakpoint()`, `pdb` and `input()` in calls, with a terminal and without one."""

from __future__ import annotations

import getpass
import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.e2e.patterns import PatternTerminal, python
from tests.e2e.sshd import Site, site

__all__ = ["site"]

PROGRAM = str(Path(__file__).with_name("debugged.py"))
PROMPT = r"\(Pdb\) "


def scene(*words: str, columns: int = 80) -> PatternTerminal:
    return PatternTerminal(python(PROGRAM, *words), columns=columns, PYTHONPATH=str(Path(__file__).parents[2]))


def test_without_a_terminal_calls_fail_at_once() -> None:
    """The error says what was tried, where, and what to do."""
    ran = subprocess.run(
        python(PROGRAM, "bare"), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=True
    )
    errors = [line for line in ran.stdout.splitlines() if line.startswith("TerminalError: ")]
    tried = ("breakpoint() in double() (debugged.py:14)", "breakpoint() in by_module() (debugged.py:24)")
    for error, what in zip(errors, (*tried, "input() in name_of() (debugged.py:30)"), strict=True):
        assert error.startswith(f"TerminalError: {what} needs the terminal of the program that opened the pool")
        assert "its standard input is not a terminal" in error
        assert ("sky.debug(" if "breakpoint" in what else "as an argument") in error


@pytest.mark.parametrize("columns", [80, 50])
def test_the_debugger_of_a_call_is_in_the_terminal(columns: int) -> None:
    """Its prompt, steps, frames, what the call prints, Ctrl-C; the call's end ends it."""
    with scene("one", columns=columns) as terminal:
        assert "[node 0, call 1] double() (debugged.py:14) is at a breakpoint." in terminal.wait_match(PROMPT)
        terminal.type("p y\n")
        assert "\n4\n" in terminal.wait_match(PROMPT)
        terminal.type("w\n")
        frames = terminal.wait_match(PROMPT)
        assert "double()" in frames and "skyward" not in frames
        terminal.type("y = 10\x03")
        assert "--KeyboardInterrupt--" in terminal.wait_match(PROMPT)
        terminal.type("y = 10\n")
        terminal.wait_match(PROMPT)
        terminal.type("n\n")
        assert 'print("z is"' in terminal.wait_match(PROMPT)
        terminal.type("n\n")
        assert "\nz is 20\n" in terminal.wait_match(PROMPT)  # of this call: at once, without its node's name
        for expected in ("--Return--", "result 20"):
            terminal.type("n\n")
            terminal.wait_match(expected)
            if expected == "--Return--":
                terminal.wait_match(PROMPT)
        assert terminal.wait_end() == 0


@pytest.mark.parametrize("site", ["OpenSSH"], indirect=True)
def test_the_debugger_works_over_ssh(site: Site) -> None:
    """In a container of a host: the prompt comes through the connection that calls go through."""
    server = site.serve(f"SetEnv=DOCKER_HOST={os.environ['DOCKER_HOST']}")
    host = f"{getpass.getuser()}@127.0.0.1:{server.port}"
    with scene("one", host, site.key, site.known(server)) as terminal:
        assert "[node 0, call 1] double() (debugged.py:14) is at a breakpoint." in terminal.wait_match(PROMPT)
        terminal.type("p y\n")
        assert "\n4\n" in terminal.wait_match(PROMPT)
        terminal.type("y = 10\n")
        terminal.wait_match(PROMPT)
        terminal.type("c\n")
        terminal.wait_match("result 20")
        assert terminal.wait_end() == 0


def test_lines_are_shown_where_the_program_is_not() -> None:
    """A container has no file of the program: its lines come from the client."""
    with scene("docker") as terminal:
        assert "-> z = y * 2" in terminal.wait_match(PROMPT)
        terminal.type("l\n")
        assert "    breakpoint()" in terminal.wait_match(PROMPT)
        terminal.type("c\n")
        terminal.wait_match("result 8")
        assert terminal.wait_end() == 0


@pytest.mark.parametrize("word", ["q\n", "\x04"])
def test_quitting_ends_the_call(word: str) -> None:
    """`q` and Ctrl-D: a sentence in place of `bdb.BdbQuit`."""
    with scene("module") as terminal:
        terminal.wait_match(PROMPT)
        terminal.type(word)
        terminal.wait_match(
            r"TaskCancelledError: The call was ended from its debugger \(q or Ctrl-D\) in by_module\(\)"
        )
        assert terminal.wait_end() == 0


@pytest.mark.parametrize("name", ["two", "slots"])
def test_two_calls_are_debugged_one_after_the_other(name: str) -> None:
    """On two nodes, and in two threads of one worker."""
    with scene(name) as terminal:
        first = terminal.wait_match(PROMPT)
        terminal.type("p x\n")
        value = 3 if "call 1]" in first else 4
        assert f"\n{value}\n" in terminal.wait_match(PROMPT)
        terminal.type("c\n")
        second = terminal.wait_match(PROMPT)
        assert "call 2]" in second if value == 3 else "call 1]" in second
        terminal.type("p x\n")
        assert f"\n{7 - value}\n" in terminal.wait_match(PROMPT)
        terminal.type("c\n")
        terminal.wait_match(r"results \(8, 10\)")
        assert terminal.wait_end() == 0


def test_other_output_waits() -> None:
    """It is printed, in order and whole, when the call goes on."""
    with scene("others") as terminal:
        terminal.wait_match(PROMPT)
        terminal.type("import time; time.sleep(1.5)\n")  # for longer than the ticks last
        assert "tick" not in terminal.wait_match(PROMPT)
        terminal.type("c\n")
        terminal.wait_end()
        assert [f"[0] tick {number}" for number in range(20)] == [
            line for line in terminal.plain.splitlines() if "] tick" in line
        ]


def test_input_reads_a_line() -> None:
    """The prompt names the call; Ctrl-D is the EOFError of any input()."""
    with scene("input") as terminal:
        assert "[node 0, call 1] name? " in terminal.wait_match(r"name\? ")
        terminal.type("Zoë\n")
        terminal.wait_match("result Zoë3")
        assert terminal.wait_end() == 0
    with scene("input") as terminal:
        terminal.wait_match(r"name\? ")
        terminal.type("\x04")
        terminal.wait_match("EOFError: end of input")


def test_ctrl_c_stops_a_long_line() -> None:
    """While a step runs, the debugger can be had; `q` ends the call there."""
    with scene("sleeping") as terminal:
        terminal.wait_match(PROMPT)
        for _ in range(10):
            terminal.type("n\n")
            time.sleep(0.5)
            terminal.type("\x03")
            if "Interrupted in the midst of a line" in terminal.wait_match(PROMPT):
                break  # else the line had not been taken yet: Ctrl-C at the prompt
        else:
            pytest.fail("the sleep was never interrupted")
        terminal.type("q\n")
        terminal.wait_match("TaskCancelledError: The call was ended from its debugger")
        assert terminal.wait_end() == 0


def test_a_limit_does_not_run_while_somebody_types() -> None:
    """A call of two seconds that is looked at for three."""
    with scene("limited") as terminal:
        terminal.wait_match(PROMPT)
        terminal.type("import time; time.sleep(3)\n")
        terminal.wait_match(PROMPT)
        terminal.type("c\n")
        terminal.wait_match("result in time")


def test_a_worker_that_ends_gives_the_terminal_back() -> None:
    """The error of the lost worker is shown as any other."""
    with scene("lost") as terminal:
        terminal.wait_match(PROMPT)
        terminal.type("n\n")
        terminal.wait_match("WorkerLostError: The worker process on node 0")
        assert terminal.wait_end() == 0


def test_a_call_that_is_stopped_gives_the_terminal_back() -> None:
    """Another call of its group fails while somebody looks at it."""
    with scene("stopped") as terminal:
        terminal.wait_match(PROMPT)
        terminal.wait_match("ZeroDivisionError: of the other call")
        assert terminal.wait_end() == 0
    assert "WorkerLostError" not in terminal.plain


def test_debug_shows_where_a_call_failed() -> None:
    """In this process, after the exception; then it is raised."""
    with scene("local") as terminal:
        assert "ZeroDivisionError" in terminal.wait_match(PROMPT)
        terminal.type("p over, x\n")
        assert "(10, 0)" in terminal.wait_match(PROMPT)
        terminal.type("q\n")
        terminal.wait_match("ZeroDivisionError: division by zero")
        assert terminal.wait_end() == 0
