"""The client's end of one worker process: its connection, the calls it holds, how long they take; its end; its output.

What workers print goes to the program's own output and to the pool's record; records of their loggers go to the
handlers of the logger "skyward.output", in order, off the threads that read.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from enum import Enum
from signal import Signals
from typing import TYPE_CHECKING, Any

from skyward._pool.background import Callbacks
from skyward._pool.code.functions import Function
from skyward._pool.code.shared_arguments import SharedValueIndex
from skyward._pool.services import GatherCoordinator
from skyward._pool.signals import uninterrupted
from skyward._pool.task import Task
from skyward.errors import SkywardError, WireError, WorkerLostError
from skyward.model.spec import Worker
from skyward.nodes.node import Exit
from skyward.runner.output_log import Unfinished
from skyward.system import threading
from skyward.wire import payload
from skyward.wire.frames import Connection, Frame
from skyward.wire.messages import NO_CALL, STDERR, Kind, decode, encode

if TYPE_CHECKING:
    from skyward._pool.nodes.node_client import PoolLink

MAX_PREFETCH = 64  # calls a worker holds beyond the running ones, when they are short
_TAIL_LINES = 20
_TAIL_CHARS = 64 * 1024  # of one message, which may be long: the last lines are kept for errors
LOGGER = "skyward.output"
_MOST = 10_000  # records that wait for slow handlers; what comes beyond is left out, and counted


class Fate(Enum):
    """How far a call had come on a worker that is lost."""

    WAITED = "had not begun"
    RAN = "was running"
    MAY_HAVE_RUN = "may have run"


_DOING = {Fate.WAITED: "waited there", Fate.RAN: "ran there", Fate.MAY_HAVE_RUN: "had been sent there"}
_IN_DOUBT = (
    " Whether {name}() has run is not known, and it is not called again, since its function does not say that it may "
    "run twice (@sky.compute(retries=1))."
)
LostError = Callable[[Task, Fate], SkywardError]  # makes the error of a call that is lost with its worker


class WorkerClient:
    """One worker process of one node. Fields change under the dispatcher's lock.

    Attributes:
        rank: index of the worker over all nodes.
        outstanding: calls sent and not yet answered, oldest first; the first `slots` of them run.
        run_s: how long its calls take, a moving average; None before the first result.
        rtt_s: time of a round trip to its node.
        ordered_to_end: why the pool itself has ended it, "" while it has not.
        stale: whether it ends by itself because a call needs a fresh process; nothing that it holds has begun.
        all_received: whether all that it has ever sent was received: its connection ended by itself, not by this side.
        hung_up: whether its connection has ended; why, and with it `alive`, may be known a little later.
        draining: whether its node is about to be taken away, so that it gets no new calls.
        is_one_of_several_ranks: whether its node has more of them, so that the node alone does not say which it is.
        gather: of the ranks that it is set up with; None while it is set up alone.
        shared: the shared values that its node holds.
    """

    def __init__(
        self, node: int, index: int, rank: int, generation: int, slots: int, connection: Connection, agent: Connection
    ) -> None:
        self.node, self.index, self.rank, self.generation, self.slots = node, index, rank, generation, slots
        self.connection, self._agent = connection, agent
        self.outstanding: dict[int, Task] = {}
        self.alive = True
        self.ordered_to_end = ""
        self.stale = self.all_received = self.hung_up = self.draining = False
        self.run_s: float | None = None
        self.rtt_s = 0.0002
        self.buffer = 0
        self.is_one_of_several_ranks = False
        self.gather: GatherCoordinator | None = None
        self.shared = SharedValueIndex()
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._functions: dict[int, Function] = {}  # sent, by number
        self._files: dict[str, bytes] = {}  # of local modules, as the worker has them

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
        if self._functions.get(function.number) is not function:
            self._post_function(function)
        if task.shared:
            self.connection.enqueue(*self.shared.messages(self, task.shared))
        self.connection.enqueue(task.call_frame())

    def post_frame(self, frame: Frame) -> None:
        """Queue a message that keeps its place among the calls; under the dispatcher's lock."""
        self.connection.enqueue(frame)

    def post_order(self, kind: Kind, call: int) -> None:
        """Queue a message about a call that has been sent; it overtakes calls that are still queued."""
        self.connection.enqueue(Frame(kind, call), urgent=True)

    def credit(self, call: int, items: int) -> None:
        """Allow a stream to send so many further items."""
        with uninterrupted:
            self.connection.enqueue(Frame(Kind.CREDIT, call, encode({"items": items})), urgent=True)
            self.flush()

    def take_back(self, call: int) -> bool:
        """Whether a call that was posted has not been sent yet and now never will be."""
        return self.connection.withdraw(Kind.CALL, call)

    def _post_function(self, function: Function) -> None:
        files = [(path, data) for path, data in function.files() if self._files.get(path) != data]
        if files:
            if not self._files.keys().isdisjoint(path for path, _ in files):
                self._functions.clear()  # one is replaced: the worker imports them all anew, and loads functions again
            self._files.update(files)
            self.connection.enqueue(Frame(Kind.CODE, 0, *payload.dumps((tuple(files), frozenset()))))
        if function.number not in self._functions:
            self.connection.enqueue(Frame(Kind.FUNCTION, function.number, function.data, function.wishes()))
        self._functions.pop(function.replaces, None)
        self._functions[function.number] = function

    def flush(self) -> None:
        """Write what is queued, without blocking; nothing happens if the worker is gone."""
        try:  # not `suppress`, which costs 1 % of a short call
            self.connection.flush()
        except WireError:
            pass  # its reader notices the same, learns the reason from the node and settles its calls

    def end(self, why: str) -> None:
        """End the process; its agent starts it again. `why` completes "the pool ended it, because"."""
        self.ordered_to_end = self.ordered_to_end or why
        with suppress(WireError):  # the agent's reader notices the same
            self._agent.post(Frame(Kind.KILL, 0, encode({"worker": self.index, "generation": self.generation})))

    def fates(self, *, is_known: bool) -> list[tuple[Task, Fate]]:
        """What became of the calls that it had been given and not answered, now that it is gone.

        Args:
            is_known: whether its process is known to have ended, and everything it had sent has arrived. Then the calls
                it has not answered are the ones it ran, at most as many as it has slots, and after them those it had
                not begun: it takes them in order. Where the node or the network to it failed, answers may be lost.
        """
        unsent = self.connection.unsent(Kind.CALL)
        found = []
        for position, task in enumerate(self.outstanding.values()):
            if task.id in unsent or self.stale or (is_known and position >= self.slots and task.stream is None):
                found.append((task, Fate.WAITED))
            elif is_known or task.stream is not None:
                found.append((task, Fate.RAN))
            else:
                found.append((task, Fate.MAY_HAVE_RUN))
        return found

    def lost_running(self, report: Mapping[str, Any] | None, gone: Exit | None) -> LostError:
        """Makes the errors of calls that are lost with it; see `lost`."""

        def lost(task: Task, fate: Fate) -> WorkerLostError:
            name = task.function.name
            doubt = _IN_DOUBT.format(name=name) if fate is Fate.MAY_HAVE_RUN else ""
            return self.lost(report, gone, f"{name}() {_DOING[fate]}", doubt)

        return lost

    def lost(self, report: Mapping[str, Any] | None, gone: Exit | None, doing: str, doubt: str = "") -> WorkerLostError:
        """The error that tells of its end.

        Args:
            report: what its agent has said of it; None where the whole node is `gone`.
            gone: how the node has ended.
            doing: what is lost with it, with a verb.
            doubt: what else has to be said.
        """
        facts: Mapping[str, Any] = report or {}
        if report is None:
            gone = gone or Exit(code=None)
            facts = {"code": gone.code, "signal": gone.signal, "oom": gone.oom}
            subject = f"Node {self.node} was lost"
            how = gone.text or _ended(facts)
        else:
            rank = "" if self.is_one_of_several_ranks else f" (rank {self.rank})"  # the former name it themselves
            subject = f"The worker process on {self}{rank} ended"
            how = f"the pool ended it, because {self.ordered_to_end}" if self.ordered_to_end else _ended(facts)
        heard = tuple(self.tail)
        lines = [*heard, *(line for line in str(facts.get("log") or "").splitlines() if line not in heard)][-20:]
        message = f"{subject} while {doing}: {how}.{doubt}"
        if lines:
            message += " Its last output:\n" + "\n".join(f"  {line}" for line in lines)
        return WorkerLostError(
            message,
            node=self.node,
            rank=self.rank,
            exit_code=facts.get("code"),
            signal=facts.get("signal"),
            oom=bool(facts.get("oom")),
            log="\n".join(lines),
        )


