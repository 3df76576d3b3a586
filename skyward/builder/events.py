"""The events of a build, as values that listeners show live, as lines, or as JSON; and warnings, each logged once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from skyward.image import Layer

Kind = Literal["note", "start", "output", "cached", "done", "failed"]
_SAY_EVERY_S = 3.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event.

    Attributes:
        kind: "note" is a sentence about the whole image; the others concern one layer: its step is running ("start"),
            has printed a line ("output"), was cached ("cached"), has ended ("done"), or has failed ("failed").
        line: the sentence, or the line of output.
        layer: the layer concerned; None for a note.
        seconds: duration of the step, for "done".
    """

    kind: Kind
    line: str = ""
    layer: Layer | None = None
    seconds: float | None = None

    def __str__(self) -> str:
        """Format the event as a line for users."""
        if self.layer is None or self.kind in ("note", "output"):
            return self.line
        if self.kind == "start":
            return f"{self.layer.name} ... ({self.layer.origin})"
        return f"{self.layer.name}: {f'{self.seconds:.1f} s' if self.kind == 'done' else self.kind}"


Report = Callable[[Event], None]  # called with events as they happen


def note(sentence: str) -> Event:
    """Create an event with a sentence about the whole image."""
    return Event(kind="note", line=sentence)


def as_lines(say: Callable[[str], None]) -> Report:
    """Return a listener that prints each event as one line, except output of steps."""

    def report(event: Event) -> None:
        if event.kind != "output":
            say(str(event))

    return report


def paced(report: Report, about: str) -> Callable[[int, int], None]:
    """Return a function that reports progress, given the bytes done and the total, once in a few seconds."""
    said = time.monotonic()

    def follow(done: int, total: int) -> None:
        nonlocal said
        if total and time.monotonic() - said > _SAY_EVERY_S:
            said = time.monotonic()
            # the total may be an estimate
            report(note(f"{about}: {readable(min(max(0, done), total))} of {readable(total)}"))

    return follow


def readable(size: int) -> str:
    """Format a number of bytes for users, in decimal units as docker does."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"


@lru_cache(maxsize=256)
def warn(sentence: str) -> None:
    """Log a warning, unless this process has logged the same one."""
    _log.warning("%s", sentence)
