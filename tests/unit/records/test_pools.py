"""The record of pools: what they report is written, nothing of them waits for it or depends on it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skyward.records import pools
from skyward.records.pools import PoolRecord
from skyward.records.run import RunRecord
from tests import journals
from tests.waiting import wait_until

Open = Callable[[str], PoolRecord]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the run of what this test records."""
    monkeypatch.setenv("SKYWARD_RUN", str(tmp_path / "run"))
    monkeypatch.setattr(pools, "_writer", pools._Writer())
    return tmp_path / "run"


def _entries(folder: Path) -> list[dict[str, Any]]:
    return [dict(entry.fields) for entry in journals.read(folder)]


def _say(record: PoolRecord, text: str, call: int | None = 1) -> None:
    record.output(text, node=0, rank=0, call=call, error=False)


def test_output_and_events_are_written_in_order(folder: Path) -> None:
    record = PoolRecord("p1", "", print)
    record.event("opening", nodes=1)
    for line in ("a\n", "b\n"):
        _say(record, line)
    _say(record, "c\n", call=None)
    record.count(lambda: {"running": 0, "done": 3})
    record.close("ValueError: x")

    nodes, events = _entries(folder / "nodes"), _entries(folder / "events")
    assert [(e["call"], e["text"]) for e in nodes] == [(1, "a\nb\n"), (None, "c\n")]
    assert all(e["pool"] == "p1" and e["node"] == 0 and e["stream"] == "out" and e["t"] > 0 for e in nodes)
    assert [e["event"] for e in events] == ["opening", "calls", "closed"]
    assert events[1]["done"] == 3 and events[-1]["error"] == "ValueError: x"
    assert [path.name for path in (folder / "pools").iterdir()] == ["p1"]


def test_texts_of_events_are_masked(folder: Path) -> None:
    record = PoolRecord("p1", "", print, lambda text: text.replace("secret", "***"))
    record.event("node_lost", reason="died of secret", node=1)
    record.close("secret")

    assert [e.get("reason") or e.get("error") for e in _entries(folder / "events")] == ["died of ***", "***"]


def test_two_processes_write_into_one_run(folder: Path) -> None:
    """Their entries are whole, and positions hold, whoever began a segment."""
    program = (
        "from skyward.records.pools import PoolRecord\n"
        "record = PoolRecord('p' + __import__('sys').argv[1], '', print)\n"
        "for n in range(500):\n"
        "    record.output(f'{n:05000}\\n', node=0, rank=0, call=n, error=False)\n"
        "record.close()\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", program, str(n)]) for n in range(2)]
    assert [process.wait(60) for process in processes] == [0, 0]

    entries = list(journals.read(folder / "nodes"))
    for pool in ("p0", "p1"):
        assert [e.fields["call"] for e in entries if e.fields["pool"] == pool] == list(range(500))
    middle = entries[400]
    assert next(journals.read(folder / "nodes", middle.end)) == entries[401]


def test_a_directory_that_takes_nothing_is_told_once_and_ends_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SKYWARD_RUN", str(tmp_path / "file" / "run"))
    told: list[str] = []
    record = PoolRecord("p1", "", told.append)
    wait_until(lambda: told)
    for _ in range(100):
        _say(record, "x\n")
    record.close()
    PoolRecord("p2", "", told.append).close()

    assert len(told) == 1
    assert "file/run" in told[0] and "Not a directory" in told[0]


def test_what_the_disk_is_too_slow_for_is_counted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "_WAITING", 10)
    monkeypatch.setattr(pools, "_LINGER_S", 1.0)
    record = PoolRecord("p1", "", print)
    for line in ("12345\n", "too long\n", "9\n"):
        _say(record, line)
    record.close()

    assert [e["text"] for e in _entries(folder / "nodes")] == [
        "12345\n9\n",
        "skyward: 9 characters are missing here: they came faster than the disk takes them\n",
    ]


def test_a_process_has_a_run_of_its_own_that_notes_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("SKYWARD_RUN", raising=False)
    program = (
        "from skyward.records.pools import PoolRecord\n"
        "for name in 'ab':\n"
        "    record = PoolRecord(name, 'me', print)\n"
        "    record.event('opening')\n"
        "    record.close()\n"
        "1 / 0\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, "word"], capture_output=True, text=True, check=False)
    assert "ZeroDivisionError" in ended.stderr and ended.returncode == 1

    (run,) = (tmp_path / "skyward" / "runs").iterdir()
    record, end = RunRecord.parse((run / "run.json").read_text()), json.loads((run / "end.json").read_text())
    assert record.id == run.name and record.process == "me" and record.arguments == ["word"]
    assert (end["status"], end["reason"]) == (1, "ZeroDivisionError") and end["ended"] >= record.started
    assert sorted(path.name for path in (run / "pools").iterdir()) == ["a", "b"]
    assert (run.stat().st_mode & 0o777, (run / "nodes").stat().st_mode & 0o777) == (0o700, 0o700)
