"""What a user is shown of a stack: their own lines and the call they wait in, not the machinery."""

from __future__ import annotations

from pathlib import Path

from skyward._pool.collective.diagnosis import (
    StackFrame,
    excerpt,
    grouped,
    of_dump,
    of_record,
)
from skyward.model.instance import CODE_DIR
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
