"""What a user is shown of a stack: their own lines and the call they wait in, not the machinery."""

from __future__ import annotations

from pathlib import Path

from skyward._pool.collective.diagnosis import (
    Failure,
    FailureReport,
    StackFrame,
    excerpt,
    first_line,
    grouped,
    of_dump,
    of_failures,
    of_record,
)
from skyward._pool.task import Task
from skyward.errors import WorkerLostError
from skyward.model.instance import CODE_DIR
from skyward.wire.exceptions import Record
from tests.unit.pool.fakes import FUNCTION, error

TORCH = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"


def test_the_users_innermost_lines_and_the_call_they_wait_in_are_excerpt() -> None:
    """Three of theirs at most, and the innermost of all."""
    users = [StackFrame("/home/u/train.py", line, f"step{line}", f"call {line}") for line in range(1, 6)]
    library = [StackFrame(TORCH, 72, "wrapper", "return func()"), StackFrame(TORCH, 3252, "all_reduce", "work.wait()")]
    text = excerpt([*users, *library])
    assert "step2" not in text
    assert "wrapper" not in text
    assert text.splitlines()[:2] == ['  File "/home/u/train.py", line 3, in step3', "    call 3"]
    assert text.splitlines()[-1] == "    work.wait()"


def test_a_line_that_is_both_is_shown_once() -> None:
    assert excerpt([StackFrame("/home/u/train.py", 1, "train", "sock.recv(1)")]).count("train.py") == 1


def test_a_stack_without_lines_of_the_users_is_not_empty() -> None:
    """A hook of a package that waits while it is set up."""
    assert "all_reduce" in excerpt([StackFrame(TORCH, 72, "wrapper", ""), StackFrame(TORCH, 3252, "all_reduce", "")])


def test_modules_from_the_client_have_the_path_they_have_there() -> None:
    """Not that of the directory a node keeps them in."""
    place = StackFrame(f"/tmp/skyward-1/0/srv/{CODE_DIR}/lab/train.py", 3, "train", "step()")
    assert str(place).splitlines()[0] == '  File "lab/train.py", line 3, in train'


def test_code_sent_by_value_is_shown_from_the_file_here(tmp_path: Path) -> None:
    """A node has no file of `__main__`; the client has."""
    path = tmp_path / "program.py"
    path.write_text("def f():\n    wait_here()\n")
    assert str(StackFrame(str(path), 2, "f", "")).endswith("    wait_here()")


def test_what_faulthandler_writes_is_read() -> None:
    """It writes the innermost frame first and no source."""
    dump = 'Stack (most recent call first):\n  File "/a.py", line 2 in inner\n  File "/b.py", line 8 in outer\n'
    assert of_dump(dump) == [StackFrame("/b.py", 8, "outer", ""), StackFrame("/a.py", 2, "inner", "")]


def test_the_last_of_several_tracebacks_is_where_a_rank_failed() -> None:
    """Those before it are of causes."""
    trace = (
        "Traceback (most recent call last):\n"
        '  File "/a.py", line 2, in cause\n    gone()\n'
        "OSError: x\n\nThe above exception was the direct cause of the following exception:\n\n"
        "Traceback (most recent call last):\n"
        '  File "/b.py", line 8, in outer\n    raise ValueError\n    ^^^^^^^^^^^^^^^^\n'
        "ValueError: y\n"
    )
    assert of_record(Record("ValueError", "y", trace, True)) == [StackFrame("/b.py", 8, "outer", "raise ValueError")]


def test_ranks_that_share_a_place_are_named_together() -> None:
    """Sixty ranks in one all_reduce are one paragraph."""
    accounts = [(f"rank {n}", "had returned." if n == 2 else "was here:\n  x") for n in range(4)]
    assert grouped(accounts) == "rank 0, rank 1, rank 3 was here:\n  x\nrank 2 had returned."


def test_a_long_text_is_cut() -> None:
    record = Record("builtins.RuntimeError", "z" * 1000 + "\nmore", "", True)
    assert first_line(record) == "RuntimeError: " + "z" * 200 + "..."


def test_an_error_of_the_users_own_keeps_its_text() -> None:
    """What skyward has to say stands in its notes; in errors of skyward's own it is part of the message."""
    task = Task(1, FUNCTION, b"", (), None, 0)
    names = {0: "rank 0 (node 0)", 1: "rank 1 (node 1)"}

    def failure_report(failure: Failure) -> BaseException:
        return of_failures(FailureReport("work", names, [failure], (1,), {}, {}))

    users = failure_report(Failure.of(0, 1.0, task, error(task, KeyError("k"))))
    assert (type(users), str(users)) == (KeyError, "'k'")
    assert "rank 1 (node 1) had returned." in "\n".join(users.__notes__)

    ours = failure_report(Failure.of(0, 1.0, task, WorkerLostError("it ended.", node=0, rank=0)))
    assert str(ours).startswith("it ended.\nrank 0 (node 0) failed first")
    assert "rank 1 (node 1) had returned." in str(ours)


def test_a_rank_whose_agent_tells_nothing_has_no_places() -> None:
    """An agent that does not answer in time leaves an empty text; found by the simulator (seed 530)."""
    assert of_dump("") == []
    found = FailureReport("work", {0: "rank 0 (node 0)"}, [], (), {}, {0: ""})
    assert found.accounts() == "rank 0 (node 0) did not answer; it was in code that holds the interpreter's lock."
