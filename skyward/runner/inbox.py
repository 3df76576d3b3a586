"""Reads a worker's socket: in its main thread between calls, in a second thread while a call takes long.

A call that passes from a reading thread to the main thread costs a wake-up more, a third of a round trip where the
two run on different cores (measured: 170 against 100 us, in containers). So the main thread reads for itself. When it
has been busy for `LONG_S` the other thread stands in, so that cancellations, stream credits and the end of the
connection are heard at any time; it hands the socket back with the next message the main thread waits for.
"""

from __future__ import annotations

from collections.abc import Callable

from skyward.errors import WireError
from skyward.system import SimpleQueue, threading, time
from skyward.wire.frames import Connection, Frame

LONG_S = 0.005
_PARK_AFTER = 10  # intervals of LONG_S without a call, after which the second thread sleeps until the next one


class Inbox:
    """Messages for the main thread. `get` is the main thread's, `serve` that of the thread that accepts clients."""

    def __init__(self, handle: Callable[[Frame], None]) -> None:
        self._handle = handle
        self._work: SimpleQueue[Frame | None] = SimpleQueue()
        self._handed_over = False  # whether the main thread was waiting when the last message was put
        self._reading = threading.Lock()
        self._connection: Connection | None = None
        self._ended = threading.Event()
        self._busy_since = 0.0  # 0 while the main thread waits for work
        self._parked = True
        self._wake = threading.Event()
        threading.Thread(target=self._watch, name="stand-in", daemon=True).start()

    def serve(self, connection: Connection) -> None:
        """Let what comes over this connection be read; returns when it has ended."""
        self._ended.clear()
        self._connection = connection
        self._work.put(_LOOK)
        self._ended.wait()

    def put(self, frame: Frame | None) -> None:
        """Leave a message for the main thread; None tells it to end, whatever it waits for."""
        self._handed_over = self._handed_over or not self._busy_since
        self._work.put(frame)
        connection = self._connection
        if frame is None and connection is not None:
            connection.stop_reading()

    def get(self) -> Frame | None:
        """The next message for the main thread, which counts as busy from its return to the next call of `get`."""
        self._busy_since = 0.0
        frame: Frame | None = _LOOK
        while frame is _LOOK:
            while self._work.empty() and self._connection is not None and self._reading.acquire(blocking=False):
                try:
                    self._read_for_myself()
                finally:
                    self._reading.release()
            frame = self._work.get()
        self._busy_since = time.perf_counter()
        if self._parked:
            self._parked = False
            self._wake.set()
        return frame

    def stand_in(self) -> None:
        """Let the second thread read at once: what the main thread is about to do waits for messages itself."""
        self._wake.set()

    def _read(self, connection: Connection) -> None:
        try:
            frames = connection.receive()
        except WireError:
            frames = []  # the client is gone; the agent's lease decides what follows
        if not frames:
            self._connection = None
            self._ended.set()
        for frame in frames:
            self._handle(frame)

    def _watch(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            quiet = 0
            while quiet < _PARK_AFTER:
                asked = self._wake.wait(LONG_S)
                self._wake.clear()
                since = self._busy_since
                if since and (asked or time.perf_counter() - since >= LONG_S):
                    self._read_for_main()
                quiet = 0 if since else quiet + 1
            self._parked = True
            if self._busy_since:  # a call began while this thread went to sleep, and may have seen it awake
                self._parked = False
                self._wake.set()

    def _read_for_myself(self) -> None:
        connection = self._connection
        if connection is not None and self._work.empty():  # the other thread may have read until a moment ago
            self._read(connection)

    def _read_for_main(self) -> None:
        with self._reading:
            while (connection := self._connection) is not None:
                self._handed_over = False
                self._read(connection)
                if self._handed_over:
                    break
        if not self._busy_since:
            self._work.put(_LOOK)  # the main thread may have come while the socket was still held, and wait for a call


_LOOK = Frame(0, 0)  # tells the main thread that there is a connection to read
