"""Progress display: the timed stages of a pool's start and stop, and the number and rate of ended calls.

It is live on a terminal and in a notebook, and printed as lines elsewhere.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from skyward._pool.display import rows_of, screen
from skyward._pool.signals import LISTEN_S, check_thread
from skyward._pool.task import Task
from skyward.system import Empty, SimpleQueue, time

if TYPE_CHECKING:
    from skyward.builder.docker.live import LiveLayers
    from skyward.builder.events import Event
FIRST_S = 1.0  # operations shorter than this show nothing
LOOK_S = 0.25
_FIRST_LINE_S, _NEXT_LINE_S = 3.0, 5.0  # without a terminal


class Progress:
    """Reports the stages of a pool.

    Attributes:
        stages: seconds spent in each stage, by its name.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._rows: Any = None  # display of the stage's row, while there is one
        self._layers: LiveLayers | None = None
        self.stages: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str, doing: str) -> Iterator[None]:
        """Time a stage and show `doing` while it runs."""
        start = time.perf_counter()
        self._begin(doing)
        try:
            yield
        finally:
            self.stages[name] = time.perf_counter() - start
            self._end()

    def report(self, event: Event) -> None:
        """Show an event of a build: in a live list of its layers on a terminal, as a line elsewhere.

        In a notebook, the row of the stage shows the output of layers, and lines report finished layers.
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
        """Show progress: as the live row on a terminal or in a notebook, as a separate line elsewhere."""
        if self._rows is not None:
            self._rows.set(self, line)
        else:
            self.tell(line)

    def tell(self, line: str) -> None:
        """Print a permanent line."""
        if not self._quiet:
            _print(line)

    def _begin(self, doing: str) -> None:
        self._rows = None if self._quiet else rows_of(sys.stderr)
        if self._rows is not None:
            self._rows.set(self, f"{doing} ...")

    def _end(self) -> None:
        if self._rows is not None:
            self._rows.set(self, "")
            self._rows = None
        if self._layers is not None:
            self._layers.__exit__(None, None, None)
            self._layers = None


class Counting:
    """Shows the progress of calls during a `with` block, driven by the waiting thread, without work per call.

    On a terminal and in a notebook it is a row that is removed at the end; elsewhere a line every few seconds.

    Args:
        tasks: the calls.
        quiet: show nothing.
        total: number of calls, if a task may stand for several; None if each is one call.

    Attributes:
        ended, failed: numbers of calls, for the last line.
    """

    def __init__(self, tasks: Sequence[Task], *, quiet: bool, total: int | None = None) -> None:
        self._total, self._quiet = total or len(tasks), quiet or len(tasks) < 2
        self._name = ""
        if not self._quiet:
            first = tasks[0].function
            self._name = f"{first.name}()" if all(task.function is first for task in (tasks[-1], tasks[1])) else "calls"
        self._began = time.monotonic()
        self._next_line = self._began + _FIRST_LINE_S
        self._due = self._began + FIRST_S
        self._told = -1
        self._rows: Any = None  # display of its row, while there is one
        self.ended = self.failed = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _error: object, _trace: object) -> None:
        taken = seconds(time.monotonic() - self._began)
        if self._rows is not None:
            self._rows.set(self, "")
        elif self._told >= 0 and self.failed:
            _print(f"{self._name}: {self._counts()}, in {taken}")
        elif self._told >= 0 and kind is None:
            _print(f"{self._name}: all {self._total} calls in {taken}")

    @property
    def wait_s(self) -> float:
        """Seconds until `look` may show something, or a signal may have to be handled."""
        return LISTEN_S if self._quiet else min(LISTEN_S, max(0.01, self._due - time.monotonic()))

    def take(self, arrived: SimpleQueue[Task], ended: int | None = None) -> Task:
        """Wait for the next task that has ended and return it, showing progress meanwhile.

        Args:
            arrived: the queue of tasks that have ended.
            ended: number of calls that have ended; None for the number of tasks taken so far.
        """
        check_thread()
        while True:
            self.look(self.ended if ended is None else ended, self.failed)
            try:
                task = arrived.get(timeout=self.wait_s)
            except Empty:
                continue  # time to look again
            self.ended += 1
            self.failed += task.failed
            return task

    def look(self, done: int, failed: int) -> None:
        """Show how many calls have ended, and failed, if an update is due."""
        self.ended, self.failed = done, failed
        now = time.monotonic()
        if self._quiet or now < self._due:
            return
        self._due = now + LOOK_S
        self._rows = self._rows or rows_of(sys.stderr)
        if self._rows is not None:
            self._rows.set(self, self._text(now))
        elif now >= self._next_line and done != self._told:
            self._next_line, self._told = now + _NEXT_LINE_S, done
            _print(self._text(now))

    def _counts(self) -> str:
        return f"{self.ended} of {self._total} calls" + f", {self.failed} failed" * bool(self.failed)

    def _text(self, now: float) -> str:
        text = f"{self._name}: {self._counts()}"
        if not self.ended:
            return text
        rate = self.ended / (now - self._began)
        return f"{text}, {rate:.3g}/s, {seconds((self._total - self.ended) / rate)} left"


def _print(line: str) -> None:
    try:
        screen.write(sys.stderr, f"skyward: {line}\n")
    except (OSError, ValueError):
        pass  # standard error is closed, such as a terminal after SIGHUP


def seconds(value: float) -> str:
    """Format a duration: "8.2 s", "3 min 20 s", "2 h 05 min"."""
    if value < 60:
        return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min"
