"""What a user is shown of a stack: their own lines and the call they wait in, not the machinery."""

from __future__ import annotations

from skyward._pool.collective.diagnosis import StackFrame, excerpt, grouped, of_dump, of_record
from skyward.wire.exceptions import Record

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
