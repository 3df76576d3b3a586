"""Services of the client for functions that run on nodes: `gather` with other ranks, and checkpoints.

A gather collects a value from every rank of one set-up or one broadcast, and sends all values to each. They are
forwarded as pickles, without being unpickled. If a rank does not take part (it has ended, misses the deadline, or
calls a gather of another name), the gather fails for every rank, including those that call it later, because ranks
that are out of step stay so.

Checkpoints are stored here when functions commit them, and sent to later calls. Requests are served in a separate
thread, in order of arrival, so that the reader of a worker's socket never waits for the disk. Messages of a lost worker
are no longer handled when its call is sent again, so that only one run of it commits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from skyward._pool.background import Timers
from skyward.errors import CheckpointError, WireError
from skyward.records.run import run_of_process
from skyward.runtime.checkpoint import is_name
from skyward.runtime.checkpoint_store import CheckpointStore
from skyward.system import SimpleQueue, threading, time
from skyward.wire.frames import Buffer, Connection, Frame
from skyward.wire.messages import RESULT_HEAD, Kind, decode, encode
from skyward.wire.payload import load_record

if TYPE_CHECKING:
    from skyward._pool.task import Task

CALL_LIMIT_S = 60.0  # default limit of a gather in a call
ALONE = (
    "this worker was started again and is set up alone, where all ranks are needed. Declare the plugin collective "
    "(Plugin.with_collective()): its ranks are then set up together again."
)
_Reply = tuple[dict[str, Any], Sequence[Buffer]]  # to a checkpoint request


# gather --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _GatherRequest:
    """A rank's request: where to send the answer, and its pickled value with out-of-band buffers."""

    connection: Connection
    call: int
    number: int
    value: Sequence[Buffer]

    def answer(self, document: dict[str, object], values: Sequence[Buffer] = ()) -> None:
        """Send the outcome without waiting for the worker to read it."""
        with suppress(WireError):  # the reader fails too, and calls `ended`
            self.connection.post(Frame(Kind.GATHERED, self.call, encode({"round": self.number, **document}), values))


_Answers = list[tuple[_GatherRequest, dict[str, object], Sequence[Buffer]]]


class GatherCoordinator:
    """State of the gathers between a set of ranks.

    Args:
        ranks: names of the participants in messages, by rank.
        clock: timers for the limits.
        limit_s: limit, from the first rank's request on, of a gather that sets none.
    """

    def __init__(self, ranks: Mapping[int, str], clock: Timers, limit_s: float = CALL_LIMIT_S) -> None:
        self._ranks, self._clock, self._limit_s = dict(sorted(ranks.items())), clock, limit_s
        self._lock = threading.Lock()
        self._number = 1  # of the current or next gather
        self._name = ""
        self._given: dict[int, _GatherRequest] = {}
        self._gone: dict[int, str] = {}  # ranks that have ended, with a description
        self._failed = ""

    def give(self, rank: int, connection: Connection, frame: Frame) -> None:
        """Record the value that a rank has sent; answer all ranks when it is the last one."""
        document = decode(frame.head)
        name, number, limit_s = document["name"], document["round"], document["timeout_s"]
        request = _GatherRequest(connection, frame.id, number, frame.buffers)
        with self._lock:
            first = not self._given
            self._given[rank] = request
            if first:
                self._name = name
            problem = self._failed or self._problem(rank, name, number)
            if problem:
                answers = self._fail(problem)
            elif len(self._given) == len(self._ranks):
                answers, first = self._complete(), False
            else:
                answers = []
        _tell(answers)
        if first and not problem:
            started = time.monotonic()
            self._clock.after(limit_s or self._limit_s, lambda: self._expire(number, started))

    def ended(self, rank: int, outcome: Frame | BaseException | None) -> None:
        """Record that a rank's call has ended, with its final message or an error of the pool."""
        how = _in_words(outcome)
        with self._lock:
            self._gone.setdefault(rank, how)
            answers = self._fail(self._absence([rank])) if self._given else []
        _tell(answers)

    def waiting(self) -> tuple[str, list[int]]:
        """Return the name of the current gather and the ranks waiting in it; an empty name if there is none."""
        with self._lock:
            return (self._name, sorted(self._given)) if self._given else ("", [])

    def _expire(self, number: int, started: float) -> None:
        with self._lock:
            if self._failed or number != self._number or not self._given:
                return
            missing = self._listed(self._ranks.keys() - self._given.keys())
            text = (
                f"{missing} did not come within {time.monotonic() - started:.0f} s, while {self._listed(self._given)} "
                "waited."
            )
            answers = self._fail(text)
        _tell(answers)

    # called under the lock -------------------------------------------------------------------------------------

    def _problem(self, rank: int, name: str, number: int) -> str:
        if number != self._number:
            return f"{self._ranks[rank]} was restarted in the middle of it, and is out of step with the others."
        if name != self._name:
            others = self._listed(other for other in self._given if other != rank)
            return (
                f"{self._ranks[rank]} calls gather({name!r}) where {others} called gather({self._name!r}). Every rank "
                "makes the same gathers in the same order."
            )
        return self._absence(list(self._gone)) if self._gone else ""

    def _absence(self, ranks: list[int]) -> str:
        return " ".join(f"{self._ranks[rank]} {self._gone[rank]}" for rank in ranks)

    def _complete(self) -> _Answers:
        in_order = [self._given[rank] for rank in self._ranks]
        parts = [len(one.value) for one in in_order]
        values = [buffer for one in in_order for buffer in one.value]
        self._number += 1
        self._given = {}
        return [(one, {"parts": parts}, values) for one in in_order]

    def _fail(self, text: str) -> _Answers:
        self._failed = text
        failed, self._given = list(self._given.values()), {}
        return [(one, {"error": text}, ()) for one in failed]

    def _listed(self, ranks: Iterable[int]) -> str:
        return ", ".join(self._ranks[rank] for rank in sorted(ranks))


