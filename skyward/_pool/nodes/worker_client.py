"""Client side of one worker process: its connection, calls, their duration, its end and its output.

Output of workers goes to the program's own output and to the pool's record. Records of their loggers go to the handlers
of the logger "skyward.output", in order, in other threads than those that read.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from itertools import islice
from signal import Signals
from typing import TYPE_CHECKING, Any

from skyward._pool.background import Callbacks
from skyward._pool.code.functions import Function
from skyward._pool.code.shared_arguments import BUDGET, SharedValueIndex
from skyward._pool.collective.diagnosis import excerpt, of_dump
from skyward._pool.services import GatherCoordinator
from skyward._pool.signals import undisturbed
from skyward._pool.task import Task
from skyward.errors import SkywardError, WireError, WorkerLostError
from skyward.model.spec import Worker
from skyward.nodes.node import Exit
from skyward.system import SimpleQueue, threading
from skyward.wire import payload
from skyward.wire.frames import Connection, Frame
from skyward.wire.messages import NO_CALL, STDERR, Kind, decode, encode

if TYPE_CHECKING:
    from skyward._pool.nodes.node_client import PoolLink

MAX_PREFETCH = 64  # calls a worker holds beyond the running ones, when they are short
_LOADED = 128 * 1024  # estimated memory in bytes of a loaded function, beside what is as large as its pickle
_TAIL_LINES = 20
_TAIL_CHARS = 64 * 1024  # limit per message, since only the last lines are kept for errors
LOGGER = "skyward.output"


class Fate(Enum):
    """State of a call on a worker that was lost."""

    WAITED = "had not begun"
    RAN = "was running"
    MAY_HAVE_RUN = "may have run"


_DOING = {Fate.WAITED: "waited there", Fate.RAN: "ran there", Fate.MAY_HAVE_RUN: "had been sent there"}
LostError = Callable[[Task, Fate], SkywardError]  # creates the error of a call that is lost with its worker


class WorkerClient:
    """One worker process of one node. Fields change under the dispatcher's lock.

    Attributes:
        rank: index of the worker over all nodes.
        outstanding: calls sent and not yet answered, in the order in which they get a slot.
        waiting: those of them whose generator waits for its reader, which needs no slot.
        run_s: moving average of its calls' durations in seconds; None before the first result.
        rtt_s: round-trip time to its node in seconds.
        ordered_to_end: why the pool has ended it; "" if it has not.
        stale: whether it exits because a call needs a fresh process; none of its calls has begun.
        all_received: whether everything it sent was received, because the connection was not ended by this side.
        hung_up: whether its connection has ended; the reason, and `alive`, may follow a little later.
        draining: whether its node is about to be removed, so that it receives no new calls.
        is_one_of_several_ranks: whether its node has several ranks, so that messages must name the rank.
        gather: coordinator of the ranks that it is set up with; None if it is set up alone.
        shared: the shared values that it holds.
        lines: last output of its unanswered calls; with None, of code that belongs to none, since the last answer.
    """

    def __init__(
        self, node: int, index: int, rank: int, generation: int, slots: int, connection: Connection, agent: Connection
    ) -> None:
        self.node, self.index, self.rank, self.generation, self.slots = node, index, rank, generation, slots
        self.connection, self._agent = connection, agent
        self.outstanding: dict[int, Task] = {}
        self.waiting: set[int] = set()
        self.alive = True
        self.ordered_to_end = ""
        self.stale = self.all_received = self.hung_up = self.draining = False
        self.run_s: float | None = None
        self.rtt_s = 0.0002
        self.buffer = 0
        self.is_one_of_several_ranks = False
        self.gather: GatherCoordinator | None = None
        self.shared = SharedValueIndex()
        self.lines: dict[int | None, deque[str]] = {}
        self._functions: dict[int, Function] = {}  # sent, by number
        self._files: dict[str, bytes] = {}  # contents of local modules on the worker, by path

    def __str__(self) -> str:
        if self.is_one_of_several_ranks:
            return f"node {self.node}, rank {self.rank}"
        return f"node {self.node}" + (f", worker {self.index}" if self.index else "")

    @property
    def load(self) -> int:
        """Number of unanswered calls that need a slot."""
        return len(self.outstanding) - len(self.waiting)

    @property
    def has_free_slot(self) -> bool:
        """Whether it has a slot that belongs to no call, not even to a stream that waits for its reader."""
        return len(self.outstanding) < self.slots

    @property
    def running(self) -> list[Task]:
        """The calls that have a slot."""
        return list(islice(self._busy, self.slots))

    @property
    def queued(self) -> list[Task]:
        """The calls that need a slot and have none."""
        return list(islice(self._busy, self.slots, None))

    @property
    def _busy(self) -> Iterator[Task]:
        return (task for task in self.outstanding.values() if task.id not in self.waiting)

    @property
    def window(self) -> int:
        """Number of calls it may hold: its slots, plus those it can finish during a round trip."""
        if self.buffer:
            return self.slots + self.buffer
        if self.run_s is None:
            return self.slots
        ahead = 2 * (self.rtt_s + 0.0002) / max(self.run_s, 1e-6)
        return self.slots + (min(MAX_PREFETCH, math.ceil(ahead)) if ahead > 0.01 else 0)

    def observe(self, run_s: float) -> None:
        """Update the average by a result: immediately for slower calls, gradually for faster ones."""
        known = self.run_s
        self.run_s = run_s if known is None or run_s > known else known + 0.2 * (run_s - known)

    def post(self, task: Task) -> None:
        """Queue a call, after its function and shared values; called under the dispatcher's lock, before `flush`."""
        if self.lines and not self.outstanding:
            self.lines.clear()  # of earlier calls, below Python, which arrived after their answers
        function = task.function
        if self._functions.get(function.number) is not function:
            self._post_function(function)
        if task.shared:
            outstanding = (each.shared for each in self.outstanding.values())
            self.connection.enqueue(*self.shared.messages(task.shared, outstanding))
        self.connection.enqueue(task.call_frame())

    def post_frame(self, frame: Frame) -> None:
        """Queue a message in order with the calls; called under the dispatcher's lock."""
        self.connection.enqueue(frame)

    def post_order(self, kind: Kind, call: int) -> None:
        """Queue a message about a call that has been sent, ahead of queued calls."""
        self.connection.enqueue(Frame(kind, call), urgent=True)

    def item_arrived(self, task: Task) -> None:
        """Count an item of a stream, which may have to wait for its reader now."""
        task.credit -= 1
        if task.credit == 0:
            self.waiting.add(task.id)

    def credit(self, task: Task, items: int) -> None:
        """Allow a stream to send this many more items, for which it needs a slot again."""
        task.credit += items
        self.resume(task)
        self.connection.enqueue(Frame(Kind.CREDIT, task.id, encode({"items": items})), urgent=True)

    def resume(self, task: Task) -> None:
        """Count a stream as in need of a slot, behind the calls that were sent before, if it waited for its reader."""
        if task.id in self.waiting:
            self.waiting.remove(task.id)
            self.outstanding[task.id] = self.outstanding.pop(task.id)

    def take_back(self, call: int) -> bool:
        """Withdraw a queued call; return False if it has been sent already."""
        return self.connection.withdraw(Kind.CALL, call)

    def _post_function(self, function: Function) -> None:
        files = [(path, data) for path, data in function.files() if self._files.get(path) != data]
        if files and (bundle := function.bundle):
            if not self._files.keys().isdisjoint(path for path, _ in files if path.endswith(".py")):
                self._functions.clear()  # replacing a module makes the worker import all again and reload functions
            self._files.update(files)
            self.connection.enqueue(Frame(Kind.CODE, 0, *payload.dumps((tuple(files), bundle.programs, bundle.roots))))
        if function.number not in self._functions:
            self._drop_functions()
            self.connection.enqueue(Frame(Kind.FUNCTION, function.number, function.data, function.wishes()))
        self._functions[function.number] = function

    def _drop_functions(self) -> None:
        """Let the worker drop functions without calls if they take much memory, as states of one that changes do."""
        if sum(len(each.data) + _LOADED for each in self._functions.values()) > BUDGET:
            needed = {task.function.number for task in self.outstanding.values()}
            for number in self._functions.keys() - needed:
                del self._functions[number]
                self.connection.enqueue(Frame(Kind.FORGET, number))

    def flush(self) -> None:
        """Write queued messages without blocking; do nothing if the worker is lost."""
        try:  # not `suppress`, which costs 1 % of a short call
            if self.connection.is_behind():
                with undisturbed:
                    self.connection.flush()
        except WireError:
            pass  # its reader fails too, asks the node for the reason and settles its calls

    def end(self, why: str) -> None:
        """End the process, which its agent restarts. `why` completes "killed:"."""
        self.ordered_to_end = self.ordered_to_end or why
        with suppress(WireError):  # the agent's reader fails too
            self._agent.post(Frame(Kind.KILL, 0, encode({"worker": self.index, "generation": self.generation})))

    def fates(self, *, is_known: bool) -> list[tuple[Task, Fate]]:
        """Return the unanswered calls of a lost worker, with the state of each.

        Args:
            is_known: whether its process is known to have ended and everything it sent has arrived. Then, since it
                takes calls in order, the unanswered ones are those it ran, at most as many as it has slots, followed by
                those it had not begun. If the node or the network failed, answers may have been lost.
        """
        unsent = self.connection.unsent(Kind.CALL)
        streams = {task.id for task in self.outstanding.values() if task.stream is not None}
        found, position = [], 0
        for task in self.outstanding.values():
            if task.id in streams:
                found.append((task, Fate.RAN))
                continue
            if task.id in unsent or self.stale or (is_known and position >= self.slots):
                found.append((task, Fate.WAITED))
            else:  # a stream may have waited for its reader for a moment, and left its slot to the call
                found.append((task, Fate.RAN if is_known and not streams else Fate.MAY_HAVE_RUN))
            position += 1
        return found

    def hear(self, call: int | None, text: str) -> None:
        """Keep the last lines of output, for the error if the worker is lost."""
        key = call if call in self.outstanding else None
        self.lines.setdefault(key, deque(maxlen=_TAIL_LINES)).extend(text[-_TAIL_CHARS:].splitlines())

    def forget_lines(self, call: int) -> None:
        """Drop the output of a call that was answered, also what it may have printed below Python."""
        self.lines.pop(call, None)
        self.lines.pop(None, None)

    def lost_running(self, report: Mapping[str, Any] | None, gone: Exit | None) -> LostError:
        """Return a function that creates the errors of calls lost with it; see `lost`."""

        def lost(task: Task, fate: Fate) -> WorkerLostError:
            heard = () if fate is Fate.WAITED else (task.id, None)
            lines = [line for call in heard for line in self.lines.get(call, ())]
            return self.lost(report, gone, f"{task.function.name}() {_DOING[fate]}", lines, _advice(task, fate))

        return lost

    def lost(
        self, report: Mapping[str, Any] | None, gone: Exit | None, doing: str, lines: Sequence[str], advice: str = ""
    ) -> WorkerLostError:
        """Return the error that reports its end.

        Args:
            report: its agent's report; None if the whole node is lost.
            gone: how the node ended.
            doing: clause that names what was lost with it.
            lines: its output meanwhile.
            advice: further sentences of the message.
        """
        facts: Mapping[str, Any] = report or {}
        if report is None:
            gone = gone or Exit(code=None)
            facts = {"code": gone.code, "signal": gone.signal, "oom": gone.oom}
            how = gone.text or _ended(facts)
            subject = f"Node {self.node} was lost"
            if gone.signal is not None:  # the text is "was killed (SIGKILL)"
                subject, how = f"Node {self.node} {gone.text}", ""
        else:
            rank = "" if self.is_one_of_several_ranks else f" (rank {self.rank})"  # those name it themselves
            subject = f"The worker process on {self}{rank} ended"
            how = f"killed: {self.ordered_to_end}" if self.ordered_to_end else _ended(facts)
        lines = lines[-_TAIL_LINES:]
        message = f"{subject} while {doing}" + (f": {how}." if how else ".") + advice
        if frames := of_dump(facts.get("stack", "")):
            message += f" It was here:\n{excerpt(frames)}"
        if lines:
            message += ("\n" if frames else " ") + "Its last output:\n" + "\n".join(f"  {line}" for line in lines)
        return WorkerLostError(
            message,
            node=self.node,
            rank=self.rank,
            exit_code=facts.get("code"),
            signal=facts.get("signal"),
            oom=bool(facts.get("oom")),
            log="\n".join(lines),
        )


