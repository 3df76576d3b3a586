"""The client's side of `gather`: collects a value from every rank of one set-up or one broadcast, answers them all.

Values pass through as the pickles they came as. Whatever keeps a rank from coming (the deadline, its end, a gather of
another name) fails the gather for every rank, those that come later included: ranks that are out of step stay so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from skyward._pool.background import Timers
from skyward.errors import WireError
from skyward.system import threading, time
from skyward.wire.frames import Buffer, Connection, Frame
from skyward.wire.messages import RESULT_HEAD, Kind, decode, encode
from skyward.wire.payload import load_record

CALL_LIMIT_S = 60.0  # of a gather in a call, unless it names its own
ALONE = (
    "this worker was started again and is set up alone, where all ranks are needed. Declare the plugin collective "
    "(Plugin.with_collective()): its ranks are then set up together again."
)


@dataclass(frozen=True, slots=True)
class _Request:
    """The gather of one rank: where to answer, and its pickled value with the buffers beside it."""

    connection: Connection
    call: int
    number: int
    value: Sequence[Buffer]

    def answer(self, document: dict[str, object], values: Sequence[Buffer] = ()) -> None:
        """Send the outcome, without waiting for the worker to read it."""
        with suppress(WireError):  # its reader notices the same, and `ended` follows
            self.connection.post(Frame(Kind.GATHERED, self.call, encode({"round": self.number, **document}), values))


_Answers = list[tuple[_Request, dict[str, object], Sequence[Buffer]]]


class GatherCoordinator:
    """The ranks that gather with each other, and how far they are.

    Args:
        ranks: who takes part, as messages name them, by rank.
        clock: ends what takes too long.
        limit_s: how long a gather that names no limit may take from its first rank on, asked when that one comes.
    """

    def __init__(self, ranks: Mapping[int, str], clock: Timers, limit_s: Callable[[], float] = lambda: CALL_LIMIT_S):
        self._ranks, self._clock, self._limit_s = dict(sorted(ranks.items())), clock, limit_s
        self._lock = threading.Lock()
        self._number = 1  # of the gather that is under way, or next
        self._name = ""
        self._given: dict[int, _Request] = {}
        self._gone: dict[int, str] = {}  # ranks that have ended, and how
        self._failed = ""

    def give(self, rank: int, connection: Connection, frame: Frame) -> None:
        """A rank has sent its value; with the last one all are answered."""
        document = decode(frame.head)
        name, number, limit_s = document["name"], document["round"], document["timeout_s"]
        request = _Request(connection, frame.id, number, frame.buffers)
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
            limit_s = limit_s or self._limit_s()
            started = time.monotonic()
            self._clock.after(limit_s, lambda: self._expire(number, started))

    def left(self, rank: int, how: str) -> None:
        """A rank has ended and gathers no more; `how` completes a sentence that starts with the rank."""
        with self._lock:
            self._gone.setdefault(rank, how)
            answers = self._fail(self._absence([rank])) if self._given else []
        _tell(answers)

    def ended(self, rank: int, outcome: Frame | BaseException | None) -> None:
        """A rank's call has ended: with its last message, or with an error of the pool's own."""
        self.left(rank, _in_words(outcome))

    def waiting(self) -> tuple[str, list[int]]:
        """The name of the gather that is under way and the ranks that wait in it; an empty name when there is none."""
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

    # all of it under the lock ----------------------------------------------------------------------------------

    def _problem(self, rank: int, name: str, number: int) -> str:
        if number != self._number:
            return f"{self._ranks[rank]} was started anew in the middle of it, and is out of step with the others."
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
    """Answer a rank that gathers where not all ranks take part."""
    _Request(connection, frame.id, decode(frame.head)["round"], ()).answer({"error": why})
