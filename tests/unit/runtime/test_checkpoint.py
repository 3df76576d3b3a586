"""Checkpoints: what was committed is there as a whole, whatever happens to the next commit."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from skyward.errors import CheckpointError, ConfigError
from skyward.runtime.checkpoint import Checkpoint, checkpoint
from skyward.runtime.checkpoint_store import CHUNK, CheckpointStore, Commit, FileFacts


def _content(found: Checkpoint) -> dict[str, bytes]:
    files = (path for path in found.path.rglob("*") if path.is_file())
    return {path.relative_to(found.path).as_posix(): path.read_bytes() for path in files}


def _commits(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_was_committed_is_there_again(tmp_path: Path) -> None:
    """Files of any size, in directories, empty ones, programs; not what was removed, nor what was written later."""
    with checkpoint(tmp_path / "c") as state:
        assert (state.commits, _content(state)) == (0, {})
        (state / "a" / "b").mkdir(parents=True)
        (state / "a" / "b" / "large").write_bytes(os.urandom(2 * CHUNK + 5))
        (state / "exact").write_bytes(b"x" * CHUNK)
        (state / "none").touch()
        (state / "empty" / "folder").mkdir(parents=True)
        (state / "run.sh").write_text("#!/bin/sh\n")
        (state / "run.sh").chmod(0o755)
        kept = _content(state)
    (state / "later").touch()

    again = checkpoint(tmp_path / "c")

    assert (again.commits, _content(again)) == (1, kept)
    assert (again / "empty" / "folder").is_dir()
    assert os.access(again / "run.sh", os.X_OK)
    assert again.path != state.path
    (again / "none").unlink()
    again.commit()
    assert sorted(_content(checkpoint(tmp_path / "c"))) == ["a/b/large", "exact", "run.sh"]
    assert (tmp_path / "c" / "000002" / "exact").stat().st_nlink == 2  # what did not change is not written again


def test_two_commits_are_kept(tmp_path: Path) -> None:
    state = checkpoint(tmp_path / "c")
    for number in range(5):
        (state / "n").write_text(str(number))
        state.commit()

    assert _commits(tmp_path / "c") == ["000004", "000004.json", "000005", "000005.json"]
    assert (tmp_path / "c").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("damage", ["no description", "half a description", "half a file", "a draft"])
def test_a_commit_that_is_not_whole_does_not_count(tmp_path: Path, damage: str) -> None:
    """The one before it does, and the next takes its place."""
    folder = tmp_path / "c"
    state = checkpoint(folder)
    for number in range(2):
        (state / "n").write_text(f"number {number}")
        state.commit()
    match damage:
        case "no description":
            (folder / "000002.json").unlink()
        case "half a description":
            (folder / "000002.json").write_bytes((folder / "000002.json").read_bytes()[:-1])
        case "half a file":
            (folder / "000002" / "n").write_text("num")
        case "a draft":
            (folder / "000003").mkdir()
            (folder / "000003" / "n").touch()

    again = checkpoint(folder)

    last = 2 if damage == "a draft" else 1
    assert (again.commits, _content(again)) == (last, {"n": b"number %d" % (last - 1)})
    (again / "n").write_text("new")
    again.commit()
    assert again.commits == last + 1
    assert _content(checkpoint(folder)) == {"n": b"new"}


def test_a_writer_that_is_killed_at_any_time_leaves_a_whole_commit(tmp_path: Path) -> None:
    for delay in range(6):
        reader, writer = os.pipe()
        if (child := os.fork()) == 0:
            state = checkpoint(tmp_path / "c")
            while True:
                text = str(state.commits).encode()
                for name in "abcd":
                    (state / name).write_bytes(text * 1000)
                state.commit()
                os.write(writer, b".")
        os.close(writer)
        os.read(reader, 1)
        os.set_blocking(reader, True)
        for _ in range(delay):
            os.read(reader, 1)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)

        found = checkpoint(tmp_path / "c")
        assert _content(found) == {name: str(found.commits - 1).encode() * 1000 for name in "abcd"}


def test_a_full_disk_leaves_the_commit_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = checkpoint(tmp_path / "c")
    (state / "n").write_text("first")
    state.commit()
    (state / "n").write_text("second")

    def full(_file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(
            CheckpointError, match=r"n cannot be written: No space left.*committed before is still there"
        ):
            state.commit()

    assert _content(checkpoint(tmp_path / "c")) == {"n": b"first"}
    state.commit()
    assert _content(checkpoint(tmp_path / "c")) == {"n": b"second"}


def test_a_file_system_without_links_gets_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    state = checkpoint(tmp_path / "c")
    (state / "same").write_bytes(b"x" * (CHUNK + 1))
    (state / "none").touch()
    state.commit()
    state.commit()

    assert _content(checkpoint(tmp_path / "c")) == _content(state)
    assert (tmp_path / "c" / "000002" / "same").stat().st_nlink == 1


_FORKS = """
import os, sys
from skyward.runtime.checkpoint import checkpoint
state = checkpoint(sys.argv[1])
if os.fork() == 0:
    sys.exit()
