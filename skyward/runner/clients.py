"""One authenticated client of an agent: a queue of bounded size, so that a slow reader blocks nothing else."""

from __future__ import annotations

from collections import deque

from skyward.errors import WireError
from skyward.system import threading, time
from skyward.wire.frames import Connection, Frame
from skyward.wire.messages import STDERR, Kind

_QUEUE_BYTES = 1024 * 1024  # of output that waits; beyond it the oldest is dropped
_LAST_WORDS_S = 0.5  # how long the end of a node waits for a client to take what is left


class Client:
    """Sends frames in order from a thread of its own. Reports are never dropped, only output is.

    Attributes:
        connection: for the thread that receives.
        heard: monotonic time of the client's last message.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.heard = time.monotonic()
        self._queue: deque[Frame] = deque()
        self._output_bytes = 0
        self._dropped: dict[int, int] = {}  # worker -> lines
        self._changed = threading.Condition()
        self._idle = True
        self._closed = False

    def post(self, frame: Frame) -> None:
        """Queue a frame; never blocks."""
        with self._changed:
            self._queue.append(frame)
            if frame.kind == Kind.WORKER_OUTPUT:
                self._output_bytes += len(frame.head)
                while self._output_bytes > _QUEUE_BYTES:
                    self._drop_oldest()
            self._changed.notify_all()

    def send(self) -> None:
        """Send what is queued until closed (a thread of its own)."""
        try:
            while frames := self._take():
                self.connection.send(*frames)
        except WireError:
            self.close()  # the receiving thread sees the same end

    def close(self, last_words_s: float = 0.0) -> None:
        """Close the connection, after at most `last_words_s` for what is queued."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or (self._idle and not self._queue), last_words_s)
            self._closed = True
            self._changed.notify_all()
        self.connection.close()

    def say_goodbye(self) -> None:
        """Close, but let the client take what is queued if it does so at once."""
        self.close(_LAST_WORDS_S)

    def _take(self) -> list[Frame]:
        """Block for frames; none when closed."""
        with self._changed:
            self._idle = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._queue or self._closed)
            if self._closed:
                return []
            frames = [_notice(worker, lines) for worker, lines in self._dropped.items()] + list(self._queue)
            self._queue.clear()
            self._dropped.clear()
            self._output_bytes = 0
            self._idle = False
            return frames

    def _drop_oldest(self) -> None:
        for index, frame in enumerate(self._queue):
            if frame.kind == Kind.WORKER_OUTPUT:
                del self._queue[index]
                self._output_bytes -= len(frame.head)
                self._dropped[frame.id] = self._dropped.get(frame.id, 0) + (bytes(frame.head).count(b"\n") or 1)
                return


def _notice(worker: int, lines: int) -> Frame:
    return Frame(Kind.WORKER_OUTPUT, worker, bytes((STDERR,)) + f"… {lines} lines dropped\n".encode())