def _advice(task: Task, fate: Fate) -> str:
    """Return the sentence about running a lost call again."""
    if fate is Fate.WAITED or (task.retries and task.stream is None):
        return ""
    if task.stream is not None:
        return " A generator is not run again, since its reader may have taken items."
    if task.retried:
        return f" It had run again already (retries={task.retried})."
    if fate is Fate.RAN:
        return " @sky.compute(retries=1) runs such calls again."
    return f" {task.function.name}() may have run; it was not retried. Allow retries with @sky.compute(retries=1)."


def _ended(facts: Mapping[str, Any]) -> str:
    """Describe the end of a process for an error message."""
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


# output of workers ---------------------------------------------------------------------------------------------------


class WorkerOutput:
    """Shows and records the output of a node's workers. Used by the readers of the node's connections.

    Args:
        node: its index.
        shape: number of its workers, and whether they are ranks.
        pool: the pool's objects for its nodes.
    """

    def __init__(self, node: int, shape: Worker, pool: PoolLink) -> None:
        self._node, self._shape, self._pool = node, shape, pool
        self._records: LogRecords | None = None

    def show(self, worker: WorkerClient, frame: Frame) -> None:
        """Show a worker's OUTPUT message."""
        call = None if frame.id == NO_CALL else frame.id
        if call is not None and len(frame.head) == 1:
            self._pool.printer.end(self._place(worker.index)[0], error=frame.head[0] == STDERR, call=call)
            return
        self._print(worker, worker.index, _text(frame), call=call, error=frame.head[0] == STDERR)

    def log(self, worker: WorkerClient, frame: Frame) -> None:
        """Handle a worker's LOG message: pass it to the logger's handlers, if any, otherwise print it."""
        fields, call = decode(frame.head), None if frame.id == NO_CALL else frame.id
        shown = not takes_records()
        self._print(worker, worker.index, f"{fields['line']}\n", call=call, error=True, shown=shown)
        if not shown:
            self._records = self._records or LogRecords(self._pool.callbacks)
            self._records.put(fields, node=self._node, rank=self._place(worker.index)[1], call=call)

    def take(self, worker: WorkerClient | None, frame: Frame) -> None:
        """Show native output of a worker, possibly from before its connection was opened."""
        self._print(worker, frame.id, _text(frame), call=None, error=frame.head[0] == STDERR)

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
            worker.hear(call, text)
        place, rank = self._place(number)
        if shown:
            task = worker.outstanding.get(call) if worker is not None and call is not None else None
            cell = task.cell if task is not None else None
            self._pool.printer.put(place, text, error=error, call=call, cell=cell)
        self._pool.record.output(text, node=self._node, rank=rank, call=call, error=error)

    def _place(self, number: int) -> tuple[str, int]:
        """Return the label of a worker's lines, and its rank."""
        rank = self._node * self._shape.ranks + number if self._shape.ranks > 1 else self._node
        return place_of(self._shape, rank), rank


