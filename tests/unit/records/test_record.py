"""Records of runs: whole entries in order whatever happens to their writers, bounded, private, and independent of
what happens to the disk.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skyward.records import journal, pools
from skyward.records.pools import PoolRecord
from skyward.records.run import (
    RUN_BYTES,
    RunFacts,
    RunRecord,
    is_held,
    note,
    runs_folder,
)
from tests import journals

RECORD = RunRecord(id="train-1", program="train.py", arguments=["-x"], started=1.0, directory="/", user="me@here")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of this process's run, which has begun."""
    monkeypatch.setenv("SKYWARD_RUN", str(tmp_path / "run"))
    monkeypatch.setattr(pools, "_warned", threading.Lock())
    RECORD.write(tmp_path / "run")
    return tmp_path / "run"


class Clock:
    """What was to be done later."""

    def __init__(self) -> None:
        self.actions: list[Callable[[], None]] = []

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        assert delay_s >= 1
        self.actions.append(action)


def entries(folder: Path) -> list[dict[str, Any]]:
    return [dict(entry.fields) for entry in journals.read(folder)]


def events(folder: Path) -> list[dict[str, Any]]:
    return [
        dict(entry.fields) for entry in journal.parse((folder / "run.jsonl").read_bytes().splitlines(keepends=True))
    ][1:]


def test_a_position_goes_on_after_its_entry_over_a_writer_that_was_killed(tmp_path: Path) -> None:
    """It loses the entry that it was writing, and no other."""
    for n in range(3):
        journal.extend(tmp_path, {"n": n}, 1 << 20)
    with (tmp_path / "0.jsonl").open("ab") as file:
        file.write(b'{"n":3,"te')
    before = list(journals.read(tmp_path))
    for n in (4, 5):
        journal.extend(tmp_path, {"n": n}, 1 << 20)

    assert [entry.fields["n"] for entry in before] == [0, 1, 2]
    assert [entry.fields["n"] for entry in journals.read(tmp_path, before[-1].end)] == [4, 5]
    assert (tmp_path / "0.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_bounded_journal_keeps_the_newest_and_says_that_some_are_gone(tmp_path: Path) -> None:
    for n in range(1000):
        journal.extend(tmp_path, {"n": n, "text": "ä" * 50}, 20_000)

    found = list(journals.read(tmp_path))
    assert 10_000 < sum(path.stat().st_size for path in tmp_path.iterdir()) <= 20_000
    assert [entry.fields["n"] for entry in found] == list(range(1000 - len(found), 1000))
    assert [entry.follows_gap for entry in found] == [True, *[False] * (len(found) - 1)]
    assert next(journals.read(tmp_path, found[5].end)) == found[6]


def test_a_pool_s_output_events_and_calls_are_recorded(folder: Path) -> None:
    """Texts of events without secrets; numbers of calls when they change."""
    clock, counts = Clock(), {"done": 1}
    record = PoolRecord("p1", print, lambda text: text.replace("secret", "***"), "warm")
    record.event("opening", nodes=1)
    record.output("a\n", node=0, rank=0, call=None, error=True)
    record.count(lambda: dict(counts), clock)
    for done in (1, 1, 3):
        counts["done"] = done
        clock.actions.pop()()
    record.event("node_lost", reason="died of secret", node=1)
    record.close("secret")

    (printed,) = entries(folder / "nodes")
    assert printed.pop("t") > 0
    assert printed == {"pool": "p1", "node": 0, "rank": 0, "call": None, "stream": "err", "text": "a\n"}
    found = events(folder)
    assert [each["event"] for each in found] == ["opening", "calls", "calls", "node_lost", "closed"]
    assert (found[3]["reason"], found[4]["error"]) == ("died of ***", "***")
    facts = journals.facts(folder)
    assert facts.calls["done"] == 3
    assert facts.pools["p1"][1] == "warm"


def test_a_disk_that_takes_nothing_ends_the_record(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told once; pools go on."""
    (folder / "file").touch()
    monkeypatch.setenv("SKYWARD_RUN", str(folder / "file" / "run"))
    told: list[str] = []
    for pool in ("p1", "p2"):
        record = PoolRecord(pool, told.append)
        record.output("x\n", node=0, rank=0, call=1, error=False)
        record.close()
    assert len(told) == 1 and "Not a directory" in told[0]


def test_a_record_is_read_as_it_was_written(folder: Path) -> None:
    """Unknown fields and damaged lines are left out; the end is recorded though the record is full."""
    with (folder / "run.jsonl").open("ab") as file:
        file.write(b'{"event":"opening"\n[]\n\xff\n' + b"x" * RUN_BYTES + b"\n")
    note(folder, "notice", text="too much")
    note(folder, "ended", status=3, reason=None)

    facts = journals.facts(folder)
    assert (facts.record, journals.end(folder)) == (RECORD, (3, None))
    text = (folder / "run.jsonl").read_bytes()
    assert b"too much" not in text
    later = RunFacts.parse(text.replace(b"{", b'{"later":1,', 1))
    assert later and later.record == RECORD
    assert RunFacts.parse(text[5:]) is None and RunFacts.parse(b"") is None
    (folder / "run.jsonl").unlink()
    (folder / "run.jsonl").symlink_to(folder / "other")
    with pytest.raises(OSError, match="symbolic"):
        note(folder, "notice")


def test_a_run_is_held_while_its_process_lives(folder: Path) -> None:
    """However that ends, though children of it live on."""
    program = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom skyward.records.run import hold\n"
        "hold(Path(sys.argv[1]))\n"
        "if not os.fork():\n    print(os.getpid(), flush=True)\nsignal.pause()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    with process.stdout:
        child = int(process.stdout.readline())
    try:
        assert is_held(folder)
        process.kill()
        process.wait(60)
        assert not is_held(folder)
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("found", ["raise RuntimeError", "~/.local/state/skyward"])
def test_without_a_home_records_are_nowhere(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a user who is a number only, as in many containers: nothing is written into the working directory."""

    def of_user(_name: str) -> Path:
        if found.startswith("raise"):
            raise RuntimeError
        return Path(found)

    monkeypatch.setattr("platformdirs.user_state_path", of_user)
    assert runs_folder() == Path("/nonexistent/runs")


def test_a_process_has_a_run_of_its_own_that_notes_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("SKYWARD_RUN", raising=False)
    program = (
        "from skyward.records.pools import PoolRecord\n"
        "for name in 'ab':\n"
        "    record = PoolRecord(name, print)\n"
        "    record.event('opening')\n"
        "    record.close()\n"
        "1 / 0\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, "word"], capture_output=True, text=True, check=False)
    assert "ZeroDivisionError" in ended.stderr and ended.returncode == 1

    (run,) = (tmp_path / "skyward" / "runs").iterdir()
    facts = journals.facts(run)
    assert facts.record.id == run.name and facts.record.arguments == ["word"]
    assert journals.end(run) == (1, "ZeroDivisionError") and not facts.is_alive
    assert sorted(facts.pools) == ["a", "b"]
    assert (run.stat().st_mode & 0o777, (run / "run.jsonl").stat().st_mode & 0o777) == (0o700, 0o600)
