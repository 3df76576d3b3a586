"""Diagnosis of a failed call on all ranks: the root cause among several failures, hanging ranks, and their stacks.

When a rank ends, the others fail as well, shortly afterwards or even before its end is known: their connections break,
the framework's heartbeats stop. Such errors are consequences and must not hide the cause. It is normal that some ranks
have returned while others still run. Only if all of those are in framework code that waits for other ranks, and none
has made progress for some time, is there no rank left that could release them.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import zip_longest
from signal import SIGABRT
from typing import Any, NamedTuple

from skyward._pool.task import Task
from skyward.errors import CollectiveHangError, TaskError, WorkerLostError
from skyward.system import time
from skyward.system.futures import Future
from skyward.system.futures import TimeoutError as FutureTimeout
from skyward.wire import payload
from skyward.wire.exceptions import Record
from skyward.wire.frames import Frame
from skyward.wire.messages import RESULT_HEAD, Kind

PROBE_S = 1.0  # between checks of the ranks that still run
STUCK_S = 10.0  # after so long without progress they count as hanging
_DUMP_S = 1.5  # how long agents may take to dump the stacks of ranks
_SPENT = 0.02  # share of one CPU that a waiting process may use
_SENT = "/.skyward-code/"  # part of the path before that of a module sent by the client
_USERS = 3  # number of the user's frames shown
_TEXT = 200  # characters shown of an error's text
_LIBRARY = re.compile(
    r"site-packages|dist-packages|/lib/python\d|^<frozen|/skyward/(runner|runtime|wire|plugins|integrations)/"
)
_IN_TRACE = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+),? in (?P<name>.+)$')


# the root cause ------------------------------------------------------------------------------------------------------


class Blame(IntEnum):
    """How likely a failure is to be the cause of the others, in ascending order."""

    NOTICED = 0  # an error of a connection, heartbeat or gather, caused by the end of another rank
    ABORTED = 1  # the process aborted itself, as frameworks do when a peer is lost
    RAISED = 2  # the function raised
    ENDED = 3  # the process ended
    STOPPED = 4  # the client stopped the call: time limit, cancellation, closed pool


# seconds after the first failure to wait for a likelier cause
PATIENCE_S = {Blame.NOTICED: 1.0, Blame.ABORTED: 1.0, Blame.RAISED: 0.1, Blame.ENDED: 0.0, Blame.STOPPED: 0.0}
UNEXPLAINED_PATIENCE_S = 5.0  # the same, while a worker has closed its connection for an unknown reason

_TYPES = re.compile(
    r"^(ConnectionError|ConnectionResetError|ConnectionAbortedError|ConnectionRefusedError|BrokenPipeError|EOFError)$"
    r"|\.(DistStoreError|DistNetworkError|DistBackendError|UnavailableError|AbortedError)$"
)
_TEXTS = re.compile(
    r"gloo/|Gloo .* failed|\[enforce fail at|Connection closed by peer|Connection reset by peer|Broken pipe"
    r"|Timed out waiting \d+ms|recvValue failed|NCCL (error|communicator)|ncclRemoteError|ncclSystemError"
    r"|coordination service|heartbeat|stopped sending|barrier timed out|failed to connect to all addresses",
    re.IGNORECASE,
)
_CHAINED = re.compile(r"gloo/|DistStoreError|DistNetworkError|DistBackendError|Connection (closed|reset) by peer")
_GATHER = "skyward.errors.PluginError", "gather("


@dataclass(frozen=True, slots=True)
class Failure:
    """Failure of the call on one rank.

    Attributes:
        at: monotonic time at which it was received.
        record: the function's exception; None if the pool created the error.
    """

    rank: int
    at: float
    task: Task
    outcome: Frame | BaseException
    record: Record | None

    @classmethod
    def of(cls, rank: int, at: float, task: Task, outcome: Frame | BaseException) -> Failure:
        """Create a failure from a call's final message or an error of the pool."""
        if isinstance(outcome, BaseException):
            return cls(rank, at, task, outcome, None)
        assert outcome.kind == Kind.ERROR
        return cls(rank, at, task, outcome, payload.load_record(memoryview(outcome.head)[RESULT_HEAD.size :]))

    @property
    def blame(self) -> Blame:
        """How likely it is to be the cause."""
        if self.record is not None:
            return Blame.NOTICED if _is_noticed(self.record) else Blame.RAISED
        if isinstance(self.outcome, WorkerLostError):
            return Blame.ABORTED if self.outcome.signal == SIGABRT else Blame.ENDED
        return Blame.STOPPED

    def error(self) -> BaseException:
        """Return the exception for the caller; an exception of the user's code is unpickled."""
        if isinstance(self.outcome, BaseException):
            return self.outcome
        return self.task.remote_error(self.outcome)


