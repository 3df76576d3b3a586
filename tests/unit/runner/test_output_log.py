"""The files that keep what a node prints: at once, bounded, and readable after any end of their writer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from skyward.runner.output_log import OutputLog, Unfinished, unfinished
from skyward.wire.messages import STDERR, STDOUT, Kind, decode
from tests.unit.runner.node import RunningNode


def _log(folder: Path, limit: int = 10**6) -> OutputLog:
    return OutputLog(folder, "w0", limit, pytest.fail, node=1, rank=2)


def _entries(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def test_each_write_is_an_entry_with_time_and_whose_it_is(tmp_path: Path) -> None:
    log = _log(tmp_path)
    log.add('a "b"\n', call=7, stream=STDOUT)
    log.add("ä\ud800", call=None, stream=STDERR)

    first, *entries = _entries(tmp_path / "w0.log")
    assert (first["node"], first["rank"]) == (1, 2)
    assert [(e["call"], e["stream"], e["text"]) for e in entries] == [(7, "out", 'a "b"\n'), (None, "err", "ä?")]
    assert all(e["t"] > 1e9 for e in entries)
    assert (tmp_path / "w0.log").stat().st_mode & 0o777 == 0o600


def test_the_oldest_goes_first_and_how_much_is_said(tmp_path: Path) -> None:
    log = _log(tmp_path, limit=40_000)
    for n in range(3000):
        log.add(f"{n:0100}\n", call=1, stream=STDOUT)

    both = [tmp_path / "w0.log.1", tmp_path / "w0.log"]
    assert sum(path.stat().st_size for path in both) <= 40_000
    entries = [entry for path in both for entry in _entries(path)]
    kept = [int(entry["text"]) for entry in entries if "text" in entry]
    assert kept == list(range(kept[0], 3000)) and kept[0] > 2500
    written = sum(len(json.dumps(entry, separators=(",", ":"))) + 1 for entry in entries) / len(kept) * kept[0]
    gone = [entry["gone"] for entry in entries if "gone" in entry]
    assert gone == sorted(gone) and 0.9 < gone[-1] / written < 1.1


def test_lines_that_were_not_sent_are_found_by_call_stream_and_thread(tmp_path: Path) -> None:
    log = _log(tmp_path)
    log.add("of the process before\n and more", call=1, stream=STDOUT)
    log = _log(tmp_path)
    log.add("whole\nbegun", call=3, stream=STDOUT)
    log.add(" and more", call=3, stream=STDOUT)
    log.add("sent", call=3, stream=STDERR)
    log.passed_on(call=3, stream=STDERR)
    thread = threading.Thread(target=lambda: log.add("elsewhere", call=3, stream=STDOUT))
    thread.start()
    thread.join()
    with (tmp_path / "w0.log").open("a") as file:
        file.write('{"t":1,"call":3,"str')

    assert unfinished(tmp_path, "w0") == [
        Unfinished(3, STDOUT, "begun and more"),
        Unfinished(3, STDOUT, "elsewhere"),
    ]
    assert unfinished(tmp_path, "w1") == []


def test_a_line_is_found_that_begins_in_the_file_before(tmp_path: Path) -> None:
    log = _log(tmp_path, limit=10_000)
    log.add("x" * 3000, call=3, stream=STDOUT)
    log.add("y" * 3000, call=3, stream=STDOUT)

    assert (tmp_path / "w0.log.1").exists()
    assert [part.text for part in unfinished(tmp_path, "w0")] == ["x" * 3000 + "y" * 3000]


def test_what_was_written_before_a_kill_is_there(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from skyward.runner.output_log import OutputLog\n"
        f"OutputLog(Path({str(tmp_path)!r}), 'w0', 10**6, print).add('last words', call=1, stream=1)\n"
        "os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
    assert unfinished(tmp_path, "w0") == [Unfinished(1, STDOUT, "last words")]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_disk_that_is_full_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "w0.log").symlink_to("/dev/full")
    told: list[str] = []
    log = OutputLog(tmp_path, "w0", 10**6, told.append)
    for _ in range(3):
        log.add("x\n", call=1, stream=STDOUT)

    assert len(told) == 1 and "No space left on device" in told[0] and "w0.log" in told[0]


def test_the_agent_sends_what_a_killed_worker_had_begun(node: RunningNode) -> None:
    """The beginning of a line is with the client before the report of the worker's end."""
    client = node.client()
    client.ping_s()  # the agent knows this client before the worker ends
    node.do("import os; print('whole'); print('begun', end=''); os.kill(os.getpid(), 9)")

    part = decode(client.next(Kind.UNFINISHED).head)
    assert (part["worker"], part["generation"], part["stream"], part["text"]) == (0, 0, STDOUT, "begun")
    assert part["call"] and client.document(Kind.WORKER_EXIT)["signal"] == 9
    assert not os.access(node.run_dir / "w0.log", os.X_OK)