def place_of(shape: Worker, rank: int) -> str:
    """Return the label of a rank's lines: the node's index, if each node has one rank."""
    return f"rank {rank}" if shape.ranks > 1 else str(rank)


def _text(frame: Frame) -> str:
    return str(memoryview(frame.head)[1:], "utf-8", "replace")


def log_level() -> int:
    """Return the level at which functions log: that of the logger "skyward.output", by default the root's."""
    return logging.getLogger(LOGGER).getEffectiveLevel()


def takes_records() -> bool:
    """Return whether the logger has a handler, which then receives records in place of printed lines."""
    return bool(logging.getLogger(LOGGER).handlers)


class LogRecords:
    """Passes the log records of one node to handlers, in order, in a callback thread of the pool."""

    def __init__(self, callbacks: Callbacks) -> None:
        self._callbacks = callbacks
        self._waiting: SimpleQueue[logging.LogRecord] = SimpleQueue()
        self._delivering = threading.Lock()

    def put(self, fields: Mapping[str, Any], **place: int | None) -> None:
        """Queue a record from its fields (see `runner.process`), adding `node`, `rank` and `call` as attributes."""
        self._waiting.put(_record(fields, place))
        if not self._delivering.locked():
            self._callbacks.submit("a handler of the logger skyward.output", self._deliver)

    def _deliver(self) -> None:
        # looks again after each release, since `put` leaves a record to whoever holds the lock
        while not self._waiting.empty() and self._delivering.acquire(blocking=False):
            try:
                while not self._waiting.empty():
                    _handle(self._waiting.get())
            finally:
                self._delivering.release()


def _handle(record: logging.LogRecord) -> None:
    logger = logging.getLogger(LOGGER)
    if logger.isEnabledFor(record.levelno):
        try:
            logger.handle(record)
        except Exception:  # an error of a handler loses only this record
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
