"""Journals as commands read them, for tests that have their directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from skyward.records.journal import Entry
from skyward.runs.place import ThisMachine


def read(folder: Path, position: int = 0) -> Iterator[Entry]:
    """The entries of a journal in a directory, from a position on."""
    return ThisMachine(folder.parents[1]).entries(folder.parent.name, folder.name, position)
