"""The events of a build, as values that listeners show live, as lines, or as JSON; and warnings, each logged once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from skyward.image import Layer

Kind = Literal["note", "waited", "start", "output", "cached", "done", "failed", "size"]
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened.

    Attributes:
        kind: "note" is a sentence on the image as a whole, "waited" the one that another process has built it
            meanwhile; the others are about one layer. Its step runs ("start"), has printed a line ("output"), was
            found made ("cached"), is made ("done"), has failed ("failed"); and once the
            image is there, how large it is ("size").
        line: the sentence, or the line of output.
        layer: the layer it is about; None for a note.
        seconds: how long the step took, where it is done.
        size: bytes on the engine's disk, where it is known.
        by: who was waited for, as words for people.
    """

    kind: Kind
    line: str = ""
    layer: Layer | None = None
    seconds: float | None = None
    size: int | None = None
    by: str = ""

    def __str__(self) -> str:
        """As a line for people."""
        if self.layer is None or self.kind in ("note", "output"):
            return self.line
        if self.kind == "start":
            return f"{self.layer.name} ... ({self.layer.origin})"
        if self.kind == "size":
            return f"{self.layer.name}: {readable(self.size or 0)}"
        return f"{self.layer.name}: {f'{self.seconds:.1f} s' if self.kind == 'done' else self.kind}"


Report = Callable[[Event], None]  # takes what happens, as it happens


def note(sentence: str) -> Event:
    """A sentence on the image as a whole."""
    return Event(kind="note", line=sentence)


def as_lines(say: Callable[[str], None]) -> Report:
    """A listener that says each event as one line, and leaves out what steps print and how large layers are."""

    def report(event: Event) -> None:
        if event.kind not in ("output", "size"):
            say(str(event))

    return report


def share(done: int, total: int) -> str:
    """Progress as text, at most the total, which may be an estimate."""
    return f"{readable(min(max(0, done), total))} of {readable(total)}"


def readable(size: int) -> str:
    """A number of bytes for people, in decimal units as docker shows them."""
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
