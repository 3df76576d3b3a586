"""Failures are shown as they happen, and too many of them end a run of several processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.failures import LIMIT, line

ROOT = Path(__file__).parents[2]
CONFTEST = """
import tempfile
from tests import failures

FOLDER = tempfile.TemporaryDirectory()

def pytest_configure(config):
    failures.register(config, FOLDER)
"""
TESTS = """
import time
import pytest

@pytest.fixture
def broken():
    raise OSError("no such engine\\nsecond line")

@pytest.mark.parametrize("number", range(40))
@pytest.mark.xdist_group("failing")
def test_failing(number):
    assert number == 100, "never"

@pytest.mark.xdist_group("failing")
def test_of_a_fixture(broken): ...

@pytest.mark.parametrize("number", range(400))
@pytest.mark.xdist_group("slow")
def test_slow(number):
    time.sleep(0.1)
"""


def pytest_in(folder: Path, *words: str) -> str:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_some.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--rootdir={folder}", *words, "."]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=False).stdout


def test_each_failure_is_a_line_when_it_happens(tmp_path: Path) -> None:
    """With the test, when, and the first line of the reason."""
    out = pytest_in(tmp_path, "-k", "test_of_a_fixture or test_failing and 39")

    before, _, _ = out.partition("= ERRORS =")
    assert "FAILED test_some.py::test_failing[39] (call): AssertionError: never\n" in before
    assert "FAILED test_some.py::test_of_a_fixture (setup): OSError: no such engine\n" in before


def test_too_many_failures_end_all_processes(tmp_path: Path) -> None:
    """The one that has 400 tests of 0.1 s before it as well; the tracebacks are there."""
    out = pytest_in(tmp_path, "-n", "2", "--dist", "loadgroup", "--maxfail=5", "-v")

    assert out.count("\nFAILED test_some.py::test_failing[") >= 5
    assert "E       AssertionError: never" in out
    assert "stopping after 5 failures" in out
    assert out.count("PASSED") < 100


def test_a_line_is_never_long() -> None:
    """300 characters at most."""
    assert len(line("FAILED", "test", "call", "x" * 1000)) == LIMIT
