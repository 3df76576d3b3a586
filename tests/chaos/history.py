"""The history of a workload, and the rules that it must obey. Pure: no clock, no process, no pool.

A history is what the client did (submit, outcome), what nodes did (each run of a call begins and ends), what was
printed, which faults were injected, and what was found after the pool had been closed. All times are of the system's
monotonic clock, which processes and containers of one machine share.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

ALWAYS = 100  # retries of a call that must end with a result, however many workers are lost
SHOWN = 5  # violations of each kind that a report spells out


@dataclass(frozen=True, slots=True)
class Call:
    """A call that the client submitted.

    Attributes:
        number: its number, unique in the history.
        retries: how often it may run again after a loss.
        expected: what the model says it returns.
        at: when it was submitted.
        cancelled: whether the client cancelled it.
        prints: whether each of its runs prints a line.
    """

    number: int
    retries: int
    expected: int
    at: float
    cancelled: bool = False
    prints: bool = True


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call ended for the client: its `value`, a lost worker, a cancellation, or anything else (an `error`)."""

    number: int
    kind: Literal["result", "lost", "cancelled", "error"]
    at: float
    value: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a call on a node: it began; `ended_at` is None if its function never came to its end."""

    number: int
    process: str
    began_at: float
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """A line that the client printed: the `sequence`-th of a process, written by a run of call `number`."""

    process: str
    sequence: int
    number: int


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that was killed, stopped or cut, for `lasted_s` seconds (0 for a kill)."""

    kind: str
    victim: str
    at: float
    lasted_s: float = 0.0


@dataclass(frozen=True, slots=True)
class History:
    """A workload from its first call to what was left after its pool.

    Attributes:
        quiet_at: when the last fault had been taken back.
        settle_s: within so many seconds of that, every call must have ended.
        leftovers: what was found after the pool had been closed: processes, containers, directories, descriptors.
    """

    calls: tuple[Call, ...]
    outcomes: tuple[Outcome, ...]
    runs: tuple[Run, ...]
    lines: tuple[Line, ...] = ()
    faults: tuple[Fault, ...] = ()
    leftovers: tuple[str, ...] = ()
    quiet_at: float = 0.0
    settle_s: float = 60.0


def violations(history: History) -> list[str]:
    """Every rule that the history breaks, as sentences; empty if it is as promised."""
    return [
        *_outcomes(history),
        *_runs(history),
        *_values(history),
        *_losses(history),
        *_lines(history),
        *_times(history),
        *(f"Left after the pool was closed: {what}." for what in history.leftovers),
    ]


def shown(found: list[str]) -> str:
    """The first few violations of each kind, and how many there are."""
    kinds: defaultdict[str, list[str]] = defaultdict(list)
    for text in found:
        kinds["".join(c for c in text.partition(":")[0] if not c.isdigit())].append(text)
    lines = []
    for texts in kinds.values():
        lines += texts[:SHOWN] + [f"... and {len(texts) - SHOWN} more like these"] * (len(texts) > SHOWN)
    return "\n".join(lines)


def _outcomes(history: History) -> Iterator[str]:
    """Each call has exactly one outcome, of a kind that it may have."""
    calls = {call.number: call for call in history.calls}
    count = Counter(outcome.number for outcome in history.outcomes)
    yield from (f"Call {number} has no outcome." for number in calls if not count[number])
    yield from (f"Call {number} has {times} outcomes." for number, times in count.items() if times > 1)
    yield from (f"Call {number} has an outcome and was never submitted." for number in count if number not in calls)
    for outcome in history.outcomes:
        call = calls.get(outcome.number)
        if outcome.kind == "error":
            yield f"Call {outcome.number} ended with another error than a lost worker: {outcome.text}"
        elif outcome.kind == "cancelled" and call is not None and not call.cancelled:
            yield f"Call {outcome.number} was cancelled, and not by its client."


def _runs(history: History) -> Iterator[str]:
    """No call runs more often than once and its retries; none that nobody submitted."""
    calls = {call.number: call for call in history.calls}
    by_call: defaultdict[int, list[Run]] = defaultdict(list)
    for run in history.runs:
        by_call[run.number].append(run)
    for number, runs in by_call.items():
        call = calls.get(number)
        if call is None:
            yield f"Call {number} ran and was never submitted."
        elif len(runs) > 1 + call.retries:
            where = ", ".join(f"{run.process} at {run.began_at:.3f}" for run in runs)
            yield f"Call {number} ran {len(runs)} times with {call.retries} retries: in {where}."
        elif any(run.began_at < call.at for run in runs):
            yield f"Call {number} ran before it was submitted."


def _values(history: History) -> Iterator[str]:
    """A result is the model's, and that of a run which came to its end before the client had it."""
    calls = {call.number: call for call in history.calls}
    ended: defaultdict[int, float] = defaultdict(lambda: float("inf"))
    for run in history.runs:
        if run.ended_at is not None:
            ended[run.number] = min(ended[run.number], run.ended_at)
    for outcome in history.outcomes:
        call = calls.get(outcome.number)
        if outcome.kind != "result" or call is None:
            continue
        if outcome.value != call.expected:
            yield f"Call {call.number} returned {outcome.value} where the model has {call.expected}."
        if ended[call.number] > outcome.at:
            yield f"Call {call.number} has a result, and no run of it had ended."


def _losses(history: History) -> Iterator[str]:
    """A call is lost only if there were more faults in its life than it has retries."""
    calls = {call.number: call for call in history.calls}
    for outcome in history.outcomes:
        call = calls.get(outcome.number)
        if outcome.kind != "lost" or call is None:
            continue
        faults = sum(fault.at <= outcome.at and fault.at + fault.lasted_s >= call.at - 30 for fault in history.faults)
        if call.retries >= ALWAYS or faults <= call.retries:
            yield f"Call {call.number} was lost with {call.retries} retries and {faults} faults: {outcome.text}"


def _lines(history: History) -> Iterator[str]:
    """The lines of a process come once each, in order, without a gap; those of a call before its result are all there.

    A process that was killed may take its last lines with it.
    """
    if not history.lines:
        return
    following: defaultdict[str, int] = defaultdict(int)
    for line in history.lines:
        expected = following[line.process]
        if line.sequence != expected:
            how = "again, or out of order" if line.sequence < expected else "after a gap"
            yield f"Line {line.sequence} of process {line.process} came {how}: line {expected} was next."
        following[line.process] = line.sequence + 1
    printed = {line.number for line in history.lines} | {call.number for call in history.calls if not call.prints}
    for outcome in history.outcomes:
        if outcome.kind == "result" and outcome.number not in printed:
            yield f"Call {outcome.number} has a result, and what it printed did not come."


def _times(history: History) -> Iterator[str]:
    """Once faults have stopped, everything gets done."""
    limit = history.quiet_at + history.settle_s
    late = [outcome for outcome in history.outcomes if history.quiet_at and outcome.at > limit]
    for outcome in late:
        yield f"Call {outcome.number} ended {outcome.at - history.quiet_at:.1f} s after the last fault."
