"""Shows how far files have been fetched: a bar on a terminal, else a line every few seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from skyward.builder.events import readable
from skyward.cli.runs import Printer
from skyward.runs.fetch import Progress

_QUIET_S = 1.0  # what is done by then is not worth a word
_LINE_S = 5.0


@contextmanager
def fetching(what: str, total: int, printer: Printer) -> Iterator[Progress]:
    """A listener for bytes that arrive, of so many in all."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
        console = Console(file=sys.stderr, highlight=False)
        with Bar(*columns, TransferSpeedColumn(), TimeRemainingColumn(), console=console, transient=True) as bar:
            task = bar.add_task(f"skyward: {what}", total=total)
            yield lambda count: bar.advance(task, count)
        return
    yield _Lines(what, total, printer)


class _Lines:
    def __init__(self, what: str, total: int, printer: Printer) -> None:
        self._what, self._total, self._printer = what, total, printer
        self._done = 0
        self._next = time.monotonic() + _QUIET_S

    def __call__(self, count: int) -> None:
        self._done += count
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _LINE_S
            self._printer.note(f"{self._what}: {readable(self._done)} of {readable(self._total)}")