def _tell(answers: _Answers) -> None:
    for one, outcome, values in answers:
        one.answer(outcome, values)


def _in_words(outcome: Frame | BaseException | None) -> str:
    if isinstance(outcome, BaseException):
        return f"failed: {str(outcome).partition(chr(10))[0]}"
    if outcome is not None and outcome.kind == Kind.ERROR:
        record = load_record(memoryview(outcome.head)[RESULT_HEAD.size :])
        return f"raised {record.type_name}: {record.text}".rstrip(": .") + "."
    return "has returned without it."


def refuse(connection: Connection, frame: Frame, why: str) -> None:
    """Refuse a gather in a call that does not run on all ranks."""
    _GatherRequest(connection, frame.id, decode(frame.head)["round"], ()).answer({"error": why})


# checkpoints -------------------------------------------------------------------------------------------------------


class _CheckpointRequest(NamedTuple):
    task: Task
    connection: Connection
    frame: Frame


class Checkpoints:
    """The checkpoints of a pool.

    Args:
        folder: directory to store them in, created if missing; None for the directory of this program's run.
    """

    def __init__(self, folder: Path | None) -> None:
        self._root = folder
        self._requests: SimpleQueue[_CheckpointRequest | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._serving: threading.Thread | None = None
        self._stores: dict[tuple[Path, Task], CheckpointStore] = {}  # of the present run of each call

    def take(self, task: Task, connection: Connection, frame: Frame) -> None:
        """Queue a call's request, to be answered by the serving thread."""
        with self._lock:
            if self._serving is None:
                self._serving = threading.Thread(target=self._serve, name="skyward-checkpoints", daemon=True)
                self._serving.start()
        self._requests.put(_CheckpointRequest(task, connection, frame))

    def close(self) -> None:
        """Stop serving, after finishing the requests received so far."""
        with self._lock:
            serving = self._serving
        if serving is not None:
            self._requests.put(None)
            serving.join()
        for store in self._stores.values():
            store.discard()

    def _serve(self) -> None:
        while (request := self._requests.get()) is not None:
            data: Sequence[Buffer]
            document = decode(request.frame.head)
            try:
                answer, data = self._answer(request, document)
            except (CheckpointError, OSError) as error:
                answer, data = {"error": str(error)}, ()
            head = encode({"request": document["request"], **answer})
            with suppress(WireError):  # the worker is lost, which its reader detects too
                request.connection.post(Frame(Kind.CHECKPOINTED, request.frame.id, head, data))
            del request, data  # release file contents before waiting for the next request

    def _answer(self, request: _CheckpointRequest, asked: dict[str, Any]) -> _Reply:
        store = self._store(request, asked)
        match asked["op"]:
            case "last":
                return {"number": store.last()}, ()
            case "read":
                return {}, [store.read(int(asked["number"]), int(asked["offset"]))]
            case "write":
                store.write(int(asked["offset"]), request.frame.buffers[0])
                return {}, ()
            case "finish":
                return {"number": store.finish()}, ()
        raise CheckpointError(f"The client was asked for {asked['op']!r} of a checkpoint, which it does not know.")

    def _store(self, request: _CheckpointRequest, asked: dict[str, Any]) -> CheckpointStore:
        """Return the store that a run of a call uses; its first request must be "last"."""
        task, rank = request.task, asked["rank"]
        folder = self._of(asked["name"])
        if task.pin is not None:
            folder /= f"rank-{task.pin if rank is None else int(rank)}"
        if asked["op"] == "last":
            for used in [key for key in self._stores if key[1].done or key == (folder, task)]:
                self._stores.pop(used).discard()  # of ended calls, and of a lost run of this call
            for other in [user for place, user in self._stores if place == folder and user is not task]:
                if task.broadcast is None or other.broadcast is not task.broadcast:
                    raise CheckpointError(
                        f"checkpoint({asked['name']!r}) is used by another call of this pool, "
                        f"{other.function.name}() on {other.place}. Give calls that run at the same time checkpoints "
                        "of different names."
                    )
            self._stores[folder, task] = CheckpointStore(folder)
        store = self._stores.get((folder, task))
        if store is None:
            raise CheckpointError(f"checkpoint({asked['name']!r}) is not this call's.")
        return store

    def _of(self, name: str) -> Path:
        if self._root is None:
            try:
                self._root = run_of_process() / "files" / "checkpoints"
            except OSError as error:
                raise CheckpointError(
                    f"checkpoint({name!r}) is kept in the record of this program's run, which cannot be written: "
                    f"{error}. Give ComputePool(checkpoints=...) a directory of yours."
                ) from error
        if not is_name(name):
            raise CheckpointError(f"{name!r} cannot be the name of a checkpoint.")
        return self._root / name