os.wait()
print(state.path, state.path.is_dir())
"""


def test_a_forked_child_leaves_the_directory_to_its_parent(tmp_path: Path) -> None:
    """It is there until the process ends that has asked for it, and no longer."""
    command = [sys.executable, "-c", _FORKS, str(tmp_path / "c")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    folder, was_there = done.stdout.split()
    assert was_there == "True"
    assert not Path(folder).exists()


def test_an_error_commits_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), checkpoint(tmp_path / "c") as state:
        (state / "n").touch()
        raise ZeroDivisionError

    assert checkpoint(tmp_path / "c").commits == 0


def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with checkpoint(tmp_path / "c") as state:
        (state / "n").write_text("right")
    (tmp_path / "c" / "000001" / "n").write_text("wrong")

    with pytest.raises(CheckpointError, match="n of commit 1 is damaged"):
        checkpoint(tmp_path / "c")


def test_links_are_refused(tmp_path: Path) -> None:
    state = checkpoint(tmp_path / "c")
    (state / "link").symlink_to("/etc/passwd")

    with pytest.raises(CheckpointError, match="holds link, which is not a file"):
        state.commit()


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "a b", "ü", "x" * 200])
def test_odd_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="give a name of letters"):
        checkpoint(name)


def test_a_name_needs_a_pool() -> None:
    with pytest.raises(CheckpointError, match="where no call of a pool runs"):
        checkpoint("train")


@pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../../x", "", ".", "a//b", "a/", "nul\0"])
def test_a_path_outside_is_refused(tmp_path: Path, path: str) -> None:
    """Whoever sends it."""
    document = Commit(0, {path: FileFacts("0" * 64, 1)}).to_json()
    with pytest.raises(CheckpointError, match="not a path of a file in a checkpoint"):
        Commit.of_json(document)
    with pytest.raises(CheckpointError, match="not a path of a file in a checkpoint"):
        CheckpointStore(tmp_path).read(Commit(1), path, 0)


def test_a_store_takes_only_what_was_announced(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "c")
    with pytest.raises(CheckpointError, match="not the file that the commit under way expects"):
        store.write("a", b"x")
    facts = FileFacts(hashlib.sha256(b"right").hexdigest(), 5)
    assert store.begin({"a": facts, "b": facts}, []) == ("a", "b")
    with pytest.raises(CheckpointError, match="not the file that the commit under way expects"):
        store.write("b", b"right")
    with pytest.raises(CheckpointError, match="a was changed while it was committed"):
        store.write("a", b"wrong")
    with pytest.raises(CheckpointError, match="to have all of its files"):
        store.finish()
    assert CheckpointStore(tmp_path / "c").last() == Commit()
