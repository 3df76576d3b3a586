"""The folder that runs share on another machine: what they were sent, what they write, what the next one finds."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from skyward.errors import ConfigError
from skyward.records.run import RunRecord, check_kept
from skyward.runs.driver import PROGRAM_FOLDER, write_launch
from skyward.runs.shared_folder import fill, shared_folder
from tests import journals
from tests.conftest import ROOT

PROGRAM = """
import sys
from pathlib import Path
import beside
journal, absolute = Path("work.journal"), Path(sys.argv[1])
print("found", journal.read_text() if journal.exists() else "nothing", (absolute / "best").exists(), beside.NAME)
journal.write_text(beside.NAME)
(absolute / "best").mkdir(exist_ok=True)
(absolute / "best" / "model").touch()
"""


@pytest.fixture
def record(tmp_path: Path) -> RunRecord:
    """That of a run in a container, with a directory that is not there yet."""
    run = RunRecord(id="a-1", program="p.py", started=0.0, directory=str(tmp_path / "work"), user="me@here")
    return replace(run, container="skyward-run-a-1", arguments=[run.directory])


def write(folder: Path, **texts: str) -> None:
    """Files of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)


def driven(record: RunRecord, folder: Path, **sent: str) -> list[str]:
    """Let a driver run the program; what it printed, and what its record has of what it wrote."""
    write(folder / PROGRAM_FOLDER, p=PROGRAM, **sent)
    write_launch(folder, record, record.words, {})
    words = [sys.executable, "-m", "skyward.runs.driver", str(folder)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == ("started\n", "")
    assert journals.end(folder) == (0, None)
    written = folder / "written"
    told = "".join(each.fields["text"] for each in journals.read(folder / "output"))
    return [told.strip(), *sorted(str(each.relative_to(written)) for each in written.rglob("*") if each.is_file())]


def test_the_next_run_finds_what_a_run_has_written(record: RunRecord, runs: Path) -> None:
    """By a relative and by an absolute path, in another run of the same directory; each record has its own part."""
    folder = shared_folder(record, runs / "a-1")
    folder.mkdir(parents=True)
    Path(record.directory).symlink_to(folder)  # as a mount in a container

    first = driven(record, runs / "a-1", beside="NAME = 'one'")
    second = driven(replace(record, id="a-2"), runs / "a-2", beside="NAME = 'second'")

    assert first == ["found nothing False one", "best/model", "work.journal"]
    assert second[0] == "found one True second"
    assert "work.journal" in second
    assert (runs / "a-2" / "written" / "work.journal").read_text() == "second"
    assert not (runs / "a-2" / PROGRAM_FOLDER).exists()


def test_a_folder_has_what_was_sent_last(tmp_path: Path) -> None:
    """What did not change is left to runs that use it; what is sent no more goes, unless another program has it; what
    a program wrote stays.
    """
    folder, sent = tmp_path / "folder", tmp_path / "sent"
    write(sent, other="other", same="same")
    fill(folder, sent, "other.py")
    write(sent, same="same", changed="first", gone="gone", kept="sent")
    fill(folder, sent, "p.py")
    before = (folder / "same.py").stat().st_ino
    write(folder, own="own", kept="written")
    os.utime(folder / "kept.py", (1, 1))  # a clock of milliseconds may not have moved
    write(sent, changed="later")
    fill(folder, sent, "p.py")

    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        "other.py": "other",
        "same.py": "same",
        "changed.py": "later",
        "own.py": "own",
        "kept.py": "written",
    }
    assert (folder / "same.py").stat().st_ino == before
    (folder / "same.py").unlink()
    (folder / "same.py" / "x").mkdir(parents=True)
    write(sent, same="same")
    with pytest.raises(ConfigError, match="could not be put into"):
        fill(folder, sent, "p.py")


def test_directories_have_folders_of_their_own(record: RunRecord, runs: Path) -> None:
    """Of another user, of another machine, or with the same name elsewhere; not of another program."""
    same = replace(record, id="b-1", program="q.py")
    others = replace(record, user="you@here"), replace(record, user="me@there"), replace(record, directory="/else/work")
    assert shared_folder(same, runs / "b-1") == shared_folder(record, runs / "a-1")
    assert len({shared_folder(each, runs / "x") for each in (record, *others)}) == 4


@pytest.mark.parametrize("container", ["skyward-run-a-1", None])
def test_what_ends_with_a_container_is_refused(
    record: RunRecord, runs: Path, container: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is to be kept lies in the run's directory or home; a process of this machine keeps everything."""
    replace(record, container=container).write(runs / "a-1")
    check_kept(Path("/tmp/x.journal"), "journal=")
    monkeypatch.setenv("SKYWARD_RUN", str(runs / "a-1"))
    monkeypatch.setenv("HOME", str(runs / "home"))

    for kept in (record.directory, f"{record.directory}/a/../b", f"{runs}/home/x"):
        check_kept(Path(kept), "journal=")
    if container:
        with pytest.raises(
            ConfigError, match=r"journal= names /tmp/x\.journal, which would be gone .* below .*/work: "
        ):
            check_kept(Path("/tmp/x.journal"), "journal=")
    else:
        check_kept(Path("/tmp/x.journal"), "journal=")
