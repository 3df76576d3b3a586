"""`skyward init`, and completion in shells, which is click's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from skyward.cli.main import main
from skyward.runs.describe import declared_by


def test_what_is_written_runs_and_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The test as it is, and the image is found. Nothing is written over."""
    folder = tmp_path / "new"
    assert main(["init", str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder}/main.py\n{folder}/test_main.py\n"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=folder,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    assert [each.name for each in declared_by(str(folder / "main.py"), ())] == ["main"]
    assert main(["init", str(folder)]) == 2
    assert "main.py and" in capsys.readouterr().err


def test_the_command_answers_what_a_shell_asks() -> None:
    """With commands, and with options of one."""
    for typed, expected in (("skyward com", "compose"), ("skyward image ls --j", "--json")):
        words = typed.split()
        asking = {"_SKYWARD_COMPLETE": "bash_complete", "COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1)}
        command = [sys.executable, "-m", "skyward"]
        done = subprocess.run(command, env={**os.environ, **asking}, capture_output=True, text=True, check=False)
        assert f"plain,{expected}" in done.stdout, done
