"""The live list of a build's layers on a terminal; the only part of building that needs rich."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from skyward.builder.events import Event
from skyward.image import Layer

# colours, cursor movements and other control characters
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x1f\x7f-\x9f]")
_MARKS = {"cached": Text("=", "dim"), "done": Text("✓", "green"), "failed": Text("✗", "bold red")}
_CHROME = 4  # lines of the terminal that the list leaves free


@dataclass(slots=True)
class _Row:
    layer: Layer
    since: float
    state: str = "start"
    line: str = ""
    seconds: float | None = None


class LiveLayers:
    """A live list of layers in a `with` block, from the first one on; call it with each event.

    The list stays on screen at the end.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._rows: dict[Layer, _Row] = {}
        self._spinner = Spinner("dots")
        self._live = Live(self, console=self._console, refresh_per_second=8)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._live.stop()

    def __call__(self, event: Event) -> None:
        """Show an event: notes above the list, everything else in its layer's row."""
        layer = event.layer
        if layer is None:
            self._console.print(Text(f"skyward: {_CONTROL.sub('', event.line)}"))
            return
        if not self._live.is_started:
            self._live.start()
        row = self._rows.setdefault(layer, _Row(layer, time.monotonic()))
        if event.kind == "output":
            row.line = _CONTROL.sub("", event.line) or row.line
        else:
            row.state, row.seconds = event.kind, event.seconds

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = list(self._rows.values())
        room = max(3, (options.height or console.height) - _CHROME)
        running = sum(bool(row.line) for row in rows if row.state == "start")
        shown = rows[-max(1, room - running) :]
        table = Table.grid(padding=(0, 1))
        table.add_column(width=1)
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        table.add_column(justify="right", no_wrap=True)
        table.expand = True
        if len(shown) < len(rows):
            table.add_row("", Text(f"{len(rows) - len(shown)} layers before", "dim"), "")
        for row in shown:
            mark = _MARKS.get(row.state, self._spinner)
            table.add_row(mark, Text.assemble(row.layer.name, (f"  {row.layer.origin}", "dim")), _figures(row))
            if row.state == "start" and row.line:
                table.add_row("", Text(row.line, "dim"), "")
        yield table


def _figures(row: _Row) -> Text:
    if row.state == "start":
        return Text(f"{time.monotonic() - row.since:.0f} s")
    return Text(row.state if row.seconds is None else f"{row.seconds:.1f} s")
