"""Journals: whole entries in order whatever happens to their writer, positions that hold, a bound that is kept."""

from __future__ import annotations

import threading
from pathlib import Path

from skyward.records import journal
from skyward.records.journal import JournalWriter
from tests import journals


def _numbers(folder: Path, position: int = 0) -> list[int]:
    return [entry.fields["n"] for entry in journals.read(folder, position)]


def _write(folder: Path, numbers: range, *, limit: int | None = None) -> None:
    writer = JournalWriter(folder, limit=limit)
    for n in numbers:
        writer.append({"n": n, "text": "ä" * 50})
    writer.close()


def test_entries_come_in_order_and_a_position_goes_on_after_its_entry(tmp_path: Path) -> None:
    _write(tmp_path, range(10))
    third = list(journals.read(tmp_path))[2]

    _write(tmp_path, range(10, 12))

    assert _numbers(tmp_path) == list(range(12))
    assert _numbers(tmp_path, third.end) == list(range(3, 12))


def test_a_writer_that_was_killed_loses_the_entry_it_was_writing_and_no_other(tmp_path: Path) -> None:
    _write(tmp_path, range(3))
    (_, path) = journal.segments(tmp_path)[-1]
    with path.open("ab") as file:
        file.write(b'{"n":3,"te')
    before = list(journals.read(tmp_path))

    _write(tmp_path, range(4, 6))

    assert [entry.fields["n"] for entry in before] == [0, 1, 2]
    assert _numbers(tmp_path, before[-1].end) == [4, 5]


def test_a_bounded_journal_keeps_the_newest_and_says_how_much_is_missing(tmp_path: Path) -> None:
    _write(tmp_path, range(1000), limit=20_000)

    entries = list(journals.read(tmp_path))
    size = sum(path.stat().st_size for _, path in journal.segments(tmp_path))

    assert size <= 20_000
    assert [entry.fields["n"] for entry in entries] == list(range(1000 - len(entries), 1000))
    assert entries[0].skipped > 0
    assert not any(entry.skipped for entry in entries[1:])


def test_many_threads_write_whole_entries(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path)

    def write(first: int) -> None:
        for n in range(first, first + 500):
            writer.append({"n": n, "text": "x" * 3000})

    threads = [threading.Thread(target=write, args=(1000 * k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(journal.segments(tmp_path)) > 1
    assert sorted(_numbers(tmp_path)) == sorted(n for k in range(4) for n in range(1000 * k, 1000 * k + 500))