def root_cause(failures: list[Failure]) -> Failure:
    """Return the failure to report: the one with the highest blame, and the earliest of these."""
    return min(failures, key=lambda failure: (-failure.blame, failure.at))


def patience_s(failures: list[Failure], *, unexplained: bool) -> float:
    """Return the seconds after the first failure to wait for another; `unexplained` if a rank's end is."""
    best = root_cause(failures).blame
    return max(PATIENCE_S[best], UNEXPLAINED_PATIENCE_S if unexplained and best < Blame.ENDED else 0.0)


def is_noticed(error: BaseException) -> bool:
    """Return whether a plugin's hook failed as a consequence of another rank's end."""
    text, trace = str(error), str(error.__cause__ or "")
    return not isinstance(error, WorkerLostError) and bool(
        _TEXTS.search(text) or _CHAINED.search(text + trace) or f"PluginError: {_GATHER[1]}" in text
    )


def _is_noticed(record: Record) -> bool:
    if (record.type_name, record.text[: len(_GATHER[1])]) == _GATHER:
        return True
    return bool(_TYPES.search(record.type_name) or _TEXTS.search(record.text) or _CHAINED.search(record.trace))


# hanging ranks ------------------------------------------------------------------------------------------------------


class HangDetector:
    """Measures for how long each rank has waited without progress, from samples of its stack."""

    def __init__(self) -> None:
        self._since: dict[int, tuple[float, dict[str, Any]]] = {}  # time and sample of its present position
        self._last: dict[int, float] = {}

    def note(self, rank: int, now: float, sample: dict[str, Any]) -> None:
        """Record a sample of a rank's call (see `runner.diagnosis.describe`)."""
        self._last[rank] = now
        since = self._since.get(rank)
        if not sample.get("waits"):
            self._since.pop(rank, None)
        elif since is None or _moved(since[1], sample, now - since[0]):
            self._since[rank] = now, sample

    def drop_others(self, ranks: Collection[int]) -> None:
        """Drop what is known of other ranks."""
        self._last = {rank: at for rank, at in self._last.items() if rank in ranks}
        self._since = {rank: since for rank, since in self._since.items() if rank in ranks}

    def lasted_s(self, ranks: Collection[int], now: float) -> float:
        """Return for how long all these ranks have waited; 0.0 if one works or does not answer."""
        if not ranks or any(rank not in self._since or now - self._last[rank] > 2 * PROBE_S for rank in ranks):
            return 0.0
        return min(self._last[rank] - self._since[rank][0] for rank in ranks)


def _moved(before: dict[str, Any], after: dict[str, Any], elapsed_s: float) -> bool:
    if before["place"] != after["place"] or before["switches"] != after["switches"]:
        return True
    spent: float = after["cpu_s"] - before["cpu_s"]
    return spent > _SPENT * (elapsed_s + 1.0)


# stacks of ranks ----------------------------------------------------------------------------------------------------


class StackFrame(NamedTuple):
    """One frame of a stack."""

    file: str
    line: int
    name: str
    source: str

    @property
    def is_library(self) -> bool:
        """Whether it is not in the user's own code."""
        return bool(_LIBRARY.search(self.file))

    def __str__(self) -> str:
        source = self.source or linecache.getline(self.file, self.line).strip()  # only here for code sent by value
        file = self.file.rpartition(_SENT)[2]
        return f'  File "{file}", line {self.line}, in {self.name}' + (f"\n    {source}" if source else "")


def of_dump(text: str) -> list[StackFrame]:
    """Return the frames in faulthandler's output."""
    return _read(text.splitlines())[::-1]


def collected(dumps: Mapping[int, Future[str] | None]) -> dict[int, str]:
    """Return what agents answer about the stacks of ranks, within a limit for all; "" for those that do not answer."""
    deadline = time.monotonic() + _DUMP_S
    found = {}
    for rank, dump in dumps.items():
        try:
            found[rank] = dump.result(max(0.0, deadline - time.monotonic())) if dump is not None else ""
        except FutureTimeout:
            found[rank] = ""
    return found


def of_record(record: Record) -> list[StackFrame]:
    """Return the frames of an exception's traceback."""
    return _read(record.trace.rpartition("Traceback (most recent call last):")[2].splitlines())


def excerpt(frames: list[StackFrame]) -> str:
    """Return the part of a stack to show: the user's innermost frames, and the innermost frame of all."""
    users = [frame for frame in frames if not frame.is_library][-_USERS:] or frames[-_USERS:-1]
    return "\n".join(map(str, dict.fromkeys([*users, *frames[-1:]])))


