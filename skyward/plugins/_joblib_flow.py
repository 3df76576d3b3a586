"""Batches of joblib on their way to a pool: how large they are, how many run at once, who is told of their end.

Client only.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from joblib.parallel import BatchedCalls

Callback = Callable[[Any], None]
Sent = Future[tuple[list[Any], float]]  # results of the calls, and seconds they ran on the node
Send = Callable[[BatchedCalls], Sent]
TARGET_S = 0.05  # that a batch runs: long beside what it costs to send it, short beside what people wait for
_WAY = 0.25  # of the time from dispatch to result that counts as run: what takes long to send must not grow either
_GROWTH = 8  # at most, over what has come back before: the first calls need not be like the others
_WEIGHT = 0.5  # of the latest batch


class BatchSize:
    """How many calls travel together: as many as run for about `TARGET_S`, beginning with one."""

    def __init__(self) -> None:
        self._call_s: float | None = None
        self._largest = 1

    def next(self) -> int:
        """The size of the next batch."""
        if self._call_s is None:
            return 1
        return max(1, min(int(TARGET_S / max(self._call_s, 1e-9)), _GROWTH * self._largest))

    def observe(self, size: int, run_s: float, trip_s: float) -> None:
        """Learn how long a batch ran on its node, and how long it took from dispatch to result."""
        call_s = max(run_s, _WAY * trip_s) / size
        self._call_s = call_s if self._call_s is None else self._call_s + _WEIGHT * (call_s - self._call_s)
        self._largest = max(self._largest, size)


class Flow:
    """The batches of one call of a `Parallel`. Results are handed over in a thread of its own, one at a time: joblib
    asks for the next batch there, which runs the user's generator of calls.

    Args:
        parallel, call: whose it is.
        limit: how many batches may run at once; None for as many as the pool takes.
        send: starts a batch.
        size: learns from the batches.
    """

    def __init__(self, parallel: Any, call: str | None, limit: int | None, send: Send, size: BatchSize) -> None:
        self.parallel, self.call = parallel, call
        self._limit, self._send, self._size = limit, send, size
        self._guard = threading.Lock()
        self._waiting: deque[_Batch] = deque()
        self._running: dict[_Batch, Sent | None] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="skyward-joblib")
        self._closed = False

    def submit(self, calls: BatchedCalls, callback: Callback | None) -> Future[list[Any]]:
        batch = _Batch(calls, callback)
        with self._guard:
            if self._limit is not None and len(self._running) >= self._limit:
                self._waiting.append(batch)
                return batch.outcome
            self._running[batch] = None
        self._launch(batch)
        return batch.outcome

    def _launch(self, batch: _Batch) -> None:
        batch.sent_at = time.perf_counter()
        try:
            sent = self._send(batch.calls)
        except Exception as error:  # whatever pickling other people's objects raises
            sent = Future()
            sent.set_exception(error)
        with self._guard:
            closed = self._closed
            self._running[batch] = sent
        if closed:
            sent.cancel()
        sent.add_done_callback(lambda sent: self._ended(batch, sent))

    def _ended(self, batch: _Batch, sent: Sent) -> None:
        with self._guard:
            if not self._closed:
                self._thread.submit(self._hand_over, batch, sent)

    def _hand_over(self, batch: _Batch, sent: Sent) -> None:
        following = None
        with self._guard:
            del self._running[batch]
            if self._waiting:
                following = self._waiting.popleft()
                self._running[following] = None
        if following is not None:
            self._launch(following)
        error = sent.exception()
        if error is None:
            results, run_s = sent.result()
            self._size.observe(len(results), run_s, time.perf_counter() - batch.sent_at)
            batch.outcome.set_result(results)
        else:
            batch.outcome.set_exception(error)
        if batch.callback is not None:
            batch.callback(batch.outcome)

    def close(self) -> None:
        """Stop what runs, forget what waits; nobody is told."""
        with self._guard:
            self._closed = True
            self._waiting.clear()
            running = [sent for sent in self._running.values() if sent is not None]
        for sent in running:
            sent.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)


class _Batch:
    """A batch on its way: the calls, who is told of their end, and what is told."""

    def __init__(self, calls: BatchedCalls, callback: Callback | None) -> None:
        self.calls, self.callback = calls, callback
        self.outcome: Future[list[Any]] = Future()
        self.sent_at = 0.0
