"""Runs of a program of the tests' own, in a state directory of the test's own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("printing.py")
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of runs, which is empty."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.delenv("SKYWARD_RUN", raising=False)
    return tmp_path / "state" / "skyward" / "runs"


@pytest.fixture
def start(runs: Path) -> Iterator[Start]:
    """Start a run, which has written its record when this returns."""
    running: list[subprocess.Popen[str]] = []

    def begin(name: str, lines: int = 3, pause_s: float = 0.0, end: str = "0") -> subprocess.Popen[str]:
        words = [sys.executable, str(PROGRAM), str(runs / name), str(lines), str(pause_s), end]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
        running.append(process)
        assert process.stdout
        assert process.stdout.readline() == "started\n"
        return process

    yield begin
    for process in running:
        process.kill()
        process.communicate()
