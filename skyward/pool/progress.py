"""What a pool says while it starts and stops: a live line on a terminal, plain lines elsewhere; and its timing."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.status import Status


class Progress:
    """Reports the stages of a pool.

    Attributes:
        stages: seconds spent in each stage, by its name.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._live = not quiet and sys.stderr.isatty()
        self._status: Status | None = None
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
            if self._status is not None:
                self._status.stop()
                self._status = None

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
