"""`skyward attach` and `skyward logs` on runs of this machine."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from skyward.cli.main import main
from skyward.records import pools
from skyward.records.run import RunRecord, note
from tests.unit.runs.conftest import Start
from tests.waiting import wait_until

Output = pytest.CaptureFixture[str]


def lines(count: int, *, error: bool = False) -> str:
    """What a run of so many lines prints to one stream."""
    return "".join(f"line {number}\n" for number in range(count) if (number % 4 == 3) is error)


@pytest.mark.parametrize(("end", "status"), [("0", 0), ("3", 3), ("kill", 6)])
def test_the_output_of_a_run_is_shown_to_its_end(end: str, status: int, start: Start, capfd: Output) -> None:
    """Each stream on its own; the exit status is the program's, also for the beginning of its name."""
    start("other-1").wait()
    start("train-1", 40, 0.02, end)

    assert main(["attach", "train"]) == status

    said = capfd.readouterr()
    assert said.out == lines(40)
    assert said.err.startswith(lines(40, error=True))
    last = said.err.splitlines()[-1]
    assert ("ended without a result" if end == "kill" else f"train-1 ended with status {end} after ") in last


@pytest.mark.parametrize("name", ["train", "eval", ""])
@pytest.mark.parametrize("command", ["attach", "logs", "result"])
def test_a_name_that_is_not_one_run_s_is_an_error(command: str, name: str, start: Start) -> None:
    for run in ("train-1", "train-2"):
        start(run).wait()
    assert main([command, name]) == 2


@pytest.mark.parametrize(
    ("options", "status", "out"),
    [
        ([], 0, lines(3)),
        (["--since", "0s"], 0, ""),
        (["--since", "1h"], 0, lines(3)),
        (["--since", "yesterday"], 2, ""),
        (["--node", "0"], 2, ""),
    ],
)
def test_logs_show_what_was_printed_after_the_end(
    options: list[str], status: int, out: str, start: Start, capfd: Output
) -> None:
    start("train-1").wait()
    assert main(["logs", "train-1", *options]) == status
    assert capfd.readouterr().out == out


def test_logs_of_a_run_that_goes_on_say_so(start: Start, runs: Path, capfd: Output) -> None:
    """With -f they go on with it."""
    start("train-1", 70, 0.1)
    wait_until(lambda: (runs / "train-1" / "output").exists(), 60)

    assert main(["logs", "train-1"]) == 0
    assert "train-1 still runs; `skyward logs -f train-1` goes on." in capfd.readouterr().err
    assert main(["logs", "-f", "train-1"]) == 0
    assert capfd.readouterr().out == lines(70)


def _with_pool(runs: Path, run: str, pool: str, name: str | None, text: str, at: float, ready: int = 0) -> None:
    """Record that a program had a pool from a time on, which node was ready, and what its nodes printed for it."""
    (runs / run).mkdir(parents=True, exist_ok=True)
    if not (runs / run / "run.jsonl").exists():
        RunRecord(id=run, program=f"{run}.py", started=1.0, directory="/", user="u@h").write(runs / run)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SKYWARD_RUN", str(runs / run))
        patched.setattr(time, "time", lambda: at)
        record = pools.PoolRecord(pool, print, name=name)
        record.event("opening")
        record.event("node_ready", node=ready, host="h")
        record.output(f"{text}\n", node=0, rank=0, call=1, error=False)
        record.close()
    note(runs / run, "ended", status=0, reason=None)


def test_logs_of_a_kept_pool_show_all_its_programs(runs: Path, capfd: Output) -> None:
    """By its name, its identifier or how that begins, whichever way the programs' names sort; no other pool's."""
    programs = (
        ("old-1", "aaaa0001", "warm", "of a pool that ended"),
        ("z-1", "bbbb0001", "warm", "first"),
        ("other-1", "cccc0001", None, "another"),
        ("a-1", "bbbb0001", "warm", "second"),
        ("warm-up-1", "dddd0001", None, "a run whose name begins so"),
    )
    for at, (run, pool, name, text) in enumerate(programs):
        _with_pool(runs, run, pool, name, text, at)

    for name in ("warm", "bbbb0001", "bbbb"):
        assert main(["logs", name]) == 0
        assert capfd.readouterr().out.splitlines() == ["[0] first", "[0] second"]
    assert main(["logs", "warm-up", "--nodes"]) == 0
    assert capfd.readouterr().out.splitlines() == ["[0] a run whose name begins so"]
    assert main(["logs", "warm", "--json"]) == 0
    assert [json.loads(line)["run"] for line in capfd.readouterr().out.splitlines()] == ["z-1", "a-1"]
