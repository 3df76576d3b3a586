"""Journals of results: what was kept is found whatever happened to the writer, and nothing else is read."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from skyward.errors import ConfigError, JournalError
from skyward.records import results
from skyward.records.results import ResultJournal, ResultKey


def _key(number: int, occurrence: int = 0) -> ResultKey:
    return ResultKey(function="f", code="c", image="i", arguments=str(number), occurrence=occurrence)


def _parts(number: int) -> list[bytes]:
    return [b"head %d" % number, bytes([number]) * (1000 * number), b""]


def _kept(path: Path, numbers: range) -> Path:
    with ResultJournal(path) as journal:
        for number in numbers:
            journal.keep(_key(number), _parts(number))
    return path


def _found(path: Path) -> list[int]:
    """The results that are there, each of which is as it was kept."""
    with ResultJournal(path) as journal:
        numbers = sorted(int(key.arguments) for key in journal.keys)
        for number in numbers:
            assert [bytes(part) for part in journal.load(_key(number)) or ()] == _parts(number)
        return numbers


def test_what_was_kept_is_found_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "_CHUNK", 700)
    path = _kept(tmp_path / "j", range(5))
    _kept(path, range(5, 8))

    assert _found(path) == list(range(8))
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]
    with ResultJournal(path) as journal:
        assert journal.load(_key(0, occurrence=1)) is None  # of a second call with the same arguments
        assert journal.load(_key(9)) is None


def test_a_killed_writer_loses_nothing_that_was_kept(tmp_path: Path) -> None:
    path, (reader, writer) = tmp_path / "j", os.pipe()
    if (child := os.fork()) == 0:
        journal = ResultJournal(path)
        for number in range(10**6):
            journal.keep(_key(number), [b"head", b"x" * 5000])
            os.write(writer, b"%d\n" % number)
    os.close(writer)
    with open(reader, "rb") as told:
        last = [int(told.readline()) for _ in range(200)][-1]
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        last = max([last, *(int(line) for line in told.read().splitlines() if line)])

    with ResultJournal(path) as journal:
        assert len(journal) in (last + 1, last + 2)


def test_a_second_user_of_the_file_is_refused(tmp_path: Path) -> None:
    """In another process and in this one, more than once."""
    path = _kept(tmp_path / "j", range(1))
    with ResultJournal(path) as journal:
        for _ in range(2):
            with pytest.raises(ConfigError, match="is used by another map"):
                ResultJournal(path)
            if (child := os.fork()) == 0:
                try:
                    ResultJournal(path)
                except ConfigError:
                    os._exit(7)
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        journal.keep(_key(1), _parts(1))
    assert _found(path) == [0, 1]


@pytest.mark.parametrize("mode", [0o640, 0o602, 0o644])
def test_a_file_that_others_may_use_is_not_read(tmp_path: Path, mode: int) -> None:
    path = _kept(tmp_path / "j", range(1))
    path.chmod(mode)

    with pytest.raises(ConfigError, match=f"has the mode {mode:o}.*chmod 600"):
        ResultJournal(path)


def test_what_is_no_journal_is_refused_and_stays(tmp_path: Path) -> None:
    """A folder, another program's file, a damaged journal."""
    path = _kept(tmp_path / "j", range(1, 60))
    data = path.read_bytes()
    for found, kind in (
        (b"skyward results 2\nmore", ConfigError),
        (data[:68] + b"else" + data[72:], ConfigError),
        (data[:4096] + b"x" * 40000 + data[44096:], JournalError),
    ):
        path.write_bytes(found)
        with pytest.raises(kind), ResultJournal(path) as journal:
            journal.load(_key(3))
        assert kind is JournalError or path.read_bytes() == found
    with pytest.raises(ConfigError, match="must be a file"):
        ResultJournal(tmp_path)
