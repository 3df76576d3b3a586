"""`skyward attach` and `skyward logs` on runs of this machine."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from skyward.cli.main import main
from skyward.records import pools
from skyward.records.run import RunRecord, note
from tests.unit.runs.conftest import Start

SKYWARD = (sys.executable, "-m", "skyward")


def lines(numbers: range, of: int = 4) -> str:
    return "".join(f"line {number}\n" for number in numbers if number % of != of - 1)


def test_the_output_of_a_run_is_shown_to_its_end(start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    """Each stream on its own; the exit status is the program's."""
    start("train-1", 40, 0.02, "3")

    assert main(["attach", "train-1"]) == 3

    said = capfd.readouterr()
    assert said.out == lines(range(40))
    assert [line for line in said.err.splitlines() if line.startswith("line")] == [f"line {n}" for n in range(3, 40, 4)]
    assert said.err.splitlines()[-1].startswith("skyward: train-1 ended with status 3 after ")


def test_the_beginning_of_a_name_is_enough(start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    """As long as one run alone begins so."""
    start("train-1").wait()
    start("train-2").wait()

    assert main(["attach", "train-2"[:7]]) == 0
    assert main(["attach", "train"]) == 2
    assert "Several runs on this machine begin with train: train-1, train-2." in capfd.readouterr().err


def test_an_unknown_run_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    """That says where it was looked for, and how to look elsewhere."""
    assert main(["attach", "train"]) == 2
    assert "This machine has no record of a run train." in capfd.readouterr().err


def test_a_run_that_was_killed_is_said_to_be(start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    """After what it printed."""
    start("train-1", 5, 0.0, "kill").wait()

    assert main(["attach", "train-1"]) == 6

    said = capfd.readouterr()
    assert said.out == lines(range(5))
    assert "Run train-1 ended without a result: it was killed, or the machine was restarted." in said.err


def test_ctrl_c_detaches(start: Start) -> None:
    """The run goes on, and it is said how to come back."""
    run = start("train-1", 400, 0.02)
    command = [*SKYWARD, "attach", "train-1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as attached:
        assert attached.stdout
        assert attached.stderr
        assert attached.stdout.readline() == "line 0\n"
        attached.send_signal(signal.SIGINT)
        assert attached.wait(60) == 130
        said = attached.stderr.read()

    assert "skyward: detached from train-1, which goes on. `skyward attach train-1` comes back to it," in said
    assert run.poll() is None


def test_whoever_attaches_sees_each_line_once_whatever_the_moment(start: Start) -> None:
    """Five times during a run, for a random time, and once to its end."""
    start("train-1", 300, 0.01)
    seeds = random.Random(13)
    for _ in range(5):
        command = [*SKYWARD, "attach", "train-1", "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as attached:
            assert attached.stdout
            seen = [json.loads(attached.stdout.readline())["text"] for _ in range(seeds.randint(1, 12))]
            attached.send_signal(signal.SIGINT)
            attached.communicate()
        assert seen == [f"line {n}\n" for n in range(len(seen))]

    done = subprocess.run([*SKYWARD, "attach", "train-1", "--json"], capture_output=True, text=True, check=True)

    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["text"] for each in told if each["event"] == "output"] == [f"line {n}\n" for n in range(300)]
    assert told[-1]["event"] == "end"
    assert told[-1]["status"] == 0


def test_output_for_a_reader_that_has_seen_enough(start: Start) -> None:
    """`skyward attach RUN | head -1` ends without an error."""
    start("train-1", 3000).wait()

    done = subprocess.run(
        f"{sys.executable} -m skyward attach train-1 | head -1", shell=True, capture_output=True, text=True, check=True
    )

    assert done.stdout == "line 0\n"
    assert "Traceback" not in done.stderr


def test_logs_show_what_was_printed_after_the_end(start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    """And with --since only the last of it."""
    start("train-1").wait()

    assert main(["logs", "train-1"]) == 0
    assert capfd.readouterr().out == lines(range(3))
    assert main(["logs", "train-1", "--since", "0s"]) == 0
    assert capfd.readouterr().out == ""
    assert main(["logs", "train-1", "--since", "1h"]) == 0
    assert capfd.readouterr().out == lines(range(3))
    assert main(["logs", "train-1", "--since", "yesterday"]) == 2


def _with_pool(runs: Path, run: str, pool: str, name: str | None, text: str, at: float) -> None:
    """Record that a program had a pool from a time on, and what its nodes printed for it."""
    (runs / run).mkdir(parents=True)
    RunRecord(id=run, program=f"{run}.py", started=1.0, directory="/", user="u@h").write(runs / run)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SKYWARD_RUN", str(runs / run))
        patched.setattr(time, "time", lambda: at)
        record = pools.PoolRecord(pool, print, name=name)
        record.event("opening")
        record.output(f"{text}\n", node=0, rank=0, call=1, error=False)
        record.close()
    note(runs / run, "ended", status=0, reason=None)


def test_logs_of_a_kept_pool_show_all_its_programs(runs: Path, capfd: pytest.CaptureFixture[str]) -> None:
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


@pytest.mark.parametrize("name", ["warm", "bbbb0001", "z-1"])
def test_logs_of_a_node_that_is_not_there_say_which_are(
    name: str, runs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Those that have printed, and those that were ready; one that is there and has printed nothing is no error."""
    _with_pool(runs, "z-1", "bbbb0001", "warm", "first", 1)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SKYWARD_RUN", str(runs / "z-1"))
        for pool in ("bbbb0001", "cccc0001") if name == "z-1" else ("bbbb0001",):
            record = pools.PoolRecord(pool, print, name="warm")
            record.event("opening")
            record.event("node_ready", node=2, host="h")
            record.close()

    assert main(["logs", name, "--node", "0"]) == 0
    assert capfd.readouterr().out == "[0] first\n"
    assert main(["logs", name, "--node", "2"]) == 0
    assert capfd.readouterr() == ("", "")
    assert main(["logs", name, "--node", "9"]) == 2
    what = "Run z-1" if name == "z-1" else "Pool bbbb0001"
    assert capfd.readouterr() == ("", f"skyward: {what} has no node 9: its nodes are 0, 2.\n")


def test_logs_of_a_run_without_nodes_say_so(start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    """For any node."""
    start("train-1").wait()
    assert main(["logs", "train-1", "--node", "0"]) == 2
    assert capfd.readouterr().err == "skyward: Run train-1 has no node 0: it has had no nodes.\n"


def test_the_name_of_a_run_is_not_empty(start: Start, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The beginning of every name names none, also where there is one run alone."""
    start("train-1").wait()
    (tmp_path / "program.py").write_text("print(1)")

    for command in (["logs"], ["attach"], ["result"]):
        assert main([*command, ""]) == 2
        assert "The name of a run cannot be empty." in capfd.readouterr().err
    assert main(["run", "--name", "", str(tmp_path / "program.py")]) == 2
    assert "'' cannot be the name of a run" in capfd.readouterr().err


def test_logs_of_a_run_that_goes_on_say_so(start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    """With -f they go on with it."""
    start("train-1", 100, 0.03)

    assert main(["logs", "train-1"]) == 0
    assert "train-1 still runs; `skyward logs -f train-1` goes on." in capfd.readouterr().err
    assert main(["logs", "-f", "train-1"]) == 0
    assert capfd.readouterr().out == lines(range(100))


def test_damaged_lines_lose_only_themselves(start: Start, runs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Which is said; a record that begins with one is refused."""
    start("train-1").wait()
    path = runs / "train-1" / "run.jsonl"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\nx\xff{\n", 1))

    assert main(["result", "train-1"]) == 0
    said = capfd.readouterr().err
    assert "ended with status 0" in said and "damaged lines (1)" in said
    path.write_bytes(b"x" + path.read_bytes())
    assert main(["result", "train-1"]) == 6
    assert "The record of run train-1 on this machine cannot be read" in capfd.readouterr().err
