"""Temporary folders and whose they are: swept when the owner is gone, never otherwise."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from skyward.builder.folders import scratch_folder, sweep
from skyward.errors import ConfigError


@pytest.fixture
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of temporary files."""
    (tmp_path / "temp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temp"))
    return tmp_path / "temp"


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_is_private_and_goes(temp: Path) -> None:
    """Only its user can enter it; it is gone after the block, also after an error."""
    with pytest.raises(KeyError), scratch_folder("lock") as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "netrc").write_text("secret")
        sweep()
        assert (folder / "netrc").exists()
        raise KeyError
    assert _names(temp) == []


def test_a_killed_owner(temp: Path) -> None:
    """While its owner lives a folder stays; after SIGKILL the next one who needs a folder removes it."""
    code = (
        "import tempfile, time; from skyward.builder.folders import scratch_folder\n"
        f"tempfile.tempdir = {str(temp)!r}\n"
        f"with scratch_folder('login') as folder:\n"
        "    (folder / 'deep').mkdir(); (folder / 'deep/secret').write_text('canary')\n"
        "    print(folder, flush=True); time.sleep(600)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout
    left = Path(owner.stdout.readline().strip())
    os.utime(left, (1, 1))
    with scratch_folder("build"):
        assert (left / "deep/secret").exists()
    owner.kill()
    owner.communicate()
    assert (left / "deep/secret").exists()
    with scratch_folder("build") as mine:
        assert _names(temp) == [mine.name]


def test_what_is_not_swept(temp: Path, tmp_path: Path) -> None:
    """Links, files, new folders, those that others may enter, of another name or another user stay untouched."""
    (tmp_path / "target").mkdir(mode=0o700)
    (tmp_path / "target/precious").write_text("")
    (temp / "skyward-build-link").symlink_to(tmp_path / "target")
    (temp / "skyward-build-file").write_text("")
    (temp / "skyward-build-open").mkdir()
    (temp / "skyward-build-open").chmod(0o755)
    (temp / "skyward-other").mkdir(mode=0o700)
    if os.geteuid() == 0:
        (temp / "skyward-build-others").mkdir(mode=0o700)
        os.chown(temp / "skyward-build-others", 12345, 12345)
    (temp / "skyward-lock-inner").mkdir(mode=0o700)
    (temp / "skyward-lock-inner/link").symlink_to(tmp_path / "target")
    before = _names(temp)
    for path in temp.iterdir():
        os.utime(path, (1, 1), follow_symlinks=False)
    (temp / "skyward-lock-new").mkdir(mode=0o700)
    sweep()
    (temp / "skyward-lock-new").rmdir()
    assert _names(temp) == [name for name in before if name != "skyward-lock-inner"]
    assert (tmp_path / "target/precious").exists()


def test_no_room_for_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentence with the folder, whether it cannot be made or not be filled; other errors stay as they are."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with (
        pytest.raises(ConfigError, match=rf"in {tmp_path}: No space left on device\. Make room"),
        scratch_folder("build"),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(FileNotFoundError), scratch_folder("build"):
        (tmp_path / "nowhere").read_text()
    monkeypatch.setattr("tempfile.tempdir", "/proc/self/nowhere")
    with pytest.raises(ConfigError, match="could not be created"), scratch_folder("build"):
        pass
