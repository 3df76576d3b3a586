"""The checker of histories finds what is wrong with histories made wrong by hand, and nothing in good ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.chaos.history import ALWAYS, Call, Fault, History, Line, Outcome, Run, shown, violations

GOOD = History(
    calls=(
        Call(1, 0, 10, at=1.0),
        Call(2, 2, 20, at=1.0),
        Call(3, 0, 30, at=1.0),
        Call(4, 0, 40, at=1.0, cancelled=True),
        Call(5, ALWAYS, 50, at=1.0),
    ),
    outcomes=(
        Outcome(1, "result", 1.5, 10),
        Outcome(2, "result", 3.5, 20),
        Outcome(3, "lost", 2.1),
        Outcome(4, "cancelled", 1.1),
        Outcome(5, "result", 4.0, 50),
    ),
    runs=(
        Run(1, "a", 1.1, 1.2),
        Run(2, "b", 1.1),
        Run(2, "a", 3.0, 3.1),
        Run(3, "b", 1.9),
        Run(5, "a", 3.6, 3.7),
    ),
    lines=(Line("a", 0, 1), Line("b", 0, 2), Line("a", 1, 2), Line("b", 1, 3), Line("a", 2, 5)),
    faults=(Fault("kill", "b", 2.0),),
    quiet_at=2.0,
    settle_s=30.0,
)


def with_outcome(number: int, *outcomes: Outcome) -> History:
    """The good history with other outcomes of one call."""
    rest = tuple(outcome for outcome in GOOD.outcomes if outcome.number != number)
    return replace(GOOD, outcomes=rest + outcomes)


BAD = {
    "no outcome": (with_outcome(1), "Call 1 has no outcome"),
    "two outcomes": (with_outcome(1, *[Outcome(1, "result", 1.5, 10)] * 2), "Call 1 has 2 outcomes"),
    "an outcome of nothing": (with_outcome(1, Outcome(9, "result", 1.5, 10)), "Call 9 has an outcome and was never"),
    "another error": (with_outcome(1, Outcome(1, "error", 1.5, text="WireError")), "another error than a lost worker"),
    "cancelled by nobody": (with_outcome(1, Outcome(1, "cancelled", 1.5)), "not by its client"),
    "run twice without retries": (replace(GOOD, runs=(*GOOD.runs, Run(3, "a", 2.2, 2.3))), "Call 3 ran 2 times"),
    "run twice, both to the end": (replace(GOOD, runs=(*GOOD.runs, Run(1, "b", 2.2, 2.3))), "Call 1 ran 2 times"),
    "run more often than its retries": (
        replace(GOOD, runs=(*GOOD.runs, Run(2, "c", 3.2), Run(2, "d", 3.3))),
        "Call 2 ran 4 times with 2 retries",
    ),
    "run without a call": (replace(GOOD, runs=(*GOOD.runs, Run(9, "a", 2.2))), "Call 9 ran and was never submitted"),
    "run before its call": (replace(GOOD, runs=(Run(1, "a", 0.1, 1.2), *GOOD.runs[1:])), "Call 1 ran before"),
    "a wrong result": (with_outcome(1, Outcome(1, "result", 1.5, 11)), "returned 11 where the model has 10"),
    "a result of no run": (replace(GOOD, runs=GOOD.runs[1:]), "Call 1 has a result, and no run"),
    "a result before its run ended": (
        replace(GOOD, runs=(Run(1, "a", 1.1, 1.6), *GOOD.runs[1:])),
        "Call 1 has a result, and no run",
    ),
    "lost without a fault": (replace(GOOD, faults=()), "Call 3 was lost with 0 retries and 0 faults"),
    "lost after the fault of another time": (
        replace(GOOD, faults=(Fault("kill", "b", 2.5),)),
        "Call 3 was lost with 0 retries and 0 faults",
    ),
    "lost in spite of retries": (with_outcome(2, Outcome(2, "lost", 2.1)), "Call 2 was lost with 2 retries"),
    "lost though it may never be": (
        replace(with_outcome(5, Outcome(5, "lost", 9.0)), faults=(Fault("kill", "b", 2.0),) * 200),
        f"Call 5 was lost with {ALWAYS} retries",
    ),
    "a line twice": (replace(GOOD, lines=(*GOOD.lines, Line("a", 2, 5))), "Line 2 of process a came again"),
    "lines out of order": (replace(GOOD, lines=GOOD.lines[::-1]), "Line 2 of process a came after a gap"),
    "a line missing between others": (replace(GOOD, lines=(*GOOD.lines[:2], *GOOD.lines[3:])), "after a gap"),
    "the line of a result missing": (replace(GOOD, lines=GOOD.lines[:-1]), "Call 5 has a result, and what it printed"),
    "a late outcome": (with_outcome(5, Outcome(5, "result", 33.0, 50)), "Call 5 ended 31.0 s after the last fault"),
    "something left": (replace(GOOD, leftovers=("process 12",)), "Left after the pool was closed: process 12."),
}


def test_a_good_history_has_no_violations() -> None:
    """Losses, retries and cancellations that are allowed are not reported."""
    assert violations(GOOD) == []


@pytest.mark.parametrize(("history", "words"), BAD.values(), ids=BAD.keys())
def test_a_bad_history_is_found(history: History, words: str) -> None:
    """Each rule is broken once."""
    assert [text for text in violations(history) if words in text]


def test_a_killed_process_may_take_its_last_lines_with_it() -> None:
    """The lines of a run without a result may be missing at the end of a process."""
    assert violations(replace(GOOD, lines=(*GOOD.lines[:3], GOOD.lines[4]))) == []


def test_a_report_is_short() -> None:
    """Many violations of one kind are counted, of each kind some are shown."""
    text = shown([f"Call {n} has no outcome." for n in range(100)] + ["Call 7 was lost with 0 retries: killed"])

    assert text.count("has no outcome") == 5
    assert "... and 95 more like these" in text
    assert "Call 7 was lost" in text
