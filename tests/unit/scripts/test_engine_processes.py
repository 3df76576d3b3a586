"""Recognising processes and mounts as this clone's own, and the paths they lie at."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.engine import mounts, processes
from scripts.engine.console import SetupError, run
from scripts.engine.place import LONGEST_SOCKET_PATH, Place


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["dockerd", "--data-root=/a/.engine/docker"], True),
        (["docker-registry", "serve", "/a/.engine/registry.yml"], True),
        (["ls", "/a/.engine"], True),
        (["dockerd", "--data-root=/b/a/.engine/docker"], False),
        (["dockerd", "--data-root=/a/.engine2/docker"], False),
        ([], False),
    ],
)
def test_a_process_is_ours_by_an_argument_below_the_place(argv: list[str], expected: bool) -> None:
    """A path that merely contains ours, such as another clone's, does not count."""
    assert expected is processes.names(argv, Path("/a/.engine"))


def test_a_stale_pid_file_names_nobody(tmp_path: Path) -> None:
    """A pid that was reused by a stranger, a dead one and a broken file are none of ours."""
    file = tmp_path / "pid"
    assert processes.ours(file, tmp_path) is None
    for text in (str(os.getpid()), "999999999", "", "x"):
        file.write_text(text)
        assert processes.ours(file, tmp_path) is None


def test_stop_kills_what_does_not_listen(tmp_path: Path) -> None:
    """A process that ignores the request to end is killed when the patience is over."""
    deaf = "import signal, sys; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", deaf, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert [process.pid] == processes.naming(tmp_path)

        processes.stop(process.pid, patience_s=0.1)

        assert process.wait() == -9
    assert not processes.alive(process.pid)


def test_mounts_below_a_folder() -> None:
    """Points at or below the folder, outer ones first; blanks are unescaped and similar names left out."""
    table = "".join(
        f"{number} 1 0:1 / {point} rw - ext4 /dev/x rw\n"
        for number, point in enumerate(["/", "/a/b", "/a/b/c\\040d", "/a/bc", "/x"])
    )
    assert mounts.below([Path("/a/b")], table) == ["/a/b", "/a/b/c d"]


def test_sockets_leave_a_clone_with_a_long_path() -> None:
    """Every socket path stays within the kernel's limit; two long clones do not share a folder."""
    short, long, other = Place(Path("/home/ann/skyward")), Place(Path("/" + "x" * 90)), Place(Path("/" + "y" * 90))

    assert short.root / "run" == short.run
    assert long.run != other.run
    for place in (short, long, other):
        assert len(f"{place.run}/containerd/containerd-debug.sock") <= LONGEST_SOCKET_PATH


def test_a_failed_command_shows_its_own_last_words(tmp_path: Path) -> None:
    """The message has the status and the end of this command's output, not an earlier one's."""
    log = tmp_path / "logs" / "x.log"
    run(["sh", "-c", "echo earlier"], log=log)

    with pytest.raises(SetupError, match=r"(?s)status 3.*it broke") as caught:
        run(["sh", "-c", "echo it broke; exit 3"], log=log)
    assert "earlier" not in str(caught.value)

    with pytest.raises(SetupError, match="could not be started"):
        run(["/no/such/program"], log=log)
