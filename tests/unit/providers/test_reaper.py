"""The reaper destroys the pool of a client that died, and does nothing for one that closed it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import wait_until

# A client whose provider is a class of its own program: what it destroys is a file.
PROGRAM = """
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from skyward.errors import ProviderError
from skyward.providers.base import Allocation, Capabilities, Provider
from skyward.providers.reaper import Reaper


@dataclass(frozen=True)
class Files(Provider):
    name: ClassVar[str] = "files"
    capabilities: ClassVar[Capabilities] = Capabilities()
    folder: Path

    def open(self, request):
        raise NotImplementedError

    def find(self):
        return []

    def destroy(self, pool_id):
        with (self.folder / "asked").open("a") as asked:
            asked.write(pool_id)
        if (self.folder / "broken").exists():
            (self.folder / "broken").unlink()
            raise ProviderError("not now.")
        (self.folder / pool_id).unlink(missing_ok=True)


files = Files(Path(sys.argv[1]))
reaper = Reaper(files, "p1")
(files.folder / "p1").touch()
print("ready", flush=True)
sys.stdin.readline()


def clear():
    if len(sys.argv) > 2:
        raise ProviderError("the network is away.")
    (files.folder / "p1").unlink()


reaper.relieve(clear)
"""


def client(folder: Path, *words: str, cwd: Path | None = None) -> subprocess.Popen[str]:
    """A client that has made something."""
    script = folder / "program.py"
    script.write_text(PROGRAM)
    root = str(Path(__file__).parents[3])
    started = subprocess.Popen(
        [sys.executable, str(script), str(folder), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": root},
    )
    assert started.stdout
    assert started.stdout.readline() == "ready\n"
    return started


@pytest.mark.parametrize("fails_first", [False, True])
def test_the_pool_of_a_killed_client_is_destroyed(tmp_path: Path, fails_first: bool) -> None:
    """By the provider that the client's own program defines; a failure is tried again."""
    killed = client(tmp_path)
    if fails_first:
        (tmp_path / "broken").touch()
    assert (tmp_path / "p1").exists()
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=30)
    wait_until(lambda: not (tmp_path / "p1").exists(), 120)
    assert (tmp_path / "asked").read_text().startswith("p1p1" if fails_first else "p1")


def test_the_directory_that_the_client_is_in_has_no_modules_for_it(tmp_path: Path) -> None:
    """It may be one where others can put files, such as /tmp."""
    place, mark = tmp_path / "place", tmp_path / "mark"
    (place / "skyward").mkdir(parents=True)
    for file in ("skyward/__init__.py", "pickle.py"):
        (place / file).write_text(f"open({str(mark)!r}, 'w')\n")
    killed = client(tmp_path, cwd=place)
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=30)
    wait_until(lambda: not (tmp_path / "p1").exists() or mark.exists(), 120)
    assert not mark.exists()


def test_a_client_that_cannot_close_its_pool_leaves_it_to_the_reaper(tmp_path: Path) -> None:
    """Also while that client goes on: its error is raised, and the reaper goes on trying."""
    failing = client(tmp_path, "fail")
    _, errors = failing.communicate("\n", timeout=30)
    assert "the network is away" in errors
    wait_until(lambda: not (tmp_path / "p1").exists(), 120)
