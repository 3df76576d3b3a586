"""What a node's first process prints: the announcement that it is ready, and the last lines when it ends instead."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Iterable

from skyward.errors import NodeStartError, SkywardError
from skyward.providers.base import ANNOUNCEMENT, Announcement, Exit, parse_announcement
from skyward.system import threading

_LINES = 40
_LINE_CHARS = 2000
_UNFINISHED_BYTES = 64 * 1024  # of a line without an end


class NodeOutput:
    """Reads what a node prints until it ends, from a thread of its own.

    Args:
        chunks: the output; iterated over until it ends, because a node that nobody reads blocks.
        name: name of the node, for the thread.
    """

    def __init__(self, chunks: Iterable[bytes], name: str) -> None:
        self._news = threading.Condition()
        self._announcement: Announcement | None = None
        self._failure: SkywardError | None = None
        self._ended = False
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._thread = threading.Thread(target=self._read, args=(chunks,), name=f"{name}-output", daemon=True)
        self._thread.start()

    def wait_announcement(self, timeout_s: float) -> Announcement | None:
        """The announcement; None if the output ended without one or nothing came in time.

        Raises:
            SkywardError: the output cannot be read, or the announcement is not of this protocol.
        """
        with self._news:
            self._news.wait_for(lambda: self._announcement or self._failure or self._ended, timeout_s)
            if self._failure:
                raise self._failure
            return self._announcement

    @property
    def ended(self) -> bool:
        """Whether there will be no more."""
        return self._ended

    @property
    def tail(self) -> str:
        """The last lines that were not the announcement."""
        with self._news:
            return "\n".join(self._lines)

    def join(self, timeout_s: float) -> None:
        """Wait until the last byte is read."""
        self._thread.join(timeout_s)

    def _read(self, chunks: Iterable[bytes]) -> None:
        failure: SkywardError | None = None
        rest = b""
        try:
            for chunk in chunks:
                *lines, rest = (rest + chunk).split(b"\n")
                rest = rest[-_UNFINISHED_BYTES:]
                self._take(lines)
            self._take([rest] if rest else [])
        except SkywardError as error:
            failure = error
        with self._news:
            self._ended, self._failure = True, failure
            self._news.notify_all()

    def _take(self, lines: list[bytes]) -> None:
        for line in lines:
            text = line.decode(errors="replace").rstrip("\r")
            # the other stream may have left half a line before it
            before, mark, after = text.partition(ANNOUNCEMENT)
            announcement = parse_announcement(mark + after) if mark else None
            with self._news:
                if before:
                    self._lines.append(before[-_LINE_CHARS:])
                if announcement:
                    self._announcement = announcement
                    self._news.notify_all()


def node_exit(code: int | None, *, oom: bool = False, log: str = "") -> Exit:
    """How a node ended, from its exit status as a shell or an engine gives it: more than 128 for signals."""
    number = code - 128 if code is not None and code > 128 else None
    names = {s.value: s.name for s in signal.Signals}
    if oom:
        text = "was killed by the kernel because it used more memory than it may (out of memory)"
    elif number in names:
        text = f"was ended by signal {number} ({names[number]})"
    else:
        number, text = None, f"ended with exit status {code}"
    return Exit(code=code, signal=number, oom=oom, text=text, log=log)


def start_failure(who: str, ended: Exit | None, timeout_s: float, log: str) -> NodeStartError:
    """Why a node is not ready: it ended as `ended` says, or is silent; with its last lines."""
    what = f"{ended.text} before it was ready" if ended else f"was not ready within {timeout_s:g} s and still runs"
    return NodeStartError(f"{who} {what}. " + (f"Its last lines:\n{log}" if log else "It printed nothing."))
