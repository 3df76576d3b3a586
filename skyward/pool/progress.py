"""What a pool says while it starts and stops: live on a terminal, plain lines elsewhere; and its timing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from skyward.system import time

if TYPE_CHECKING:
    from rich.status import Status

    from skyward.build.events import Event
    from skyward.build.live import LiveLayers


class Progress:
    """Reports the stages of a pool.

    Attributes:
        stages: seconds spent in each stage, by its name.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._live = not quiet and sys.stderr.isatty()
        self._status: Status | None = None
        self._layers: LiveLayers | None = None
        self.stages: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str, doing: str) -> Iterator[None]:
        """Time a stage and show what is being done in it."""
        start = time.perf_counter()
        if self._live:
            self._begin(doing)
        try:
            yield
        finally:
            self.stages[name] = time.perf_counter() - start
            self._end()

    def report(self, event: Event) -> None:
        """Show what a build tells: as a live list of its layers on a terminal, as lines elsewhere."""
        if self._live and self._layers is None and event.layer is not None:
            from skyward.build.live import LiveLayers

            self._end()
            self._layers = LiveLayers()
            self._layers.__enter__()
        if self._layers is not None:
            self._layers(event)
        else:
            from skyward.build.events import as_lines

            as_lines(self.tell)(event)

    def say(self, line: str) -> None:
        """Show a line of progress: as the live line on a terminal, as a line of its own elsewhere."""
        if self._quiet:
            return
        if self._status is not None:
            self._status.update(line)
        else:
            sys.stderr.write(f"skyward: {line}\n")
            sys.stderr.flush()

    def tell(self, line: str) -> None:
        """Print a line that stays."""
        if not self._quiet:
            if self._status is not None:
                self._status.console.print(f"skyward: {line}", highlight=False, markup=False)
            else:
                self.say(line)

    def _begin(self, doing: str) -> None:
        from rich.console import Console
        from rich.status import Status

        self._status = Status(doing, console=Console(stderr=True))
        self._status.start()

    def _end(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None
        if self._layers is not None:
            self._layers.__exit__(None, None, None)
            self._layers = None
