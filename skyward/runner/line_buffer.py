"""Output of a worker process below Python: split into whole lines, its tail kept for reports of its exit."""

from __future__ import annotations

import codecs

PARTIAL_S = 0.1  # how long the start of a line waits for its rest
_PARTIAL_CHARS = 64 * 1024  # a longer line is passed on in pieces
_RING_BYTES = 64 * 1024
_TAIL_BYTES = 8 * 1024
_TAIL_LINES = 20


class Ring:
    """The last 64 KiB of what was written."""

    def __init__(self) -> None:
        self._data = bytearray()

    def add(self, data: bytes) -> None:
        """Append, and forget what is too old."""
        self._data += data
        del self._data[:-_RING_BYTES]

    def tail(self) -> str:
        """The last 20 lines, at most 8 KiB."""
        lines = bytes(self._data[-_TAIL_BYTES:]).splitlines(keepends=True)
        return b"".join(lines[-_TAIL_LINES:]).decode("utf-8", "replace")


class Lines:
    """Makes text of a stream of bytes: whole lines where possible, never a part of a character."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._partial = ""
        self._since = 0.0

    def feed(self, data: bytes, now: float) -> str:
        """Take bytes in; returns the text that is complete."""
        had = bool(self._partial)
        text = self._partial + self._decoder.decode(data)
        cut = len(text) if len(text) - text.rfind("\n") > _PARTIAL_CHARS else text.rfind("\n") + 1
        self._partial = text[cut:]
        if cut or not had:
            self._since = now
        return text[:cut]

    def due(self) -> float | None:
        """When the start of a line has waited long enough; None if there is none."""
        return self._since + PARTIAL_S if self._partial else None

    def flush(self) -> str:
        """The start of a line, complete or not."""
        text, self._partial = self._partial, ""
        return text

    def finish(self) -> str:
        """All that is left, the bytes of a character that was cut off included."""
        return self.flush() + self._decoder.decode(b"", final=True)
