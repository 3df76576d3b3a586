"""Objects of `__main__` are on a node what they are in the program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("provider", ["Local", "Docker"])
def test_objects_of_the_program(provider: str) -> None:
    """Functions that use them return the same on a node; they come back as themselves; none is changed here."""
    program = Path(__file__).with_name("main_objects.py")
    ended = subprocess.run([sys.executable, program, provider], check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout.strip(), ended.stderr) == (0, "", "")
