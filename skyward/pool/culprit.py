"""Which of several failed ranks is to blame, and how long to wait for one that is more so.

When a rank ends, the others fail as well, a moment later or even before its end is known: their connections break, the
framework's heartbeats stop. Such an error tells what a peer noticed, and must not hide what happened.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from signal import SIGABRT

from skyward.errors import WorkerLostError
from skyward.pool.task import Task
from skyward.wire import payload
from skyward.wire.exceptions import Record
from skyward.wire.frames import Frame
from skyward.wire.messages import RESULT_HEAD, Kind


class Blame(IntEnum):
    """How likely a failure is the cause of the others, the least first."""

    NOTICED = 0  # an error of a connection, a heartbeat, a gather: it follows from the end of another rank
    ABORTED = 1  # the process aborted itself, as frameworks do when a peer has gone
    RAISED = 2  # the function raised
    ENDED = 3  # the process ended
    STOPPED = 4  # the call was stopped from here: its time is up, it was cancelled, the pool ended


# seconds from the first failure for which one with more blame is waited for
PATIENCE_S = {Blame.NOTICED: 1.0, Blame.ABORTED: 1.0, Blame.RAISED: 0.1, Blame.ENDED: 0.0, Blame.STOPPED: 0.0}
LEAVING_PATIENCE_S = 5.0  # the same while a worker has hung up and nobody has said why

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
    """How the call ended on one rank.

    Attributes:
        at: monotonic time at which it was heard of.
        record: what the function raised, None where the pool itself made the error.
    """

    rank: int
    at: float
    task: Task
    outcome: Frame | BaseException
    record: Record | None

    @classmethod
    def of(cls, rank: int, at: float, task: Task, outcome: Frame | BaseException) -> Failure:
        """The failure that a call's last message, or an error of the pool, stands for."""
        if isinstance(outcome, BaseException):
            return cls(rank, at, task, outcome, None)
        assert outcome.kind == Kind.ERROR
        return cls(rank, at, task, outcome, payload.load_record(memoryview(outcome.head)[RESULT_HEAD.size :]))

    @property
    def blame(self) -> Blame:
        """How likely it is the cause."""
        if self.record is not None:
            return Blame.NOTICED if _is_noticed(self.record) else Blame.RAISED
        if isinstance(self.outcome, WorkerLostError):
            return Blame.ABORTED if self.outcome.signal == SIGABRT else Blame.ENDED
        return Blame.STOPPED

    def error(self) -> BaseException:
        """The exception that the caller gets: the user's own as itself."""
        if isinstance(self.outcome, BaseException):
            return self.outcome
        return self.task.remote_error(bytes(memoryview(self.outcome.head)[RESULT_HEAD.size :]))


def culprit(failures: list[Failure]) -> Failure:
    """The failure to report: the one with most blame, the first among equals."""
    return min(failures, key=lambda failure: (-failure.blame, failure.at))


def patience_s(failures: list[Failure], *, leaving: bool) -> float:
    """How long after the first failure to wait for another; `leaving` while the end of a rank is not explained."""
    best = culprit(failures).blame
    return max(PATIENCE_S[best], LEAVING_PATIENCE_S if leaving and best < Blame.ENDED else 0.0)


def is_noticed(error: BaseException) -> bool:
    """Whether a plugin's hook failed because of what it noticed of another rank's end."""
    text, trace = str(error), str(error.__cause__ or "")
    return not isinstance(error, WorkerLostError) and bool(
        _TEXTS.search(text) or _CHAINED.search(text + trace) or f"PluginError: {_GATHER[1]}" in text
    )


def _is_noticed(record: Record) -> bool:
    if (record.type_name, record.text[: len(_GATHER[1])]) == _GATHER:
        return True
    return bool(_TYPES.search(record.type_name) or _TEXTS.search(record.text) or _CHAINED.search(record.trace))
