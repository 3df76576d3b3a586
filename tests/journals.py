"""Records of runs as commands read them, for tests that have their directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from skyward.records import journal
from skyward.records.journal import Entry
from skyward.records.run import RunFacts


def read(folder: Path, position: int = 0) -> Iterator[Entry]:
    """The entries of a journal in a directory, from a position on."""
    return journal.entries(folder, position)


def facts(folder: Path) -> RunFacts:
    """What the record of a run says."""
    found = RunFacts.of(folder)
    assert found is not None
    return found


def end(folder: Path) -> tuple[int | None, str | None]:
    """The status and the reason of a run that has ended."""
    found = facts(folder).end
    assert found is not None
    return found["status"], found["reason"]
