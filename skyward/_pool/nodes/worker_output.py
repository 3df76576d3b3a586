"""The output of one node's workers, passed on to the program's own output and to the pool's record."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from skyward._pool.nodes import log_records
from skyward._pool.nodes.log_records import LogRecords
from skyward._pool.nodes.pool_link import PoolLink
from skyward._pool.nodes.worker_client import WorkerClient
from skyward.model.spec import Worker
from skyward.runner.output_log import Unfinished
from skyward.system import threading
from skyward.wire.frames import Frame
from skyward.wire.messages import NO_CALL, STDERR, Kind, decode

_TAIL_CHARS = 64 * 1024  # of one message, which may be long: the last lines are kept for errors


class WorkerOutput:
    """Shows and records what the workers of a node print. The readers of the node's connections use it.

    Args:
        node: its index.
        shape: how many workers it has, and whether they are ranks.
        pool: what the node shares with its pool.
    """

    def __init__(self, node: int, shape: Worker, pool: PoolLink) -> None:
        self._node, self._shape, self._pool = node, shape, pool
        self._lock = threading.Lock()
        self._records: LogRecords | None = None
        self._unfinished: dict[tuple[int, int], list[dict[str, Any]]] = {}

    def show(self, worker: WorkerClient, frame: Frame) -> None:
        """Show the OUTPUT of a worker."""
        call = None if frame.id == NO_CALL else frame.id
        if call is not None and len(frame.head) == 1:
            self._pool.printer.end(self._place(worker.index)[0], error=frame.head[0] == STDERR, call=call)
            return
        self._print(worker, worker.index, _text(frame), call=call, error=frame.head[0] == STDERR)

    def log(self, worker: WorkerClient, frame: Frame) -> None:
        """Take a LOG of a worker: for handlers that ask for records, else for the program's output."""
        fields, call = decode(frame.head), None if frame.id == NO_CALL else frame.id
        shown = not log_records.wanted()
        self._print(worker, worker.index, f"{fields['line']}\n", call=call, error=True, shown=shown)
        if not shown:
            self._records = self._records or LogRecords(self._pool.callbacks)
            self._records.put(fields, node=self._node, rank=self._place(worker.index)[1], call=call)

    def take(self, worker: WorkerClient | None, frame: Frame) -> None:
        """Show what a worker wrote below Python, maybe before its connection was made.

        The beginning of a line that it had printed when it ended waits until all is shown that it had sent.
        """
        if frame.kind == Kind.WORKER_OUTPUT:
            self._print(worker, frame.id, _text(frame), call=None, error=frame.head[0] == STDERR)
            return
        part = decode(frame.head)
        with self._lock:
            self._unfinished.setdefault((part["worker"], part["generation"]), []).append(part)

    def keep_unfinished(self, worker: WorkerClient, parts: Iterable[Unfinished]) -> None:
        """The same, of a node that has ended as a whole."""
        with self._lock:
            known = self._unfinished.setdefault((worker.index, worker.generation), [])
            known += [part._asdict() for part in parts]

    def show_unfinished(self, worker: WorkerClient | None, number: int, generation: int) -> None:
        """Show the lines that a worker had begun, now that nothing else comes of it."""
        with self._lock:
            parts = self._unfinished.pop((number, generation), ())
        for part in parts:
            error, text = part["stream"] == STDERR, f"{part['text']}\n"
            self._print(worker, number, text, call=part["call"], error=error)

    def _print(
        self,
        worker: WorkerClient | None,
        number: int,
        text: str,
        *,
        call: int | None,
        error: bool,
        shown: bool = True,
    ) -> None:
        if worker is not None and text != "\n":
            worker.tail.extend(text[-_TAIL_CHARS:].splitlines())
        place, rank = self._place(number)
        if shown:
            task = worker.outstanding.get(call) if worker is not None and call is not None else None
            cell = task.cell if task is not None else None
            self._pool.printer.put(place, text, error=error, call=call, cell=cell)
        self._pool.record.output(text, node=self._node, rank=rank, call=call, error=error)

    def _place(self, number: int) -> tuple[str, int]:
        """What lines of a worker are labelled with, and its rank."""
        rank = self._node * self._shape.ranks + number if self._shape.ranks > 1 else self._node
        return place_of(self._shape, rank), rank


def place_of(shape: Worker, rank: int) -> str:
    """What lines of a rank are labelled with; where nodes have one each, the node's number is enough."""
    return f"rank {rank}" if shape.ranks > 1 else str(rank)


def _text(frame: Frame) -> str:
    return str(memoryview(frame.head)[1:], "utf-8", "replace")
