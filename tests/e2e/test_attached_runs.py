"""Detached runs as the commands show them: attached to at any time, listed, ended, and what they have left."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from scripts.stand import faults
from scripts.stand.place import Stand
from tests import journals
from tests.e2e.test_runs import CALLS, check, detached, home, printed
from tests.waiting import wait_until

__all__ = ["home"]


def test_a_run_is_attached_to_at_any_time(home: Path) -> None:
    """Twenty times during the run, for random times; then to its end. Its values and files are there."""
    run = detached("sky.Docker()")
    seeds = random.Random(run)
    with ThreadPoolExecutor(5) as threads:
        times = [seeds.random() / 2 for _ in range(20)]
        seen = list(threads.map(lambda number: attached_for(run, times[number], Path(f"shown-{number}")), range(20)))

    done = command("attach", run)

    assert done.returncode == 0, done.stderr
    assert done.stdout == printed(home / run, "out")
    assert "token None\n" in done.stderr
    check(home / run)
    assert [each for each in seen if not done.stdout.startswith(each)] == []
    (told,) = [each for each in events("ps", "--all", "--json") if each.get("run") == run]
    assert told["arguments"] == ["--epochs", "3"]
    assert (told["state"], told["status"], told["calls"]["done"]) == ("ended", 0, CALLS)
    values = [each["value"] for each in events("result", run, "--json", "--into", "got") if each["event"] == "value"]
    assert values == [[number * number for number in range(CALLS)]]
    assert Path("got/files/squares.txt").read_text() == str(CALLS)


@pytest.mark.parametrize("provider", ["sky.Local()", "sky.Docker()"])
def test_a_run_is_ended_with_its_pools(provider: str, home: Path) -> None:
    """By the program itself, or after it; it says how it ended."""
    run = detached(provider)
    wait_until(lambda: "begin" in printed(home / run, "out"), 60)

    done = command("down", run)

    assert done.stdout.splitlines()[0] == f"run {run} ended at this machine", done.stderr
    assert command("attach", run).returncode == 143
    assert command("down", run).stdout.splitlines()[0] == f"run {run} had ended before at this machine (ended by down)"
    pools = set(journals.facts(home / run).pools)
    assert pools
    assert not [each for each in events("ps", "--json") if each.get("pool") in pools]


def command(*words: str) -> subprocess.CompletedProcess[str]:
    """The command line, to its end."""
    line = [sys.executable, "-m", "skyward", *words]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=280)


def events(*words: str) -> list[dict[str, Any]]:
    """What a command prints as objects of JSON."""
    done = command(*words)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def attached_for(run: str, seconds: float, file: Path) -> str:
    """What `skyward attach` shows in so long, counted from when it shows something, until Ctrl-C."""
    line = [sys.executable, "-m", "skyward", "attach", run]
    with file.open("wb") as shown, subprocess.Popen(line, stdout=shown, stderr=subprocess.PIPE) as attached:
        wait_until(lambda: bool(file.stat().st_size), 60)
        time.sleep(seconds)
        attached.send_signal(signal.SIGINT)
        _, said = attached.communicate(timeout=60)
    assert f"detached from {run}, which goes on" in said.decode() or f"{run} ended" in said.decode()
    return file.read_text()


def test_a_run_on_hosts_is_attached_to_from_another_machine(
    home: Path, stand: Stand, clean: Callable[[float], None], tmp_path: Path
) -> None:
    """From another network, without a record of it there: 400 lines once each, in order per call, and all results."""
    facts = json.loads(stand.hosts_file.read_text())
    files = f"key={facts['key']}&known_hosts={facts['known_hosts']}"
    run = detached(f"sky.SSH(*{facts['hosts'][:2]}, key={facts['key']!r}, known_hosts={facts['known_hosts']!r})")
    where = ["--at", f"ssh://{facts['hosts'][0]}?{files}"]
    elsewhere = ["ip", "netns", "exec", stand.host(3).namespace, "env", f"XDG_STATE_HOME={tmp_path}/elsewhere"]

    lines = [line.partition("] ")[2] for line in done_there(elsewhere, "attach", run, *where).splitlines()]

    assert sorted(line for line in lines if line) == sorted(
        f"{word} {number}" for word in ("begin", "end") for number in range(CALLS)
    )
    assert all(lines.index(f"begin {number}") < lines.index(f"end {number}") for number in range(CALLS))
    told = [json.loads(line) for line in done_there(elsewhere, "result", run, "--json", *where).splitlines()]
    assert [each["value"] for each in told if each["event"] == "value"] == [[n * n for n in range(CALLS)]]
    assert not (tmp_path / "elsewhere").exists()
    assert command("attach", run).stdout == done_there(elsewhere, "logs", run, *where)
    assert journals.facts(home / run).is_collected  # by the attach of the machine that has started it
    clean(30)


def done_there(there: list[str], *words: str) -> str:
    """What a command prints that is run elsewhere."""
    line = [*there, sys.executable, "-m", "skyward", *words]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_end_of_the_host_of_a_driver_is_told(
    home: Path, stand: Stand, request: pytest.FixtureRequest, clean: Callable[[float], None]
) -> None:
    """By whoever is attached; `skyward ps` says so as well."""
    facts = json.loads(stand.hosts_file.read_text())
    run = detached(f"sky.SSH({facts['hosts'][0]!r}, key={facts['key']!r}, known_hosts={facts['known_hosts']!r})")
    line = [sys.executable, "-m", "skyward", "attach", run]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as attached:
        assert attached.stdout
        assert attached.stderr
        assert "arguments" in attached.stdout.readline()
        request.addfinalizer(lambda: faults.power_on(stand.host(1)))
        lost = time.monotonic()
        faults.power_off(stand.host(1))
        while f"Run {run} may still run there" not in (said := attached.stderr.readline()):
            assert said
        assert time.monotonic() - lost < 45  # it takes 8 s
        attached.kill()
    listed = command("ps")
    assert "machine lost" in listed.stdout
    assert listed.returncode == 6
