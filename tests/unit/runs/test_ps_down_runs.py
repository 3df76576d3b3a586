"""Runs in `skyward ps` and `skyward down`, and the removal of old records."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from skyward.cli.main import main
from skyward.nodes.process_id import current_user
from skyward.records import journal
from skyward.records.run import prune
from tests.unit.runs.conftest import Start
from tests.waiting import wait_until

STUBBORN = """
import signal, sys, time
from pathlib import Path
from tests.unit.runs.printing import main
signal.signal(signal.SIGTERM, lambda *_: None)
main(Path(sys.argv[1]), 10**6, 0.05, "0")
"""
OPENS_A_POOL = """
import time
import skyward as sky

with sky.ComputePool(sky.Local(), display="quiet") as pool:
    pool.map(abs, range(5))
    print("there", flush=True)
    time.sleep(600)
"""


def rows(out: str) -> dict[str, list[str]]:
    """The runs in the table, by name: the other words of their lines."""
    table = out.partition("\nRUN ")[2].splitlines()[1:]
    return {line.split()[0]: line.split()[1:] for line in table}


def events(out: str, kind: str) -> list[dict[str, Any]]:
    return [each for each in map(json.loads, out.splitlines()) if each["event"] == kind]


def test_runs_are_listed_while_they_run(start: Start, capsys: pytest.CaptureFixture[str]) -> None:
    """With --all those that have ended as well."""
    start("done").wait()
    start("failed", 1, 0.0, "3").wait()
    start("killed", 1, 0.0, "kill").wait()
    start("running", 10_000, 0.1)

    assert main(["ps"]) == 0
    assert list(rows(capsys.readouterr().out)) == ["running"]
    assert main(["ps", "--all"]) == 0
    listed = rows(capsys.readouterr().out)
    assert {name: words[:4] for name, words in listed.items()} == {
        "done": ["printing.py", "this", "machine", "done"],
        "failed": ["printing.py", "this", "machine", "failed"],
        "killed": ["printing.py", "this", "machine", "killed"],
        "running": ["printing.py", "this", "machine", "running"],
    }
    assert main(["ps", "--all", "--json"]) == 0
    told = {each["run"]: each for each in events(capsys.readouterr().out, "run")}
    assert {name: (each["state"], each["status"]) for name, each in told.items()} == {
        "done": ("ended", 0),
        "failed": ("ended", 3),
        "killed": ("killed", None),
        "running": ("running", None),
    }


def test_a_run_that_down_has_ended_is_said_to_be(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """By the commands that list or show it; its exit status stays, and one that failed by itself has failed."""
    (tmp_path / "train.py").write_text("import time\nprint('there', flush=True)\ntime.sleep(600)\n")
    command = [sys.executable, "-m", "skyward", "run", "--name", "train", str(tmp_path / "train.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout
        assert run.stdout.readline() == "there\n"
        assert main(["down", "train"]) == 0
        assert run.wait() == 143
    capfd.readouterr()

    assert main(["ps", "--all"]) == 0
    assert rows(capfd.readouterr().out)["train"][3:6] == ["ended", "by", "down"]
    assert main(["down", "train"]) == 0
    assert capfd.readouterr().out == "run train had ended before at this machine (ended by down)\n"
    assert main(["result", "train"]) == 0
    assert capfd.readouterr().err.partition("\n")[0].endswith(" s: ended by `skyward down`")
    assert main(["attach", "train"]) == 143


def test_a_run_that_does_not_heed_is_killed(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With its process group."""
    command = [sys.executable, "-c", STUBBORN, str(runs / "train-1")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as run:
        assert run.stdout
        run.stdout.readline()
        assert main(["down", "train-1", "--json"]) == 0
        assert run.wait() == -9

    ended = {"event": "ended", "run": "train-1", "where": "this machine", "state": "killed", "status": None}
    assert events(capsys.readouterr().out, "ended") == [ended]


def test_the_pools_of_a_run_that_was_killed_are_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its calls are counted while it runs."""
    (tmp_path / "train.py").write_text(OPENS_A_POOL)
    command = [sys.executable, str(tmp_path / "train.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True, text=True) as program:
        assert program.stdout
        assert program.stdout.readline() == "there\n"

        def listed() -> dict[str, Any]:
            main(["ps", "--json"])
            (run,) = events(capsys.readouterr().out, "run")
            return dict(run)

        wait_until(lambda: listed()["calls"].get("done") == 5, 120)
        run = listed()
        assert run["state"] == "running"
        program.kill()

    def pools() -> set[str]:
        capsys.readouterr()
        main(["ps", "--json"])
        return {each["pool"] for each in events(capsys.readouterr().out, "node")}

    assert pools() >= set(run["pools"])
    assert main(["down", run["run"]]) == 0
    assert not pools() & set(run["pools"])


def test_all_ends_detached_runs_and_no_others(
    start: Start, runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of this user, named before and asked about."""
    monkeypatch.setattr("skyward.providers.local.pool_directories", list)  # pools of the user's other programs
    for name, own in (("apart", {"detached": True}), ("other", {"detached": True, "user": "eve@x"}), ("here", {})):
        start(name, 10_000, 0.1)
        record = runs / name / "run.jsonl"
        record.write_text(json.dumps({**json.loads(record.read_text()), "user": current_user(), **own}) + "\n")

    assert main(["down", "--all"]) == 2
    said = capsys.readouterr()
    assert "apart  this machine" in said.out
    assert "standard input is not a terminal" in said.err
    assert main(["down", "--all", "--yes"]) == 0
    assert capsys.readouterr().out == "run apart ended at this machine (killed)\n"
    assert main(["ps"]) == 0
    assert sorted(rows(capsys.readouterr().out)) == ["here", "other"]


def _touch(folder: Path, days: float) -> None:
    """Make it look as if nothing was written there for so long."""
    written = time.time() - days * 86400
    for path in (*folder.rglob("*"), folder):
        os.utime(path, (written, written))


def test_old_records_are_removed(start: Start, runs: Path) -> None:
    """Those that have ended: too old ones, then the oldest until the rest is small enough."""
    for name in ("old", "large", "recent"):
        start(name).wait()
    start("killed", 1, 0.0, "kill").wait()
    start("running", 10_000, 0.1)
    journal.extend(runs / "large" / "output", {"text": "x" * 300_000}, 1 << 30)
    for name, days in (("old", 40.0), ("large", 3.0), ("killed", 2.0), ("running", 40.0)):
        _touch(runs / name, days)

    for kept_bytes, left in (
        (10**9, "killed large recent running"),
        (200_000, "killed recent running"),
        (0, "running"),
    ):
        prune(kept_bytes=kept_bytes)
        assert sorted(path.name for path in runs.iterdir()) == left.split()