def first_line(record: Record) -> str:
    """Return the type and the first line of an exception."""
    text = record.text.partition("\n")[0]
    name = record.type_name.rpartition(".")[2]
    return f"{name}: {text[:_TEXT]}{'...' * (len(text) > _TEXT)}" if text else name


def grouped(accounts: Iterable[tuple[str, str]]) -> str:
    """Return the accounts of ranks, with ranks of the same account on one line."""
    by_account: dict[str, list[str]] = {}
    for name, account in accounts:
        by_account.setdefault(account, []).append(name)
    return "\n".join(f"{', '.join(names)} {account}" for account, names in by_account.items())


def _read(lines: list[str]) -> list[StackFrame]:
    frames = []
    for line, following in zip_longest(lines, lines[1:], fillvalue=""):
        if match := _IN_TRACE.match(line):
            source = "" if _IN_TRACE.match(following) or not following.startswith("    ") else following.strip()
            frames.append(StackFrame(match["file"], int(match["line"]), match["name"], source))
    return frames


# the error -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FailureReport:
    """Information about a failed call.

    Attributes:
        function: its name.
        names: names of the ranks in messages.
        failures: the failures of its ranks.
        returned: ranks that had returned.
        samples: stacks that ranks reported.
        dumps: stacks of ranks that could not answer, as written by faulthandler.
    """

    function: str
    names: Mapping[int, str]
    failures: Sequence[Failure]
    returned: Sequence[int]
    samples: Mapping[int, Mapping[str, Any]]
    dumps: Mapping[int, str]

    def accounts(self, but: int | None = None) -> str:
        """Return the accounts of all ranks except `but`."""
        return grouped((name, self._account(rank)) for rank, name in self.names.items() if rank != but)

    def _account(self, rank: int) -> str:
        own = [failure for failure in self.failures if failure.rank == rank]
        if own and own[0].record is not None:
            record = own[0].record
            return _at(f"raised {first_line(record)}", of_record(record))
        if own and isinstance(own[0].outcome, WorkerLostError):
            return f"ended as well. {str(own[0].outcome).partition(chr(10))[0]}"
        if rank in self.returned:
            return "had returned."
        if rank in self.dumps:
            frames = of_dump(self.dumps[rank])
            return _at("did not answer; it was in code that holds the interpreter's lock", frames)
        if frames := [StackFrame(*frame) for frame in self.samples.get(rank, {}).get("frames", ())]:
            return f"was here:\n{excerpt(frames)}"
        return "was not in the call at that moment."


def of_failures(found: FailureReport) -> BaseException:
    """Return the error of the rank that is the root cause, with accounts of the others."""
    first = root_cause(list(found.failures))
    name = found.names[first.rank]
    others = found.accounts(None if first.blame == Blame.STOPPED else first.rank)
    match first.blame:
        case Blame.STOPPED:
            said = "The ranks were then in these places:"
        case Blame.NOTICED:
            said = (
                f"{name} reported this first. Such an error mostly follows from the end or the delay of another rank, "
                "but none has reported one of its own. The others:"
            )
        case _:
            said = f"{name} failed first, and {found.function}() was stopped on the others:"
    return _with(first.error(), f"{said}\n{others}")


def of_hang(found: FailureReport, waiting: Sequence[int]) -> BaseException:
    """Return the error of a call in which some ranks wait for others that have returned."""
    gone = ", ".join(found.names[rank] for rank in sorted(found.returned))
    return CollectiveHangError(
        f"{found.function}() deadlocked: {gone} returned while the other ranks waited in a collective for "
        f"{STUCK_S:g} s. Every rank must make the same collective calls. They were stopped:\n"
        f"{found.accounts()}",
        returned=tuple(sorted(found.returned)),
        waiting=tuple(waiting),
    )


def of_abort(found: FailureReport, reason: str) -> BaseException:
    """Return the error of a running call that was stopped because the ranks had to be restarted for another reason."""
    return WorkerLostError(
        f"{found.function}() was running when all ranks had to be restarted, because {reason}. It was not run "
        f"again; @sky.compute(retries=1) would allow that. It was stopped:\n{found.accounts()}",
        node=0,
        rank=0,
    )


def _with(error: BaseException, text: str) -> BaseException:
    """Extend an error: in its message if it is a TaskError without a cause, otherwise in a note."""
    if isinstance(error, TaskError) and error.__cause__ is None:
        error.args = (f"{error}\n{text}",)
        return error
    return payload.noted(error, text)


def _at(what: str, frames: list[StackFrame]) -> str:
    return f"{what}, here:\n{excerpt(frames)}" if frames else f"{what}."
