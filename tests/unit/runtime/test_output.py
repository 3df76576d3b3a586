from __future__ import annotations

import contextvars
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from skyward.runtime import masking, output
from skyward.runtime.masking import Masks
from tests.unit.runtime.conftest import Record

BOTH: frozenset[output.StreamName] = frozenset(("stdout", "stderr"))


def run_thread(target: object, *args: object) -> None:
    thread = threading.Thread(target=target, args=args)  # type: ignore[arg-type]
    thread.start()
    thread.join()


def test_an_unfinished_line_comes_with_flush_or_the_end_of_the_task(sink: Record) -> None:
    """Progress bars flush; what is left at the end of a task is not lost."""
    with output.task_output(1):
        print("10 %", end="")
        assert sink.written == []
        sys.stdout.flush()
        assert sink.written == [(1, "stdout", "10 %")]
        print("rest", end="")
    assert sink.written[1:] == [(1, "stdout", "rest"), (1, "stdout", "\n"), (1, "stdout", "")]


def test_an_endless_line_is_passed_on_in_parts(sink: Record) -> None:
    """Nothing piles up in memory when no newline ever comes."""
    with output.task_output(1):
        for _ in range(3):
            sys.stdout.write("x" * 30_000)
        assert [len(text) for _, _, text in sink.written] == [90_000]


def test_a_users_thread_is_nobodys_while_two_tasks_run(sink: Record) -> None:
    """With two tasks it cannot be told whose a thread is; its output is kept, as nobody's."""
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with output.task_output(2):
            inside.set()
            leave.wait()

    neighbour = threading.Thread(target=other)
    neighbour.start()
    inside.wait()
    with output.task_output(1):
        run_thread(print, "whose?")
        context = contextvars.copy_context()
        run_thread(context.run, print, "mine")
    leave.set()
    neighbour.join()
    assert sink.text(None) == "whose?\n"
    assert sink.text(1) == "mine\n"


def test_a_task_that_an_interrupt_tore_out_leaves_no_muting_behind(sink: Record) -> None:
    """A thread's next task starts afresh, whatever the last one could not take back."""
    torn_task, torn_mute = output.task_output(1), output.muted(BOTH)
    torn_task.__enter__()
    torn_mute.__enter__()
    with output.task_output(2):
        print("heard")
        run_thread(print, "too")
    assert sink.text(2) == "heard\ntoo\n"
    torn_mute.__exit__(None, None, None)
    torn_task.__exit__(None, None, None)


FORKING = """
import os, sys
from skyward.runtime import masking, output
from skyward.runtime.masking import Masks
from tests.unit.runtime.conftest import Record

class Lost:
    def write(self, task, stream, text): os.write(2, f"sink {os.getpid() == parent}: {text}".encode())

parent = os.getpid()
output.install(Lost())
with output.task_output(1):
    print("begun ", end="")
    for quiet in (False, True):
        with output.muted(frozenset(["stdout"] if quiet else [])):
            if (child := os.fork()) == 0:
                print("from a", "muted" if quiet else "heard", "child")
                sys.stdout.flush()
                os._exit(0)
            os.waitpid(child, 0)
    print("ended")
"""


def test_forked_children_write_to_their_own_descriptor(tmp_path: Path) -> None:
    """Nobody serves the sink in a forked process: it writes to descriptor 1, once, and muting still holds there."""
    script = tmp_path / "forking.py"
    script.write_text(FORKING)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == "from a heard child\n"
    assert done.stderr == "sink True: begun ended\n"


@pytest.fixture
def masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process has a secret."""
    monkeypatch.setattr(masking, "current", Masks(["secret-22"]))


def test_secrets_are_masked_wherever_a_line_is_cut(sink: Record, masks: None) -> None:
    """In one write and in several, flushed between them, as bytes, and where the line has no end."""
    with output.task_output(1):
        print("a secret-22 b")
        for piece in ("my secr", "et-2", "2!\n"):
            sys.stdout.write(piece)
            sys.stdout.flush()
        sys.stdout.buffer.write(b"secret")
        sys.stdout.buffer.write(b"-22 as bytes\n")
        print("no secret-2", end="")
    assert sink.text(1) == "a *** b\nmy ***!\n*** as bytes\nno secret-2\n"
