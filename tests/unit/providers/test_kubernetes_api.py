import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import os, sys
from skyward.providers.kubernetes.api import _certificates
folder = _certificates()
if os.fork() == 0:
    sys.exit()
os.wait()
print(folder, folder.is_dir())
"""


def test_a_forked_child_leaves_certificates_to_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are there until the process ends that has asked for them, and no longer."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    folder, was_there = done.stdout.split()
    assert was_there == "True"
    assert not Path(folder).exists()
