"""Reports the start and stop of a pool, live on a terminal and in a notebook, as lines elsewhere; and times them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from skyward._pool import cells
from skyward._pool.live_rows import screen
from skyward.system import time

if TYPE_CHECKING:
    from skyward.builder.docker.live import LiveLayers
    from skyward.builder.events import Event


class Progress:
    """Reports the stages of a pool.

    Attributes:
        stages: seconds spent in each stage, by its name.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._rows: Any = None  # where the stage has its row, while one is shown
        self._layers: LiveLayers | None = None
        self.stages: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str, doing: str) -> Iterator[None]:
        """Time a stage and show what is being done in it."""
        start = time.perf_counter()
        self._begin(doing)
        try:
            yield
        finally:
            self.stages[name] = time.perf_counter() - start
            self._end()

    def report(self, event: Event) -> None:
        """Show what a build tells: as a live list of its layers on a terminal, as lines elsewhere.

        In a notebook the row of the stage has what a layer prints, and lines the layers that are made.
        """
        if self._rows is screen and event.layer is not None:
            from skyward.builder.docker.live import LiveLayers

            self._end()
            self._layers = LiveLayers()
            self._layers.__enter__()
        if self._layers is not None:
            self._layers(event)
        elif self._rows is not None and event.layer is not None and event.kind in ("start", "output"):
            self.say(f"{event.layer.name}: {event.line}" if event.line else str(event))
        else:
            from skyward.builder.events import as_lines

            as_lines(self.tell)(event)

    def say(self, line: str) -> None:
        """Show a line of progress: as the live line on a terminal or in a notebook, as a line of its own elsewhere."""
        if self._rows is not None:
            self._rows.set(self, [line])
        else:
            self.tell(line)

    def tell(self, line: str) -> None:
        """Print a line that stays."""
        if not self._quiet:
            try:
                screen.write(sys.stderr, f"skyward: {line}\n")
            except (OSError, ValueError):
                pass  # the program's own output is closed, as a terminal is after SIGHUP

    def _begin(self, doing: str) -> None:
        self._rows = None if self._quiet else cells.rows_of(sys.stderr)
        if self._rows is not None:
            self._rows.set(self, [f"{doing} ..."])

    def _end(self) -> None:
        if self._rows is not None:
            self._rows.set(self, ())
            self._rows = None
        if self._layers is not None:
            self._layers.__exit__(None, None, None)
            self._layers = None
