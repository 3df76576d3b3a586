"""The client's end of one worker: what it has been sent, how quick it is, how it speaks."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from skyward.errors import WireError
from skyward.pool.functions import Function
from skyward.pool.shelf import Shelf
from skyward.pool.task import Task
from skyward.wire import payload
from skyward.wire.frames import Connection, Frame
from skyward.wire.messages import Kind, encode

MAX_PREFETCH = 64  # calls a worker holds beyond the running ones, when they are short
_TAIL_LINES = 20


class WorkerLink:
    """One worker process of one node. Fields change under the dispatcher's lock.

    Attributes:
        rank: index of the worker over all nodes.
        outstanding: calls sent and not yet answered, oldest first; the first `slots` of them run.
        run_s: how long its calls take, a moving average; None before the first result.
        rtt_s: time of a round trip to its node.
        ordered_to_end: why the pool itself has it killed, "" while it does not.
        stale: whether it ends by itself because a call needs a fresh process; nothing that it holds has begun.
        drained: whether all that it has ever sent was received: its connection ended by itself, not by this side.
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
        self.ordered_to_end = ""
        self.stale = self.drained = self.hung_up = self.leaving = False
        self.run_s: float | None = None
        self.rtt_s = 0.0002
        self.buffer = 0
        self.is_one_of_several_ranks = False
        self.gathering: Any = None
        self.shelf = Shelf()
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES)
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
        """Queue a call, after what the worker needs for it; under the dispatcher's lock. `flush` is to follow."""
        function = task.function
        if function.number not in self._functions:
            self._post_function(function)
        if task.shared:
            self.connection.enqueue(*self.shelf.messages(self, task.shared))
        self.connection.enqueue(task.call_frame())

    def post_frame(self, frame: Frame) -> None:
        """Queue a message that keeps its place among the calls; under the dispatcher's lock."""
        self.connection.enqueue(frame)

    def post_order(self, kind: Kind, call: int) -> None:
        """Queue a message about a call that has been sent; it overtakes calls that are still queued."""
        self.connection.enqueue(Frame(kind, call), urgent=True)

    def post_credit(self, call: int, items: int) -> None:
        """Queue leave for a stream to send so many further items; `flush` is to follow."""
        self.connection.enqueue(Frame(Kind.CREDIT, call, encode({"items": items})), urgent=True)

    def take_back(self, call: int) -> bool:
        """Whether a call that was posted has not been sent yet and now never will be."""
        return self.connection.withdraw(Kind.CALL, call)

    def _post_function(self, function: Function) -> None:
        bundle = function.bundle
        if bundle is not None and bundle.files and bundle.digest not in self._bundles:
            data, buffers = payload.dumps(bundle.files)
            self.connection.enqueue(Frame(Kind.CODE, 0, data, buffers))
            self._bundles.add(bundle.digest)
        wishes = {"env": dict(function.env), "collective": function.collective}
        beside = (encode(wishes),) if function.env or function.collective else ()
        self.connection.enqueue(Frame(Kind.FUNCTION, function.number, function.data, beside))
        self._functions.add(function.number)

    def flush(self) -> None:
        """Write what is queued, without blocking; nothing happens if the worker is gone."""
        try:
            self.connection.flush()
        except WireError:
            pass  # its reader notices the same, learns the reason from the node and settles its calls
