"""Checkpoints: what was committed is there as a whole, whatever happens to the next commit."""

from __future__ import annotations

import errno
import io
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from skyward.errors import CheckpointError, ConfigError
from skyward.runtime.checkpoint import Checkpoint, checkpoint
from skyward.runtime.checkpoint_store import CHUNK, CheckpointStore


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
        (state / "a" / "b" / "large").write_bytes(os.urandom(CHUNK + 5))
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


def test_two_commits_are_kept(tmp_path: Path) -> None:
    state = checkpoint(tmp_path / "c")
    for number in range(5):
        (state / "n").write_text(str(number))
        state.commit()

    assert _commits(tmp_path / "c") == ["000004", "000004.done", "000005", "000005.done"]
    assert (tmp_path / "c").stat().st_mode & 0o077 == 0


def test_a_commit_that_is_not_whole_does_not_count(tmp_path: Path) -> None:
    """The one before it does, and the next takes its place."""
    folder = tmp_path / "c"
    state = checkpoint(folder)
    for text in ("old", "lost"):
        (state / "n").write_text(text)
        state.commit()
    (folder / "000002.done").unlink()

    again = checkpoint(folder)

    assert (again.commits, _content(again)) == (1, {"n": b"old"})
    (again / "n").write_text("new")
    again.commit()
    assert again.commits == 2
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
            CheckpointError, match=r"commit 2 cannot be written: No space left.*committed before is still there"
        ):
            state.commit()

    assert _content(checkpoint(tmp_path / "c")) == {"n": b"first"}
    state.commit()
    assert _content(checkpoint(tmp_path / "c")) == {"n": b"second"}


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


def _archive(name: str, kind: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, "/etc/passwd"
        archive.addfile(member)
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("/etc/x", tarfile.REGTYPE),
        ("../x", tarfile.REGTYPE),
        ("a/../../x", tarfile.REGTYPE),
        ("../x", tarfile.DIRTYPE),
        ("link", tarfile.SYMTYPE),
        ("link", tarfile.LNKTYPE),
        ("pipe", tarfile.FIFOTYPE),
        ("device", tarfile.CHRTYPE),
    ],
)
def test_what_is_no_file_below_the_checkpoint_is_refused(tmp_path: Path, name: str, kind: bytes) -> None:
    """Whoever sends it, and nothing is written elsewhere."""
    store = CheckpointStore(tmp_path / "c")
    store.write(0, _archive(name, kind))

    with pytest.raises(CheckpointError, match="not a path of a file in a checkpoint"):
        store.finish()

    assert store.last() == 0
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize("data", [b"", b"no archive" * 100, _archive("a", tarfile.REGTYPE)[:300]])
def test_a_broken_archive_is_no_commit(tmp_path: Path, data: bytes) -> None:
    store = CheckpointStore(tmp_path / "c")
    store.write(0, data)
    with pytest.raises(CheckpointError, match="committed before is still there"):
        store.finish()
    assert store.last() == 0


def test_an_archive_of_many_chunks_comes_back(tmp_path: Path) -> None:
    """As it travels between a node and the client; a hard link becomes a file."""
    store = CheckpointStore(tmp_path / "c")
    state = checkpoint(tmp_path / "c")
    (state / "large").write_bytes(os.urandom(CHUNK + 5))
    os.link(state / "large", state / "same")
    kept = _content(state)
    state.commit()

    chunks: list[bytes] = []
    while data := store.read(1, len(chunks) * CHUNK):
        chunks.append(data)
    assert len(chunks) > 1
    for number, chunk in enumerate(chunks):
        store.write(number * CHUNK, chunk)
    assert store.finish() == 2

    assert _content(checkpoint(tmp_path / "c")) == kept
