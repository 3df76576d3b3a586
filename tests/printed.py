"""What the client prints in a test, whichever thread prints it: kept whole, read by position.

pytest's own capture empties a file in two steps while the pool's threads go on writing to it, and loses a line now and
then.
"""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Output(NamedTuple):
    """Text of both streams."""

    out: str
    err: str


class Printed:
    """Stands in for both streams while a test function runs."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._streams = (_Stream(self._changed), _Stream(self._changed))
        self._read = (0, 0)

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Take what is printed from here on; at the end all of it is shown to pytest, for its report."""
        before = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = self._streams
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before
            for stream, real in zip(self._streams, before, strict=True):
                real.write(stream.text())

    def read(self) -> Output:
        """What came since the last reading."""
        with self._changed:
            found = self._since()
            self._read = (self._read[0] + len(found.out), self._read[1] + len(found.err))
        return found

    def until(self, *, out: str = "", err: str = "", within_s: float = 60) -> Output:
        """Wait until these words are there; what came since the last reading, which stays to be read."""
        with self._changed:
            came = self._changed.wait_for(lambda: out in self._since().out and err in self._since().err, within_s)
            found = self._since()
        assert came, (
            f"{out!r} and {err!r} were not printed in {within_s} s, but: {found.out[-2000:]}{found.err[-2000:]}"
        )
        return found

    def _since(self) -> Output:
        out, err = (stream.text()[read:] for stream, read in zip(self._streams, self._read, strict=True))
        return Output(out, err)


class _Stream(io.TextIOBase):
    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self._pieces: list[str] = []

    def write(self, text: str) -> int:
        with self._changed:
            self._pieces.append(text)
            self._changed.notify_all()
        return len(text)

    def writable(self) -> bool:
        return True

    def text(self) -> str:
        with self._changed:
            self._pieces = ["".join(self._pieces)]
            return self._pieces[0]
