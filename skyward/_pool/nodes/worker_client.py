"""The client's end of one worker process: its connection, the calls and values it holds, how long its calls take."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

from skyward._pool.code.functions import Function
from skyward._pool.code.shared_arguments import BUDGET, SharedValue
from skyward._pool.services import GatherCoordinator
from skyward._pool.signals import uninterrupted
from skyward._pool.task import Task
from skyward.errors import SkywardError, WireError
from skyward.runner.shared_values import KEEP, LEAVE, TAKE
from skyward.wire import payload
from skyward.wire.frames import Connection, Frame
from skyward.wire.messages import Kind, encode

MAX_PREFETCH = 64  # calls a worker holds beyond the running ones, when they are short
_TAIL_LINES = 20


class Fate(Enum):
    """How far a call had come on a worker that is lost."""

    WAITED = "had not begun"
    RAN = "was running"
    MAY_HAVE_RUN = "may have run"


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


@dataclass(slots=True)
class _Held:
    """A value that a node holds: its size, the worker that was sent it, and all workers that know of it."""

    nbytes: int
    source: WorkerClient
    holders: list[WorkerClient]


class SharedValueIndex:
    """The shared values that the workers of one node hold. Used under the dispatcher's lock.

    Args:
        processes: how many worker processes the node has; several of them take a value from the first that got it.
        budget: bytes it may hold beyond what the calls it has been sent need; the least recently used go first.
    """

    def __init__(self, processes: int = 1, budget: int = BUDGET) -> None:
        self._how, self._budget = LEAVE if processes > 1 else KEEP, budget
        self._held: OrderedDict[bytes, _Held] = OrderedDict()  # by digest, the least recently used first

    def messages(self, worker: WorkerClient, values: Iterable[SharedValue]) -> Iterator[Frame]:
        """What this worker must be sent before a call that needs these values, the call being in its `outstanding`."""
        for value in values:
            held = self._held.get(value.digest)
            if held is None or not held.source.alive:  # one that died may have left nothing for its neighbours
                others = [holder for holder in held.holders if holder.alive and holder is not worker] if held else []
                self._held[value.digest] = _Held(value.nbytes, worker, [worker, *others])
                yield Frame(Kind.SHARED, 0, bytes((self._how,)) + value.digest + value.head, value.buffers)
                self._make_room()
            elif worker not in held.holders:
                held.holders.append(worker)
                yield Frame(Kind.SHARED, 0, bytes((TAKE,)) + value.digest)
            self._held.move_to_end(value.digest)

    def _make_room(self) -> None:
        excess = sum(held.nbytes for held in self._held.values()) - self._budget
        if excess <= 0:
            return
        workers = {worker.rank: worker for held in self._held.values() for worker in held.holders if worker.alive}
        calls = [task for worker in workers.values() for task in worker.outstanding.values()]
        needed = {value.digest for task in calls for value in task.shared}
        for digest in [digest for digest in self._held if digest not in needed]:
            if excess <= 0:
                return
            held = self._held.pop(digest)
            excess -= held.nbytes
            for holder in held.holders:
                if holder.alive:
                    holder.post_frame(Frame(Kind.FORGET, 0, digest))
