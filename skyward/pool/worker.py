"""The client's end of one worker: what it has been sent, how quick it is, how it speaks."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from skyward.pool.functions import Function
from skyward.pool.shelf import Shelf
from skyward.pool.task import Task
from skyward.system import threading
from skyward.wire import payload
from skyward.wire.frames import Connection, Frame
from skyward.wire.messages import Kind, encode

MAX_PREFETCH = 64  # calls a worker holds beyond the running ones, when they are short
_TAIL_LINES = 20


class WorkerLink:
    """One worker process of one node. Fields change under the dispatcher's lock, the outbox excepted.

    Attributes:
        rank: index of the worker over all nodes.
        outstanding: calls sent and not yet answered, oldest first; the first `slots` of them run.
        run_s: how long its calls take, a moving average; None before the first result.
        rtt_s: time of a round trip to its node.
        ordered_to_end: whether the pool itself has it killed, because one of its calls did not heed its end, or
            because all ranks are started afresh.
        hung_up: whether its connection has ended; why, and with it `alive`, may be known a little later.
        leaving: whether its node is about to be taken away, so that it gets no new calls.
        is_one_of_several_ranks: whether its node has more of them, so that the node alone does not say which it is.
        gathering: the ranks that it is set up with; None while it is set up alone.
        shelf: the shared values that its node holds.
    """

    def __init__(self, node: int, index: int, rank: int, generation: int, slots: int, connection: Connection) -> None:
        self.node, self.index, self.rank, self.generation, self.slots = node, index, rank, generation, slots
        self.connection = connection
        self.outstanding: dict[int, Task] = {}
        self.alive = True
        self.ordered_to_end = self.hung_up = self.leaving = False
        self.run_s: float | None = None
        self.rtt_s = 0.0002
        self.buffer = 0
        self.is_one_of_several_ranks = False
        self.gathering: Any = None
        self.shelf = Shelf()
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._outbox: deque[Frame] = deque()  # appended to and emptied by different threads
        self._flushing = threading.Lock()
        self._functions: set[int] = set()
        self._bundles: set[str] = set()

    def __str__(self) -> str:
        if self.is_one_of_several_ranks:
            return f"node {self.node}, rank {self.rank}"
        return f"node {self.node}" + (f", worker {self.index}" if self.index else "")

    @property
    def window(self) -> int:
        """How many calls it may hold: its slots, and as many more as it can finish during a round trip."""
        if self.buffer:
            return self.slots + self.buffer
        if self.run_s is None:
            return self.slots
        ahead = 2 * (self.rtt_s + 0.0002) / max(self.run_s, 1e-6)
        return self.slots + (min(MAX_PREFETCH, math.ceil(ahead)) if ahead > 0.01 else 0)

    def observe(self, run_s: float) -> None:
        """Learn from a result; the average follows slow calls at once and fast ones slowly."""
        known = self.run_s
        self.run_s = run_s if known is None or run_s > known else known + 0.2 * (run_s - known)

    def post(self, task: Task) -> None:
        """Put a call into the outbox, after what the worker needs for it; under the dispatcher's lock."""
        function = task.function
        if function.number not in self._functions:
            self._post_function(function)
        if task.shared:
            self._outbox.extend(self.shelf.messages(self, task.shared))
        self._outbox.append(task.call_frame())

    def post_frame(self, frame: Frame) -> None:
        """Put any other message into the outbox; under the dispatcher's lock."""
        self._outbox.append(frame)

    def _post_function(self, function: Function) -> None:
        bundle = function.bundle
        if bundle is not None and bundle.files and bundle.digest not in self._bundles:
            data, buffers = payload.dumps(bundle.files)
            self._outbox.append(Frame(Kind.CODE, 0, data, buffers))
            self._bundles.add(bundle.digest)
        wishes = {"env": dict(function.env), "collective": function.collective}
        beside = (encode(wishes),) if function.env or function.collective else ()
        self._outbox.append(Frame(Kind.FUNCTION, function.number, function.data, beside))
        self._functions.add(function.number)

    def flush(self) -> None:
        """Send what is in the outbox, in order; outside the dispatcher's lock, since it may take long.

        Raises:
            WireError: the worker is gone; its reader sees the same and reports it.
        """
        if not self._outbox:
            return
        with self._flushing:
            frames = []
            while self._outbox:
                frames.append(self._outbox.popleft())
            if frames:
                self.connection.send(*frames)
