"""Detached runs: they go on when what started them is killed, print each line once, and leave only their record."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import skyward as sky
from scripts.stand.place import Host, Stand
from skyward.nodes.run_directory import runtime_base
from skyward.records.run import is_held
from tests import journals
from tests.e2e.run_programs import PRINTING
from tests.waiting import wait_until

CALLS = 200


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the records of this test's runs are; what it runs is started beside them."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "state" / "skyward" / "runs"


@pytest.mark.parametrize("provider", ["Local", "Docker"])
def test_a_run_outlives_what_started_it(home: Path, monkeypatch: pytest.MonkeyPatch, provider: str) -> None:
    """200 calls that print two lines each, after kill -9 of all that started them: each line once, all results.

    Nothing of the pool is left.
    """
    monkeypatch.setenv("RUN_TEST_TOKEN", "hidden-7d1")
    run = detached(f"sky.{provider}()", "--env", "RUN_TEST_TOKEN")

    folder = ended(home / run)

    check(folder)
    assert Path("work.journal").is_file()  # a process of this machine has run in this directory
    assert printed(folder, "err").endswith("token hidden-7d1\n")
    wait_until(lambda: not is_held(folder), 60)
    (pool,) = re.findall(r"pool (\w{8}): 2 nodes ready", printed(folder, "err"))
    assert all(each["pool"] != pool for each in getattr(sky, provider)().find())
    assert not (runtime_base() / f"skyward-{pool}").exists()
    assert not any("hidden-7d1" in path.read_text() for path in folder.glob("*.json*"))


def test_a_run_on_hosts_outlives_the_machine_that_started_it(
    home: Path, stand: Stand, clean: Callable[[float], None]
) -> None:
    """The same on two hosts: the driver is on the first, with a key of the run alone that is gone at its end.

    The next run there finds the journal.
    """
    facts = json.loads(stand.hosts_file.read_text())
    files = f"key={facts['key']!r}, known_hosts={facts['known_hosts']!r}"
    run = detached(f"sky.SSH(*{facts['hosts'][:2]}, {files})")
    first, second = stand.hosts[:2]
    assert f"skyward-run-{run}" in authorized(first)
    assert f"skyward-run-{run}" in authorized(second)
    assert journals.facts(home / run).record.place == facts["hosts"][0]

    place = f"/root/.local/state/skyward/runs/{run}"
    wait_until(lambda: '"ended"' in first.run("cat", f"{place}/run.jsonl"), 240)
    wait_until(lambda: not first.run("docker", "ps", "-aq", "--filter", f"label=skyward.run={run}"), 120)

    copy = fetched(first, place, home)
    check(copy)
    assert not any("skyward-run-" in authorized(host) for host in (first, second))
    assert not {"key", "known_hosts", "launch.json"} & {path.name for path in copy.iterdir()}
    assert [path.name for path in (copy / "written").iterdir()] == ["work.journal"]
    again = subprocess.run(
        [sys.executable, "-m", "skyward", "attach", detached(f"sky.SSH(*{facts['hosts'][:2]}, {files})")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"journal work.journal: {CALLS} of {CALLS} results are there" in again.stderr
    clean(30)


def fetched(host: Host, place: str, home: Path) -> Path:
    """A copy of a directory of a host."""
    copy = home.parent / "copy"
    copy.mkdir()
    packed = host.run("sh", "-c", f"tar -C {place} -cf - . | base64")
    subprocess.run(["tar", "-xf", "-", "-C", str(copy)], input=base64.b64decode(packed), check=True)
    return copy


def authorized(host: Host) -> str:
    """The keys that a host accepts for root, besides that of the stand."""
    return host.run("sh", "-c", "cat /root/.ssh/authorized_keys 2>/dev/null || true")


def test_a_program_that_cannot_be_detached_is_refused_before_anything_is_made(home: Path) -> None:
    """It must open a pool; providers that cannot have a driver are named."""
    Path("compose.yaml").write_text("services:\n  a:\n    image: x\n")
    Path("none.py").write_text("import skyward\n")
    Path("composed.py").write_text("import skyward as sky\nsky.ComputePool(sky.Compose('compose.yaml')).open()\n")

    none, composed = (skyward_run("--detach", name) for name in ("none.py", "composed.py"))

    assert "none.py ended without opening a pool" in none.stderr
    assert "composed.py, line 2: a run whose first pool is on sky.Compose" in composed.stderr
    assert (none.returncode, composed.returncode) == (2, 2)
    assert not home.exists()


def skyward_run(*words: str) -> subprocess.CompletedProcess[str]:
    """The command, to its end."""
    command = [sys.executable, "-m", "skyward", "run", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)


def detached(provider: str, *options: str) -> str:
    """Start the program in a session that is killed, with all processes of its group, once the run is confirmed."""
    Path("beside.py").write_text(f"CALLS = {CALLS}\n")
    Path("program.py").write_text(PRINTING.replace("PROVIDER", provider))
    script = 'python=$1; shift; $python -m skyward run --detach "$@" && sleep 600'  # it ends if the launch fails
    words = ["bash", "-c", script, "bash", sys.executable, *options, "program.py", "--epochs", "3"]
    said = Path("launcher.err")
    with said.open("wb") as errors:
        launcher = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True)
    assert launcher.stdout
    with launcher.stdout:
        run = launcher.stdout.readline().strip()
        with suppress(ProcessLookupError):  # it has failed, and is gone
            os.killpg(launcher.pid, signal.SIGKILL)
        launcher.wait(30)
    assert re.fullmatch(r"program-\w{4}", run), f"the launch failed: {run} {said.read_text()}"
    return run


def ended(folder: Path) -> Path:
    """Wait for the end of a run."""
    wait_until(lambda: journals.facts(folder).end is not None, 240)
    return folder


def check(folder: Path) -> None:
    """All lines once each, in order per call; all results; the program had its arguments and said how it ended."""
    assert journals.end(folder) == (0, None), printed(folder, "err")
    assert json.loads((folder / "results.json").read_text()) == [number * number for number in range(CALLS)]
    lines = printed(folder, "out").splitlines()
    found = [match for line in lines if (match := re.search(r"(begin|end) (\d+)$", line))]
    assert Counter(each[0] for each in found) == Counter(
        f"{word} {number}" for word in ("begin", "end") for number in range(CALLS)
    )
    began = set[str]()
    for each in found:
        assert each[1] == "begin" or each[2] in began
        began.add(each[2])
    assert 'arguments ["--epochs", "3"]' in lines


def printed(folder: Path, stream: str) -> str:
    """What a run's program has printed to one stream, as its journal has it."""
    entries = journals.read(folder / "output")
    return "".join(each.fields["text"] for each in entries if each.fields["stream"] == stream)
