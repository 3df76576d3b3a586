"""The key of a detached run in a host's authorized_keys: added, held, and removed whatever becomes of its driver."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from skyward.runs import keys

MINE = "ssh-ed25519 AAAAmine me@laptop"
LINE = 'restrict,port-forwarding,from="10.0.0.1" ssh-ed25519 AAAArun skyward-run-train-1'
OTHER = LINE.replace("train-1", "train-12")


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home directory that the scripts find, as on a host; their waits are over at once."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sleep").write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "bin" / "sleep").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return tmp_path


def shell(script: str, *words: str, given: str = "") -> str:
    """What a script prints, without an error."""
    done = subprocess.run(["sh", "-c", script, "sh", *words], input=given, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def accepted(host: Path) -> list[str]:
    """The lines of authorized_keys; none if there is no file."""
    file = host / ".ssh" / "authorized_keys"
    return file.read_text().splitlines() if file.exists() else []


def marks(host: Path) -> list[str]:
    """The runs whose keys are said to be there."""
    return sorted(path.name for path in (host / ".local/state/skyward/keys").iterdir())


def test_a_key_comes_after_those_of_the_user_and_goes_alone(host: Path) -> None:
    """A file without a last newline, with a mode of its own and behind a link, stays what it was."""
    (host / ".ssh").mkdir()
    real = host / "real_keys"
    real.write_text(MINE)
    real.chmod(0o640)
    (host / ".ssh" / "authorized_keys").symlink_to(real)

    added = [shell(keys._ADD, "train-1", LINE), shell(keys._ADD, "train-12", OTHER)]

    assert added == ["skyward-key added\n"] * 2
    assert accepted(host) == [MINE, LINE, OTHER]
    shell(keys._REMOVE, "train-1")
    assert accepted(host) == [MINE, OTHER]
    assert marks(host) == ["train-12"]
    assert real.stat().st_mode & 0o777 == 0o640
    assert (host / ".ssh" / "authorized_keys").is_symlink()


def test_a_driver_removes_its_key_at_the_end(host: Path) -> None:
    """A file that was not there is not left; what was made meanwhile is for the user alone."""
    shell(keys._ADD, "train-1", LINE)
    assert (host / ".ssh" / "authorized_keys").stat().st_mode & 0o777 == 0o600
    assert (host / ".ssh").stat().st_mode & 0o777 == 0o700

    said = shell(keys._HOLD, "train-1", given="beat\nbeat\nend\n")

    assert said == "skyward-key held\nskyward-key removed\n"
    assert not marks(host)
    assert not list((host / ".ssh").iterdir())


@pytest.mark.parametrize(("age_s", "left"), [(3600, False), (0, True)])
def test_the_session_of_a_dead_driver_removes_the_key_unless_another_holds_it(
    host: Path, age_s: int, left: bool
) -> None:
    """After a wait, by the age of the mark: a driver that has connected again renews it meanwhile."""
    shell(keys._ADD, "train-1", LINE)
    mark = host / ".local/state/skyward/keys/train-1"
    os.utime(mark, (mark.stat().st_mtime - age_s,) * 2)

    shell(keys._HOLD, "train-1")

    assert (accepted(host), marks(host)) == (([LINE], ["train-1"]) if left else ([], []))


def test_what_a_dead_host_has_left_goes_with_the_next_run(host: Path) -> None:
    """Keys whose marks nobody has renewed are removed before another is added; held ones stay."""
    shell(keys._ADD, "train-1", LINE)
    shell(keys._ADD, "train-12", OTHER)
    mark = host / ".local/state/skyward/keys/train-1"
    os.utime(mark, (mark.stat().st_mtime - 3600,) * 2)
    third = LINE.replace("train-1", "eval-7")

    shell(keys._ADD, "eval-7", third)

    assert accepted(host) == [OTHER, third]
    assert marks(host) == ["eval-7", "train-12"]
