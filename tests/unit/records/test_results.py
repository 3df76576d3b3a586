"""Journals of results: what was kept is found whatever happened to the writer, and nothing else is read."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from skyward.errors import ConfigError, JournalError
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
        numbers = sorted(int(key.arguments) for key in journal.keys if journal.load(key) is not None)
        for number in numbers:
            assert [bytes(part) for part in journal.load(_key(number)) or ()] == _parts(number)
        return numbers


def test_what_was_kept_is_found_by_the_next(tmp_path: Path) -> None:
    path = _kept(tmp_path / "j", range(5))
    _kept(path, range(5, 8))

    assert _found(path) == list(range(8))
    assert path.stat().st_mode & 0o777 == 0o600
    with ResultJournal(path) as journal:
        assert journal.load(_key(0, occurrence=1)) is None  # of a second call with the same arguments
        assert journal.load(_key(9)) is None


def test_a_damaged_result_is_missing_until_it_is_kept_anew(tmp_path: Path) -> None:
    path = _kept(tmp_path / "j", range(6))
    whole = path.read_bytes()
    place = whole.index(bytes([3]) * 1000)
    path.write_bytes(whole[:place] + b"x" + whole[place + 1 :])

    assert _found(path) == [0, 1, 2, 4, 5]
    _kept(path, range(3, 4))
    assert _found(path) == list(range(6))


def test_a_file_that_was_cut_has_the_results_before_it(tmp_path: Path) -> None:
    """Whole results stay, the rest goes, and what is kept after that is found."""
    whole = _kept(tmp_path / "j", range(4)).read_bytes()
    ends = [len(_kept(tmp_path / f"{n}", range(n)).read_bytes()) for n in range(5)]
    path = tmp_path / "cut"
    for size in [*range(0, 90, 7), *range(90, len(whole), 397), *(end + by for end in ends[:4] for by in (-1, 0, 1))]:
        path.write_bytes(whole[:size])
        path.chmod(0o600)
        left = max((n for n in range(5) if ends[n] <= size), default=0)

        with ResultJournal(path) as journal:
            assert len(journal) == left
            journal.keep(_key(9), _parts(9))

        assert _found(path) == [*range(left), 9]


def test_a_file_with_a_damaged_line_is_refused(tmp_path: Path) -> None:
    """With the way to keep what comes before; nothing in it is used or removed."""
    path = _kept(tmp_path / "j", range(6))
    whole = path.read_bytes()
    place = whole.index(b'"arguments":"3"')
    path.write_bytes(whole[:place] + b"x" + whole[place + 1 :])

    with pytest.raises(JournalError, match="is damaged after 3 results") as caught:
        ResultJournal(path)
    assert path.stat().st_size == len(whole)
    subprocess.run(str(caught.value).partition("alone: ")[2], shell=True, check=True)
    assert _found(path) == [0, 1, 2]


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
    path = _kept(tmp_path / "j", range(1))
    with ResultJournal(path) as journal:
        with pytest.raises(ConfigError, match="is used by another map"):
            ResultJournal(path)
        journal.keep(_key(1), _parts(1))
    assert _found(path) == [0, 1]


@pytest.mark.parametrize("mode", [0o640, 0o602, 0o644])
def test_a_file_that_others_may_use_is_not_read(tmp_path: Path, mode: int) -> None:
    path = _kept(tmp_path / "j", range(1))
    path.chmod(mode)

    with pytest.raises(ConfigError, match=f"has the mode {mode:o}.*chmod 600"):
        ResultJournal(path)