def _ended(facts: Mapping[str, Any]) -> str:
    """How a process ended, for an error message."""
    if facts.get("oom"):
        return "the kernel killed it (out of memory); give the node more memory (memory_gb=), or the call less data"
    code, signal = facts.get("code"), facts.get("signal")
    if signal:
        try:
            name = Signals(signal).name
        except ValueError:
            name = "unknown"
        return f"it was killed by signal {signal} ({name})"
    return f"it ended with exit status {code}" if code is not None else "the reason is not known"


# what workers print --------------------------------------------------------------------------------------------------


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
        shown = not takes_records()
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


def log_level() -> int:
    """From which level on functions log: that of the logger "skyward.output", which is the root's unless it is set."""
    return logging.getLogger(LOGGER).getEffectiveLevel()


def takes_records() -> bool:
    """Whether somebody has attached a handler to the logger, and so takes records in the place of printed lines."""
    return bool(logging.getLogger(LOGGER).handlers)


class LogRecords:
    """Hands the records of one node to handlers, in their order, in one of the pool's threads for callbacks."""

    def __init__(self, callbacks: Callbacks) -> None:
        self._callbacks = callbacks
        self._lock = threading.Lock()
        self._waiting: deque[logging.LogRecord] = deque()
        self._left_out = 0
        self._delivering = False

    def put(self, fields: Mapping[str, Any], **place: int | None) -> None:
        """Take the fields of a record (see `runner.process`), with `node`, `rank` and `call` as its attributes."""
        record = _record(fields, place)
        with self._lock:
            if len(self._waiting) >= _MOST:
                self._left_out += 1
                return
            self._waiting.append(record)
            if self._delivering:
                return
            self._delivering = True
        self._callbacks.submit("a handler of the logger skyward.output", self._deliver)

    def _deliver(self) -> None:
        logger = logging.getLogger(LOGGER)
        while True:
            with self._lock:
                if not self._waiting:
                    self._delivering = False
                    return
                record = self._waiting.popleft()
                left_out, self._left_out = self._left_out, 0
            if left_out:
                logger.warning("%d records of nodes were left out: handlers are too slow for them", left_out)
            if logger.isEnabledFor(record.levelno):
                try:
                    logger.handle(record)
                except Exception:  # a handler that raises loses its record, and no other
                    logging.getLogger(__name__).exception("A handler of the logger %s failed.", LOGGER)


def _record(fields: Mapping[str, Any], place: Mapping[str, int | None]) -> logging.LogRecord:
    record = logging.LogRecord(
        str(fields["name"]),
        int(fields["level"]),
        str(fields["path"]),
        int(fields["lineno"]),
        str(fields["text"]),
        None,
        None,
        str(fields["function"]),
    )
    record.created = float(fields["t"])
    record.msecs = record.created % 1 * 1000
    record.exc_text = str(fields["trace"]) or None
    vars(record).update(place)
    return record
